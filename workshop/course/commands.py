"""`rn50 workshop`: list, build, lint, run and reset the notebooks, and what has been passed."""

from __future__ import annotations

import argparse
import importlib.metadata
import shlex
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from rn50lib.config import PROFILES
from rn50lib.errors import UserError
from workshop.course.cli import parser

PACKAGES = ("rn50-workbook", "torch", "tensorflow-cpu", "tensorflow", "numpy", "pillow",
            "papermill", "ipykernel", "jupyterlab")  # fmt: skip


def main(argv: list[str]) -> int:
    """Run one verb; returns the exit status. Raises UserError for bad input."""
    own = argv.index("--") if argv[:1] == ["try"] and "--" in argv else len(argv)
    args = parser().parse_args(argv[:own])
    args.argv, args.others = argv, argv[own + 1 :]  # after "--": a script's own arguments
    verbs = {
        "list": list_notebooks,
        "build": build_notebooks,
        "lint": lint_masters,
        "run": run_course,
        "reset": reset_notebook,
        "status": show_status,
        "try": try_script,
        "release": release_course,
        "submit": submit_work,
        "grade": grade_class,
    }
    status: int = verbs[args.verb](args)
    return status


def list_notebooks(args: argparse.Namespace) -> int:
    from workshop import paths
    from workshop.course import catalogue

    root = paths.need_checkout()
    for item in catalogue.COURSE:
        path = root / "notebooks" / f"{item.name}.ipynb"
        if item in catalogue.existing(root):
            state = (
                str(path.relative_to(root)) if path.exists() else "not built: rn50 workshop build"
            )
        else:
            state = "comes later"
        print(f"{item.number}  {item.short:16} {item.minutes:3} min  {state}")
    return 0


def build_notebooks(args: argparse.Namespace) -> int:
    from workshop import paths
    from workshop.course import backup, build, lint, nbgrader

    root = paths.need_checkout()
    if args.solutions:
        for path in build.build_solutions(root, args.solutions):
            print(path)
        return 0
    if args.nbgrader:
        nbgrader.export(root, args.nbgrader)
        print(f"Next: cd {args.nbgrader} && nbgrader generate_assignment {nbgrader.ASSIGNMENT}")
        return 0
    if args.check:
        lines = build.drift(root) + lint.lint(root)
        for line in lines:
            print(line, file=sys.stderr)
        if not lines:
            print(f"{len(build.masters(root))} notebooks are as their masters give them")
        return 1 if lines else 0
    for master in build.masters(root):
        made = build.build(root, master)
        new = not made.path.exists() or made.path.read_bytes() != made.text.encode()
        if new and backup.worked_in(made.path):
            print(f"somebody has worked in {made.path.name}; a copy: {backup.back_up(made.path)}")
        state = "written" if build.write(made) else "unchanged"
        print(f"{made.path.relative_to(root)}: {state}")
    return 0


def show_status(args: argparse.Namespace) -> int:
    import json

    from workshop.checks import status

    found = status.collect()
    print(json.dumps(found, indent=4) if args.json else status.text(found))
    if args.output:
        from workshop.course.progress_page import write_page

        path = write_page(args.output.absolute())
        print(path.as_uri(), file=sys.stderr if args.json else sys.stdout)
    return 0


def lint_masters(args: argparse.Namespace) -> int:
    from workshop import paths
    from workshop.course import lint

    root = paths.need_checkout()
    missing = [str(path) for path in args.masters if not path.exists()]
    if missing:
        raise UserError(f"there is no master {missing[0]}")
    lines = lint.lint(root, [path.absolute() for path in args.masters] or None)
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


def run_course(args: argparse.Namespace) -> int:
    from rn50lib.hardware import machine
    from workshop import paths
    from workshop.course import results, runner, selection, training
    from workshop.course.pages import index

    given = dict(args.parameter)
    if args.profile:
        if given.get("profile", args.profile) != args.profile:
            raise UserError("--profile and -p profile contradict each other: give one of them")
        given["profile"] = args.profile
    if given.get("profile", "auto") not in PROFILES:
        raise UserError(f"-p profile {given['profile']}: there are {', '.join(PROFILES)}")
    if bool(args.notebooks) == args.all:
        raise UserError('name the notebooks to run, such as "02", or give --all (not both)')
    if args.resume and not args.out:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    root = paths.checkout()
    profile = given.get("profile", "auto")
    notebooks = selection.find_notebooks(args.notebooks, root, args.all)
    jobs = selection.prepare(notebooks, given, profile, args.time_limit)
    begin, stamp = time.monotonic(), datetime.now(timezone.utc)
    out = (args.out or paths.runs_home() / f"{stamp:%Y%m%dT%H%M%SZ}-course").absolute()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"--out {out} cannot be made: {problem.strerror}") from None
    signal.signal(signal.SIGTERM, _interrupt)

    def write_index(outcomes: list[results.Outcome]) -> results.CourseRun:
        run = results.CourseRun(
            started=stamp.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - begin, 3),
            profile=profile,
            command=shlex.join(["rn50", "workshop", *args.argv]),
            machine=machine().to_dict(),
            versions=versions(),
            notebooks=outcomes,
        )
        index(run, out, trained)
        return run

    trained = training.train(out / "training", say) if args.train else None
    course = runner.Runner(out, say, write_index)
    run = write_index(course.run(jobs, args.jobs, args.resume))
    good = sum(item.passed for item in run.notebooks)
    print(f"{good} of {len(run.notebooks)} notebooks passed in {run.seconds:.0f} s")
    if trained and trained.report:
        print(f"training: {trained.report['metrics']['val.top1'][-1]:.1f} % top-1")
    if trained and trained.error:
        print(f"training: {trained.error}; go on with {trained.resume}")
    path = out / "index.html"
    print(f"{path}\n{path.as_uri()}")
    return 0 if run.passed and not (trained and trained.error) else 1


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def say(line: str) -> None:
    print(line, flush=True)


def versions() -> dict[str, str]:
    """The versions of what a notebook uses, as far as it is installed."""
    found = {"Python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def reset_notebook(args: argparse.Namespace) -> int:
    from workshop import paths
    from workshop.course import backup, build, selection

    root = paths.need_checkout()
    stem = Path(args.notebook).stem
    matches = [m for m in build.masters(root) if selection.is_meant(m, stem)]
    if not matches:
        names = ", ".join(m.stem for m in build.masters(root))
        raise UserError(f"there is no notebook {args.notebook}: there are {names}")
    made = build.build(root, matches[0])
    changed = made.path.exists() and made.path.read_bytes() != made.text.encode()
    if changed:
        print(f"your changed notebook: {backup.back_up(made.path)}")
    build.write(made)
    print(f"as it was built: {made.path}")
    if changed:
        print("If it is open in JupyterLab: File, Reload Notebook from Disk.")
    if build.is_exercise(matches[0]):
        print("What you have passed stays passed; `rn50 workshop status` lists it.")
    return 0


def try_script(args: argparse.Namespace) -> int:
    import json

    from rn50lib.files import write_file
    from workshop import observe
    from workshop.errors import RunFailed

    try:
        result = observe.try_script(
            args.script, *args.others, ranks=args.n, launcher=args.launcher, steps=args.steps,
            seconds=args.seconds, single=not args.no_single, folder=Path.cwd(),
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )  # fmt: skip
    except RunFailed as failure:
        print(failure.log, file=sys.stderr)
        raise
    if args.verbose:
        print("\n".join(result.output), file=sys.stderr)
    print(result)
    if args.json:
        write_file(args.json, json.dumps(result.to_dict(), indent=4) + "\n")
    return 1 if result.missing else 0


def release_course(args: argparse.Namespace) -> int:
    from workshop import paths
    from workshop.course import release

    names = release.release(paths.need_checkout(), args.folder)
    notebooks = sum(name.endswith(".ipynb") for name in names)
    print(f"{args.folder}: {len(names)} files, {notebooks} notebooks. {release.SAID}")
    return 0


def submit_work(args: argparse.Namespace) -> int:
    from workshop import paths
    from workshop.course import submit

    root = paths.need_checkout()
    print(submit.submit(root, args.notebooks or root / "exercises", args.name, args.out))
    return 0


def grade_class(args: argparse.Namespace) -> int:
    from rn50lib.files import check_writable
    from workshop import paths
    from workshop.course import grade

    folder, out = args.folder.absolute(), args.out.absolute()
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    if out.suffix != ".html" or out.parent == folder:
        raise UserError(f"-o {args.out}: name an .html file outside {folder}")
    check_writable(out, "-o")
    hidden = (folder, paths.need_checkout() / "exercises" / "source")
    memory, bubblewrap = int(args.memory * 2**30), grade.bubblewrap_works()
    settings = grade.Settings(args.time_limit, memory, hidden, bubblewrap)
    grade.grade(folder, out, settings, args.jobs)
    print(f"{out}\n{out.with_suffix('.csv')}")
    return 0

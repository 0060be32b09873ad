"""`rn50 workshop`: build, lint, run and reset notebooks; show progress; run a class."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shlex
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from rn50lib.config import PROFILES
from rn50lib.errors import Parser, UserError
from workshop import paths

PACKAGES = ("rn50-workbook", "torch", "tensorflow-cpu", "tensorflow", "numpy", "pillow",
            "papermill", "ipykernel", "jupyterlab")  # fmt: skip


def seconds(text: str) -> float:
    """Return a positive number."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be more than 0 seconds")
    return value


def count(text: str) -> int:
    """Return a positive whole number."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of 1 or more")
    return int(text)


def parser() -> Parser:
    """Return the parser of all verbs; each sets `call`, the function that runs it."""
    top = Parser(
        prog="rn50 workshop", description="The notebooks of the course.", allow_abbrev=False
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)

    def verb(name: str, call: Any, text: str, **more: Any) -> Any:
        made = verbs.add_parser(name, help=text, **more)
        made.set_defaults(call=call)
        return made.add_argument

    add = verb("build", build_notebooks, "write the notebooks from their masters")
    add("--check", action="store_true", help="write nothing; fail on differences or lint")
    add("--solutions", type=Path, metavar="DIR", help="write the exercises with solutions to DIR")
    add("--nbgrader", type=Path, metavar="DIR", help="write a course folder for nbgrader to DIR")
    add = verb("lint", lint_masters, "check the masters, or your notebooks, against the rules")
    add("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="any .ipynb (the masters)")
    add = verb("run", run_course, "execute notebooks and write an HTML index")
    add("notebooks", nargs="*", help='numbers ("02"), names or paths')
    add("--all", action="store_true", help="every notebook of the course")
    add("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="set a parameter; it must exist in the notebook")  # fmt: skip
    add("--profile", choices=PROFILES, help="the same as -p profile (auto); ci takes seconds")
    add("--out", type=Path, metavar="DIR", help="write results here (default: new, in runs/)")
    add("--time-limit", type=seconds, metavar="S", help="per notebook (three times its budget)")
    add("--train", action="store_true", help="first train the built-in recipe in full")
    add = verb("reset", reset_notebook, "restore a notebook and keep a copy of yours")
    add("notebook", help='number ("02") or name')
    verb("status", show_status, "list the exercises you have passed")
    add = verb("try", try_script, "run a parallel training script and report what it does",
               usage="%(prog)s SCRIPT [-n N] [options] [-- ARGUMENTS OF THE SCRIPT]",
               epilog="exit status: 0: nothing is missing, 1: a change is, 2: failed")  # fmt: skip
    add("script", metavar="SCRIPT")
    add("-n", type=count, default=2, metavar="N", help="ranks (2)")
    add("--launcher", choices=("auto", "horovodrun", "torchrun", "python"), default="auto",
        help="python: the script starts its ranks itself (default: by its imports)")  # fmt: skip
    add("--steps", type=count, default=5, metavar="K", help="updates to record (5)")
    add("--seconds", type=seconds, default=20.0, metavar="S", help="then continue up to S (20)")
    add("--no-single", action="store_true", help="skip the run on one rank for comparison")
    add("--json", type=Path, metavar="FILE", help="write the results to FILE")
    add = verb("release", release_course, "write the learners' copy, without solutions")
    add("folder", type=Path, metavar="DIR", help="a new folder")
    add = verb("submit", submit_work, "pack your exercises into a zip to hand in")
    add("--name", help="your name (default: $RN50_LEARNER)")
    add("-o", "--out", type=Path, metavar="ZIP", help="default: rn50-NAME.zip here")
    add = verb("grade", grade_class, "grade what a class handed in; write a CSV and a page")
    add("folder", type=Path, metavar="DIR",
        help="one entry per learner, named after them: a folder, zip or notebook")  # fmt: skip
    add("-o", "--out", type=Path, default=Path("class.html"), metavar="HTML",
        help="the page; the CSV is written next to it (class.html)")  # fmt: skip
    add("--jobs", type=count, default=1, metavar="N", help="notebooks to run at the same time (1)")
    add("--time-limit", type=seconds, default=120.0, metavar="S",
        help="per exercise (120); proportionally more if it takes over 20 minutes")  # fmt: skip
    add("--memory", type=seconds, default=4.0, metavar="GIB", help="memory per process (4)")
    return top


def main(argv: list[str]) -> int:
    """Run one verb and return the exit status. Raises UserError for bad input."""
    end = argv.index("--") if argv[:1] == ["try"] and "--" in argv else len(argv)
    args = parser().parse_args(argv[:end])
    args.argv, args.others = argv, argv[end + 1 :]  # after "--": the script's own arguments
    status: int = args.call(args)
    return status


def build_notebooks(args: argparse.Namespace) -> int:
    """Write the notebooks, or check that they match their masters."""
    from rn50lib.files import make_folder
    from workshop.course import build, gallery, nbgrader

    root = paths.need_checkout()
    masters = build.masters(root)
    if args.nbgrader:
        nbgrader.export(root, args.nbgrader)
        print(f"Next: cd {args.nbgrader} && nbgrader generate_assignment {nbgrader.ASSIGNMENT}")
    elif args.solutions:
        make_folder(args.solutions, f"--solutions {args.solutions}")
        for master in filter(build.is_exercise, masters):
            made = build.build(root, master, solved=True)
            build.write(build.Built(args.solutions / made.path.name, made.text))
            print(args.solutions / made.path.name)
    elif args.check:
        lines = build.drift(root)
        if not gallery.page(root).is_written:
            lines.append(f"{gallery.PAGE} is not current: run `rn50 workshop build`")
        for line in lines:
            print(line, file=sys.stderr)
        status = print_lint(root)
        if not lines and not status:
            print(f"{len(masters)} notebooks match their masters")
        return 1 if lines else status
    else:
        for made in [*(build.build(root, master) for master in masters), gallery.page(root)]:
            state = "written" if build.write(made) else "unchanged"
            print(f"{made.path.relative_to(root)}: {state}")
    return 0


def print_lint(root: Path) -> int:
    """Print errors and warnings; return 1 if there is an error."""
    from workshop.course import lint

    errors, warnings = lint.lint(root)
    for line in [*errors, *(f"warning: {line}" for line in warnings)]:
        print(line, file=sys.stderr)
    return 1 if errors else 0


def lint_masters(args: argparse.Namespace) -> int:
    """Check the masters, or the cells of any notebooks."""
    from workshop.course import lint

    if not args.notebooks:
        return print_lint(paths.need_checkout())
    lines = [line for notebook in args.notebooks for line in lint.lint_notebook(notebook)]
    print("\n".join(lines or ["nothing that hides a failure was found"]))
    return 1 if lines else 0


def run_course(args: argparse.Namespace) -> int:
    """Train if asked, run the notebooks in order, and write the index after each one."""
    from rn50lib.hardware import machine
    from workshop.course import pages, run, training

    given = dict(args.parameter)
    if args.profile and given.setdefault("profile", args.profile) != args.profile:
        raise UserError("--profile and -p profile contradict each other: use one of them")
    profile = given.get("profile", "auto")
    if profile not in PROFILES:
        raise UserError(f"-p profile {profile}: there are {', '.join(PROFILES)}")
    if bool(args.notebooks) == args.all:
        raise UserError('name the notebooks to run, such as "02", or use --all (not both)')
    notebooks = run.find_notebooks(args.notebooks, paths.checkout(), args.all)
    jobs = [run.prepare(path, given, profile, args.time_limit) for path in notebooks]
    begin, stamp = time.monotonic(), datetime.now(timezone.utc)
    out = (args.out or paths.runs_home() / f"{stamp:%Y%m%dT%H%M%SZ}-course").absolute()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"--out {out} cannot be made: {problem.strerror}") from None
    signal.signal(signal.SIGTERM, interrupt)
    trained = training.train(out / "training") if args.train else None

    def write_index() -> run.CourseRun:
        course = run.CourseRun(
            stamp.isoformat(timespec="seconds"), round(time.monotonic() - begin, 3), profile,
            shlex.join(["rn50", "workshop", *args.argv]), machine().to_dict(), versions(), jobs,
        )  # fmt: skip
        pages.index(course, out, trained)
        return course

    for i, path in enumerate(notebooks):
        print(f"{jobs[i].name}: started, limit {jobs[i].limit:.0f} s", flush=True)
        done = jobs[i] = run.run_notebook(path, jobs[i], out)
        place = f" in cell {done.error.cell}" if done.error and done.error.cell else ""
        why = f": {done.error.text}{place}" if done.error else ""
        print(f"{done.name}: {done.status} in {done.seconds:.1f} s{why}", flush=True)
        pages.page(out, done, [job.name for job in jobs])
        write_index()
    course = write_index()
    good = sum(item.passed for item in jobs)
    print(f"{good} of {len(jobs)} notebooks passed in {course.seconds:.0f} s")
    if trained and trained.report:
        print(f"training: {trained.report['metrics']['val.top1'][-1]:.1f} % top-1")
    if trained and trained.error:
        print(f"training: {trained.error}; continue it with {trained.resume}")
    print(f"{out / 'index.html'}\n{(out / 'index.html').as_uri()}")
    return 0 if course.passed and not (trained and trained.error) else 1


def interrupt(number: int, frame: Any) -> NoReturn:
    """Treat SIGTERM like Ctrl-C."""
    raise KeyboardInterrupt


def versions() -> dict[str, str]:
    """Return the versions of what a notebook uses, as far as it is installed."""
    found = {"Python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def reset_notebook(args: argparse.Namespace) -> int:
    """Write a notebook as its master gives it, after renaming a changed one."""
    from workshop.course import build, run

    root = paths.need_checkout()
    masters = build.masters(root)
    matches = [path for path in masters if run.is_meant(path, Path(args.notebook).stem)]
    if not matches:
        names = ", ".join(path.stem for path in masters)
        raise UserError(f"no notebook is named {args.notebook}: there are {names}")
    made = build.build(root, matches[0])
    if made.path.exists() and not made.is_written:
        print(f"your changed notebook: {build.move_aside(made.path)}")
        print("If it is open in JupyterLab: File, Reload Notebook from Disk.")
    build.write(made)
    print(f"as it was built: {made.path}")
    if build.is_exercise(matches[0]):
        print("What you have passed stays passed; `rn50 workshop status` lists it.")
    return 0


def show_status(args: argparse.Namespace) -> int:
    """Print what has been passed."""
    from workshop.checks import status

    status.progress()
    return 0


def try_script(args: argparse.Namespace) -> int:
    """Run a script under observation and print the verdict."""
    from rn50lib.files import write_file
    from workshop import observe
    from workshop.errors import RunFailed

    try:
        result = observe.try_script(
            args.script, *args.others, ranks=args.n, launcher=args.launcher, steps=args.steps,
            seconds=args.seconds, single=not args.no_single, folder=Path.cwd(),
        )  # fmt: skip
    except RunFailed as failure:
        print(failure.log, file=sys.stderr)
        raise
    print(result)
    if args.json:
        write_file(args.json, json.dumps(result.to_dict(), indent=4) + "\n")
    return 1 if result.missing else 0


def release_course(args: argparse.Namespace) -> int:
    """Write the learners' copy."""
    from workshop.course import release

    names = release.release(paths.need_checkout(), args.folder)
    notebooks = sum(name.endswith(".ipynb") for name in names)
    print(f"{args.folder}: {len(names)} files, {notebooks} notebooks. {release.SAID}")
    return 0


def submit_work(args: argparse.Namespace) -> int:
    """Pack the exercises."""
    from workshop.course import submit

    root = paths.need_checkout()
    print(submit.submit(root, args.name, args.out))
    return 0


def grade_class(args: argparse.Namespace) -> int:
    """Grade the uploads in a folder."""
    from rn50lib.files import check_writable
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

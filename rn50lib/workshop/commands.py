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

from rn50lib.errors import UserError

PACKAGES = ("rn50-workbook", "torch", "tensorflow-cpu", "tensorflow", "numpy", "pillow",
            "papermill", "ipykernel", "jupyterlab")  # fmt: skip


class Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message} (see `{self.prog} --help`)", file=sys.stderr)
        raise SystemExit(2)


def parser() -> Parser:
    from rn50lib.workshop import preflight_flags

    made = Parser(
        prog="rn50 workshop", description="The notebooks of the course.", allow_abbrev=False
    )
    verbs = made.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    verbs.add_parser("list", help="the notebooks, their time, and whether they stand as built")
    build = verbs.add_parser("build", help="write the notebooks from their masters")
    build.add_argument("--check", action="store_true", help="change nothing; fail on drift or lint")
    build.add_argument(
        "--solutions", type=Path, metavar="DIR", help="write the exercises with solutions to DIR"
    )
    lint = verbs.add_parser("lint", help="check the masters against the house rules")
    lint.add_argument("masters", nargs="*", type=Path, help="masters to check (default: all)")
    run = verbs.add_parser("run", help="execute notebooks and write an HTML index")
    run.add_argument("notebooks", nargs="*", help='numbers ("02"), names or paths')
    run.add_argument("--all", action="store_true", help="every notebook of the course")
    run.add_argument(
        "-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="a parameter; one that a notebook does not have is an error",
    )  # fmt: skip
    run.add_argument(
        "--profile", choices=("auto", "ci", "cpu", "gpu"),
        help="the same as -p profile; ci cuts every run to seconds (default: auto)",
    )  # fmt: skip
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="results (default: a new folder in runs/)"
    )
    run.add_argument(
        "--time-limit", type=seconds, metavar="S",
        help="seconds per notebook, its kernel's start not counted"
        " (default: three times its budget)",
    )  # fmt: skip
    run.add_argument(
        "--jobs", type=count, default=1, metavar="N", help="notebooks at a time (default: 1)"
    )
    run.add_argument("--resume", action="store_true", help="leave out what passed in --out before")
    reset = verbs.add_parser(
        "reset", help="put a notebook back as it was built, keeping a copy of yours"
    )
    reset.add_argument("notebook", help='number ("02") or name')
    status = verbs.add_parser("status", help="the exercises that have been passed here")
    status.add_argument("--json", action="store_true", help="print it as JSON")
    status.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write it as a web page to FILE as well"
    )
    script = verbs.add_parser(
        "check-script",
        help="what a training script lacks for many GPUs; reads it, never runs it",
        epilog="Exit status: 0 all is there, 1 something is missing, wrong or out of sight, 2 FILE"
        " cannot be read.",
    )
    script.add_argument("file", type=Path, metavar="FILE", help="a Python file")
    script.add_argument("--json", action="store_true", help="the findings as JSON")
    _classroom(verbs)
    preflight_flags.add_parser(verbs)
    return made


def _classroom(verbs: Any) -> None:
    """What an instructor's class needs: the learners' copy, handing in, grading."""
    release = verbs.add_parser("release", help="write the learners' copy of the course")
    release.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    release.add_argument(
        "--no-solutions", action="store_true", required=True, help="leave every solution out"
    )
    submit = verbs.add_parser("submit", help="pack your exercises into a zip to hand in")
    submit.add_argument("--name", help="yours (default: $RN50_LEARNER, else the account's)")
    submit.add_argument("-o", "--out", type=Path, metavar="ZIP", help="default: rn50-NAME.zip here")
    submit.add_argument(
        "--notebooks", type=Path, metavar="DIR", help="your notebooks (default: exercises/)"
    )
    grade = verbs.add_parser("grade", help="grade what a class has handed in")
    grade.add_argument(
        "submissions", type=Path, metavar="SUBMISSIONS",
        help="a folder, or a zip: LEARNER/ex03.ipynb, ex03_LEARNER.ipynb, zips as Moodle writes",
    )  # fmt: skip
    grade.add_argument(
        "-o", "--out", type=Path, default=Path("class.html"), metavar="HTML",
        help="the page; class.csv, class-feedback/ and points.csv stand beside it",
    )  # fmt: skip
    grade.add_argument(
        "--points", type=Path, metavar="CSV", help="what each exercise is worth (points.csv)"
    )
    grade.add_argument("--jobs", type=count, metavar="N", help="submissions at a time (all cores)")
    grade.add_argument(
        "--full", action="store_true", help="run the lessons' cells too; ten times the time limit"
    )
    grade.add_argument(
        "--time-limit", type=seconds, default=20.0, metavar="S", help="for each exercise (20)"
    )
    grade.add_argument(
        "--memory", type=seconds, default=2.0, metavar="GIB", help="for each exercise (2)"
    )


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be more than 0 seconds")
    return value


def count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of 1 or more")
    return int(text)


def main(argv: list[str]) -> int:
    """Run one verb; returns the exit status. Raises UserError for bad input."""
    args = parser().parse_args(argv)
    args.argv = argv
    verbs = {
        "list": list_notebooks,
        "build": build_notebooks,
        "lint": lint_masters,
        "run": run_course,
        "reset": reset_notebook,
        "status": show_status,
        "check-script": check_script_file,
        "preflight": look_before_class,
        "release": release_course,
        "submit": submit_work,
        "grade": grade_class,
    }
    status: int = verbs[args.verb](args)
    return status


def list_notebooks(args: argparse.Namespace) -> int:
    from rn50lib.workshop import course, places

    root = places.need_checkout()
    for item in course.COURSE:
        path = root / "notebooks" / f"{item.name}.ipynb"
        if item in course.existing(root):
            state = (
                str(path.relative_to(root)) if path.exists() else "not built: rn50 workshop build"
            )
        else:
            state = "comes later"
        print(f"{item.number}  {item.short:16} {item.minutes:3} min  {state}")
    return 0


def build_notebooks(args: argparse.Namespace) -> int:
    from rn50lib.workshop import build, keeping, lint, places

    root = places.need_checkout()
    if args.solutions:
        for path in build.build_solutions(root, args.solutions):
            print(path)
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
        if new and keeping.worked_in(made.path):
            print(f"somebody has worked in {made.path.name}; a copy: {keeping.keep(made.path)}")
        state = "written" if build.write(made) else "unchanged"
        print(f"{made.path.relative_to(root)}: {state}")
    return 0


def show_status(args: argparse.Namespace) -> int:
    import json

    from rn50lib.workshop.checks import status

    found = status.collect()
    print(json.dumps(found, indent=4) if args.json else status.text(found))
    if args.output:
        from rn50lib.workshop.progress_page import write_page

        path = write_page(args.output.absolute())
        print(path.as_uri(), file=sys.stderr if args.json else sys.stdout)
    return 0


def lint_masters(args: argparse.Namespace) -> int:
    from rn50lib.workshop import lint, places

    root = places.need_checkout()
    missing = [str(path) for path in args.masters if not path.exists()]
    if missing:
        raise UserError(f"there is no master {missing[0]}")
    lines = lint.lint(root, [path.absolute() for path in args.masters] or None)
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


def run_course(args: argparse.Namespace) -> int:
    from rn50lib.hardware import machine
    from rn50lib.workshop import places, results, runner, selection
    from rn50lib.workshop.pages import index

    given = dict(args.parameter)
    if args.profile:
        if given.get("profile", args.profile) != args.profile:
            raise UserError("--profile and -p profile contradict each other: give one of them")
        given["profile"] = args.profile
    if bool(args.notebooks) == args.all:
        raise UserError('name the notebooks to run, such as "02", or give --all (not both)')
    if args.resume and not args.out:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    root = places.checkout()
    profile = given.get("profile", "auto")
    paths = selection.find_notebooks(args.notebooks, root, args.all)
    jobs = selection.prepare(paths, given, profile, args.time_limit)
    begin, stamp = time.monotonic(), datetime.now(timezone.utc)
    out = (args.out or places.runs_home() / f"{stamp:%Y%m%dT%H%M%SZ}-course").absolute()
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
        index(run, out)
        return run

    course = runner.Runner(out, say, write_index)
    run = write_index(course.run(jobs, args.jobs, args.resume))
    good = sum(item.passed for item in run.notebooks)
    print(f"{good} of {len(run.notebooks)} notebooks passed in {run.seconds:.0f} s")
    path = out / "index.html"
    print(f"{path}\n{path.as_uri()}")
    return 0 if run.passed else 1


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
    from rn50lib.workshop import build, keeping, places, selection

    root = places.need_checkout()
    stem = Path(args.notebook).stem
    matches = [m for m in build.masters(root) if selection.is_meant(m, stem)]
    if not matches:
        names = ", ".join(m.stem for m in build.masters(root))
        raise UserError(f"there is no notebook {args.notebook}: there are {names}")
    made = build.build(root, matches[0])
    changed = made.path.exists() and made.path.read_bytes() != made.text.encode()
    if changed:
        print(f"your changed notebook: {keeping.keep(made.path)}")
    build.write(made)
    print(f"as it was built: {made.path}")
    if changed:
        print("If it is open in JupyterLab: File, Reload Notebook from Disk.")
    if build.is_exercise(matches[0]):
        print("What you have passed stays passed; `rn50 workshop status` lists it.")
    return 0


def look_before_class(args: argparse.Namespace) -> int:
    from rn50lib.workshop import preflight_hosts

    return preflight_hosts.main(args, versions())


def check_script_file(args: argparse.Namespace) -> int:
    from rn50lib.workshop.check_script import check, show
    from rn50lib.workshop.check_script.finding import PRESENT

    findings = check(args.file)
    if args.json:
        print(show.as_json(args.file, findings))
    else:
        print("\n".join(show.table(args.file, findings)))
    return 0 if all(finding.kind == PRESENT for finding in findings) else 1


def release_course(args: argparse.Namespace) -> int:
    from rn50lib.workshop import places, release

    names = release.release(places.need_checkout(), args.folder)
    notebooks = sum(name.endswith(".ipynb") for name in names)
    print(f"{args.folder}: {len(names)} files, {notebooks} notebooks, no solutions")
    return 0


def submit_work(args: argparse.Namespace) -> int:
    from rn50lib.workshop import places, submit

    root = places.need_checkout()
    print(submit.submit(root, args.notebooks or root / "exercises", args.name, args.out))
    return 0


def grade_class(args: argparse.Namespace) -> int:
    from rn50lib.hardware import machine
    from rn50lib.workshop.grading import box, command

    limits = box.Limits(seconds=args.time_limit, memory=int(args.memory * 2**30))
    wanted = command.Wanted(
        args.submissions.absolute(), args.out.absolute(), args.points,
        args.jobs or machine().cores, args.full, limits,
        shlex.join(["rn50", "workshop", *args.argv]),
    )  # fmt: skip
    return command.grade(wanted, say)

"""`rn50 workshop`: build, lint, run and reset notebooks; show progress; run a class."""

from __future__ import annotations

import argparse
import importlib.metadata
import shlex
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from data_prep.command_line import Parser, whole
from rn50 import launch
from rn50.common import Output, contains
from rn50lib.config import FLAGS
from rn50lib.errors import UserError
from rn50lib.files import check_output, make_folder, write_file
from workshop import catalogue, paths

PACKAGES = {"rn50-workbook", "torch", "tensorflow_cpu", "tensorflow", "numpy", "pillow",
            "papermill", "ipykernel", "jupyterlab"}  # fmt: skip


def parser() -> Parser:
    """Return the parser of all verbs; each sets `call`, the function that runs it."""
    top = Parser(
        prog="rn50 workshop", description="The notebooks of the course.", allow_abbrev=False
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    verbs.type = str  # each verb's parser converts its own arguments

    def verb(name: str, call: Any, text: str, **more: Any) -> Any:
        made = verbs.add_parser(name, help=text, **more)
        made.set_defaults(call=call)
        return made.add_argument

    add = verb("build", build_notebooks, "write the notebooks from their masters")
    add("--check", action="store_true", help="write nothing; fail on differences or lint")
    add("--nbgrader", type=Path, metavar="DIR", help="write a course folder for nbgrader to DIR")
    verb("lint", lint_masters, "check the masters against the rules")
    add = verb("run", run_course, "execute notebooks and write an HTML index")
    add("notebooks", nargs="*", help='numbers ("02", "ex03") or paths')
    add("--all", action="store_true", help="every notebook of the course")
    add("-p", "--parameter", nargs=2, type=str, action="append", default=[],
        help="set a parameter; it must exist in the notebook",
        metavar=("NAME", "VALUE"))  # fmt: skip
    profiles = FLAGS["profile"].choices
    add("--profile", choices=profiles, help="the same as -p profile (auto); ci takes seconds")
    add("--out", type=Path, metavar="DIR", help="write results here (default: new, in runs/)")
    add("--time-limit", type=whole(), metavar="S", help="per notebook (three times its budget)")
    add("--train", action="store_true", help="first train the built-in recipe in full")
    add = verb("reset", reset_notebook, "restore a notebook and keep a copy of yours")
    add("notebook", help='number ("02", "ex03")')
    verb("status", show_status, "list the exercises you have passed")
    add = verb("try", try_script, "run a parallel training script and report what it does",
               usage="%(prog)s SCRIPT [-n N] [options] [-- ARGUMENTS OF THE SCRIPT]",
               epilog="exit status: 0: nothing is missing, 1: a change is, 2: failed")  # fmt: skip
    add("script", metavar="SCRIPT")
    add("-n", type=whole(), default=2, metavar="N", help="ranks (2)")
    add("--launcher", choices=("auto", "horovodrun", "torchrun", "python"), default="auto",
        help="python: the script starts its ranks itself (default: by its imports)")  # fmt: skip
    add("--steps", type=whole(), default=5, metavar="K", help="updates to record (5)")
    add("--seconds", type=whole(), default=20, metavar="S",
        help="then continue up to S; with --headroom, time each mode for S (20)")  # fmt: skip
    add("--no-single", action="store_true", help="skip the run on one rank for comparison")
    add("--headroom", action="store_true",
        help="only time it: as it is, with a perfect loader, and with a perfect step")  # fmt: skip
    add = verb("release", release_course, "write the learners' copy, without solutions")
    add("folder", type=Path, metavar="DIR", help="a new folder")
    add = verb("grade", grade_class, "grade what a class handed in; write a CSV and a page")
    add("folder", type=Path, metavar="DIR",
        help="one entry per learner, named after them: a folder, zip or notebook")  # fmt: skip
    add("-o", "--out", type=Path, default=Path("class.html"), metavar="HTML",
        help="the page; the CSV is written next to it (class.html)")  # fmt: skip
    add(
        "--jobs", type=whole(), default=1, metavar="N", help="notebooks to run at the same time (1)"
    )
    add("--time-limit", type=whole(), default=300, metavar="S",
        help="seconds per cell (300)")  # fmt: skip
    add("--memory", type=whole(), default=4, metavar="GIB", help="memory per process (4)")
    return top


def main(argv: list[str]) -> int:
    """Run one verb and return the exit status. Raises UserError for bad input."""
    end = argv.index("--") if argv[:1] == ["try"] and "--" in argv else len(argv)
    top = parser()
    if argv[:1] == ["try"]:
        top.suggest = lambda unknown: "the script's own follow `--`"  # type: ignore[method-assign]
    args = top.parse_args(argv[:end])
    args.argv, args.others = argv, argv[end + 1 :]  # after "--": the script's own arguments
    if args.verb in ("run", "try", "grade"):  # like Ctrl-C, so that what they started is ended
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    return args.call(args) or 0


def build_notebooks(args: argparse.Namespace) -> int:
    """Write the notebooks, or check that they match their masters."""
    from workshop.course import build, gallery, lint, nbgrader

    root = paths.need_checkout()
    masters = build.masters(root)
    if args.nbgrader:
        nbgrader.export(root, args.nbgrader)
        folder = shlex.quote(str(args.nbgrader))
        print(f"Next: cd {folder} && nbgrader generate_assignment {nbgrader.ASSIGNMENT}")
    elif args.check:
        print(*lint.contents(root), sep="\n")
        return report([*build.drift(root), *gallery.drift(root), *lint.lint(root)])
    else:
        for master in masters:
            write_file(build.target(master), build.build(root, master))
        if gallery.load(root):
            write_file(root / gallery.PAGE, gallery.page(root))
        print(f"{len(masters)} notebooks written")
    return 0


def lint_masters(args: argparse.Namespace) -> int:
    from workshop.course import lint

    return report(lint.lint(paths.need_checkout()))


def report(errors: list[str]) -> int:
    for line in errors:
        print(line, file=sys.stderr)
    print(f"{len(errors)} errors")
    return 1 if errors else 0


def run_course(args: argparse.Namespace) -> int:
    """Train if asked, run the notebooks in order, and write the index after each one."""
    from rn50lib.hardware import machine
    from workshop.course import pages, run, training

    given = dict(args.parameter)
    if args.profile and given.setdefault("profile", args.profile) != args.profile:
        raise UserError("--profile and -p profile contradict each other: use one of them")
    profile = given.get("profile", "auto")
    if bool(args.notebooks) == args.all:
        raise UserError('name the notebooks to run, such as "02", or use --all (not both)')
    lessons = catalogue.existing(paths.need_checkout()) if args.all else ()
    names = args.notebooks or [item.number for item in lessons]
    notebooks = [run.find_notebook(name) for name in names]
    stems = [path.stem for path in notebooks]
    if len({*stems}) < len(stems):
        twice = max(stems, key=stems.count)
        raise UserError(f"two of the notebooks are called {twice}: run them into two folders")
    jobs = [run.prepare(path, given, profile, args.time_limit) for path in notebooks]
    begin, now = time.monotonic(), datetime.now(timezone.utc)
    out = (args.out or launch.new_run("course")).absolute()
    make_folder(out, f"--out {out}")
    check_output(out / "index.html", "--out:", "an index of `run`", contains(b"RN50 workbook"))
    for job in jobs:
        executed = out / f"{job.name}.ipynb"
        check_output(executed, "--out:", "an executed notebook", contains(b'"papermill"'))
    trained = training.train(out / "training") if args.train else None
    installed = importlib.metadata.distributions()
    about = {
        "started": f"{now:%d %B %Y, %H:%M} UTC",
        "profile": profile,
        "command": shlex.join(["rn50", "workshop", *args.argv]),
        "machine": machine().to_dict(),
        "versions": {one.name: one.version for one in installed if one.name in PACKAGES},
    }
    for i, path in enumerate(notebooks):
        print(f"{jobs[i].name}: started, limit {jobs[i].limit:.0f} s", flush=True)
        done = jobs[i] = run.run_notebook(path, jobs[i], out)
        why = f": {done.error}" if done.error else ""
        print(f"{done.name}: {done.status} in {done.seconds:.1f} s{why}", flush=True)
        pages.page(out, done, [job.name for job in jobs])
        about["seconds"] = round(time.monotonic() - begin, 3)
        pages.index(out, about, jobs, trained)
    good = sum(item.status == run.PASSED for item in jobs)
    print(f"{good} of {len(jobs)} notebooks passed in {about['seconds']:.0f} s")
    if trained and trained.report:
        print(f"training: {trained.report['metrics']['val.top1'][-1]:.1f}% top-1")
    elif trained:
        print(f"training: failed; continue it with {trained.command} --resume")
    print(f"{out / 'index.html'}\n{(out / 'index.html').as_uri()}")
    return int(good < len(jobs) or bool(trained and not trained.report))


def reset_notebook(args: argparse.Namespace) -> None:
    """Write a notebook as its master gives it, after renaming a changed one."""
    from workshop.course import build

    root = paths.need_checkout()
    master = build.find(root, args.notebook)
    path = build.target(master)
    if path.exists() and not build.is_built(root, master):
        kept = path.with_name(f"{path.stem}.changed-{datetime.now():%Y%m%dT%H%M%S}.ipynb")
        print(f"your changed notebook: {path.rename(kept)}")
        print("If it is open in JupyterLab: File, Reload Notebook from Disk.")
    write_file(path, build.build(root, master))
    print(f"as it was built: {path}")
    if build.is_exercise(master):
        print("What you have passed stays passed; `rn50 workshop status` lists it.")


def show_status(args: argparse.Namespace) -> None:
    from workshop.checks import records

    records.progress(everything=True)


def try_script(args: argparse.Namespace) -> int:
    from workshop import headroom, observe
    from workshop.errors import RunFailed

    script, here = Path(args.script).absolute(), Path.cwd()
    home = script.parent.resolve()
    folder = here if home.is_relative_to(here) else home  # what is copied, with the script
    try:
        if args.headroom:
            print(headroom.measure(script, args.others, args.seconds, folder))
            return 0
        result = observe.try_script(
            args.script, *args.others, ranks=args.n, launcher=args.launcher, steps=args.steps,
            seconds=args.seconds, single=not args.no_single, folder=folder,
        )  # fmt: skip
    except RunFailed as failure:
        print(failure.log, file=sys.stderr)
        raise
    print(result)
    return int(bool(result.missing))


def release_course(args: argparse.Namespace) -> None:
    from workshop.course import release

    release.release(paths.need_checkout(), args.folder)
    print(f"{args.folder}: the course without solutions; a third hint is nearly the answer.")


def grade_class(args: argparse.Namespace) -> None:
    from workshop.course import grade

    folder, out = args.folder.absolute(), args.out.absolute()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder")
    if out.suffix != ".html" or out.parent == folder:
        raise UserError(f"-o {args.out}: name an .html file outside {folder}")
    page = Output("-o", out, "a page of grades", contains(b"<h1>The class's exercises</h1>"))
    table = Output("-o", out.with_suffix(".csv"), "a table of grades", contains(b"learner,"))
    settings = grade.Settings(args.time_limit, args.memory, folder, grade.bubblewrap_works())
    grade.grade(folder, page, table, settings, args.jobs)
    print(f"{page.path}\n{table.path}")

"""The verbs of `rn50 workshop` and their flags; what each does stands in `commands`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from rn50lib.config import PROFILES


class Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message} (see `{self.prog} --help`)", file=sys.stderr)
        raise SystemExit(2)


def parser() -> Parser:
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
    build.add_argument(
        "--nbgrader", type=Path, metavar="DIR", help="write a course folder for nbgrader to DIR"
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
        "--profile", choices=PROFILES,
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
    run.add_argument(
        "--train", action="store_true",
        help="first train the built-in recipe in full: the index begins with what came out",
    )  # fmt: skip
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
    _try(verbs)
    _classroom(verbs)
    return made


def _try(verbs: Any) -> None:
    """A script of one's own on several ranks."""
    attempt = verbs.add_parser(
        "try", help="run a parallel training script and judge what it does, with evidence",
        usage="%(prog)s SCRIPT [-n N] [options] [-- ARGUMENTS OF THE SCRIPT]",
        epilog="exit status: 0 if no change is missing, 1 if one is, 2 if the script failed",
    )  # fmt: skip
    attempt.add_argument("script", metavar="SCRIPT")
    attempt.add_argument("-n", type=count, default=2, metavar="N", help="ranks (2)")
    attempt.add_argument(
        "--launcher", choices=("auto", "horovodrun", "torchrun", "python"), default="auto",
        help="python: the script starts its ranks itself (default: by what the script imports)",
    )  # fmt: skip
    attempt.add_argument(
        "--steps", type=count, default=5, metavar="K", help="updates that are watched (5)"
    )
    attempt.add_argument(
        "--seconds", type=seconds, default=20.0, metavar="S",
        help="that the script may go on after these, to see what it writes (20)",
    )  # fmt: skip
    attempt.add_argument(
        "--no-single", action="store_true",
        help="leave out the run on one rank that the learning rate is compared with",
    )  # fmt: skip
    attempt.add_argument("--json", type=Path, metavar="FILE", help="write what was seen to FILE")
    attempt.add_argument(
        "-v", "--verbose", action="store_true", help="show what the script printed last"
    )


def _classroom(verbs: Any) -> None:
    """Add the verbs for a class: the learners' copy, handing in, grading."""
    release = verbs.add_parser("release", help="write the learners' copy, without solutions")
    release.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    submit = verbs.add_parser("submit", help="pack your exercises into a zip to hand in")
    submit.add_argument("--name", help="your name (default: $RN50_LEARNER)")
    submit.add_argument("-o", "--out", type=Path, metavar="ZIP", help="default: rn50-NAME.zip here")
    submit.add_argument(
        "--notebooks", type=Path, metavar="DIR", help="your notebooks (default: exercises/)"
    )
    grade = verbs.add_parser("grade", help="run what a class has handed in; write a CSV and a page")
    grade.add_argument(
        "folder", type=Path, metavar="DIR",
        help="one entry per learner, named after the learner: a folder, a zip or a notebook",
    )  # fmt: skip
    grade.add_argument(
        "-o", "--out", type=Path, default=Path("class.html"), metavar="HTML",
        help="the page; the CSV is written next to it (class.html)",
    )  # fmt: skip
    grade.add_argument("--jobs", type=count, default=1, metavar="N", help="notebooks at a time (1)")
    grade.add_argument(
        "--time-limit", type=seconds, default=120.0, metavar="S",
        help="per exercise (120); in proportion more for one of over 20 minutes",
    )  # fmt: skip
    grade.add_argument("--memory", type=seconds, default=4.0, metavar="GIB", help="per process (4)")


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be more than 0 seconds")
    return value


def count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of 1 or more")
    return int(text)

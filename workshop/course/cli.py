"""The verbs of `rn50 workshop` and their flags; what each does stands in `commands`."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timedelta
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
        "try", help="run a parallel training script and tell what it does, with evidence",
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
    """What an instructor's class needs: the learners' copy, handing in, grading."""
    release = verbs.add_parser("release", help="write the learners' copy of the course")
    release.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    release.add_argument(
        "--no-solutions",
        action="store_true",
        required=True,
        help="leave the solutions out; hints and checks stay",
    )
    submit = verbs.add_parser("submit", help="pack your exercises into a zip to hand in")
    submit.add_argument("--name", help="yours (default: $RN50_LEARNER, else the account's)")
    submit.add_argument("-o", "--out", type=Path, metavar="ZIP", help="default: rn50-NAME.zip here")
    submit.add_argument(
        "--notebooks", type=Path, metavar="DIR", help="your notebooks (default: exercises/)"
    )
    export = verbs.add_parser("export", help="the exercises for a platform that grades them itself")
    export.add_argument(
        "platform", choices=("nbgrader", "gradescope"),
        help="a course folder of nbgrader, or the zip of an autograder for Gradescope",
    )  # fmt: skip
    export.add_argument("target", type=Path, metavar="PATH", help="a new folder, or a new zip")
    export.add_argument(
        "--points", type=Path, metavar="CSV", help="what each exercise is worth (points.csv)"
    )
    grade = verbs.add_parser("grade", help="grade what a class has handed in")
    grade.add_argument(
        "submissions", type=Path, nargs="+", metavar="SUBMISSIONS",
        help="a folder, or the zip of a class: LEARNER/ex03.ipynb, rn50-LEARNER.zip,"
        " ex03_LEARNER.ipynb, or as Moodle, Canvas, nbgrader and Gradescope write it",
    )  # fmt: skip
    grade.add_argument(
        "-o", "--out", type=Path, default=Path("class.html"), metavar="HTML",
        help="the page; class-marks.csv, class.csv, class-feedback/, points.csv and overrides.csv"
        " stand beside it",
    )  # fmt: skip
    grade.add_argument(
        "--points", type=Path, metavar="CSV", help="what each exercise is worth (points.csv)"
    )
    grade.add_argument(
        "--overrides", type=Path, metavar="CSV",
        help="points and remarks of yours for single learners (overrides.csv)",
    )  # fmt: skip
    grade.add_argument(
        "--due", type=moment, metavar="TIME",
        help="count days late from here: 2026-11-23, or 2026-11-23T18:00 with or without +01:00",
    )  # fmt: skip
    grade.add_argument(
        "--marks", action="append", default=[], choices=("moodle", "canvas", "gradescope"),
        help="write the marks as this platform takes them, too; may be given again",
    )  # fmt: skip
    grade.add_argument(
        "--roster", type=Path, metavar="CSV", help="the class (id,name,e-mail): a row for everybody"
    )
    grade.add_argument("--jobs", type=count, metavar="N", help="submissions at a time (all cores)")
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


def moment(text: str) -> datetime:
    """A time, of this machine's time zone where none is given; a day alone is meant to its end."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2026-11-23T18:00") from None
    return (when + timedelta(days=len(text) == len("2026-11-23"))).astimezone()


def count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of 1 or more")
    return int(text)

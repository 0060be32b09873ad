"""The command line of every program: its parser, the converters of arguments, and its output."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import math
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rn50lib.files import FULL, escape_unprintable


def positive(text: str, low: int = 1, high: int | None = None) -> int:
    """Return a whole number from `low` to `high`."""
    value = int(text)
    if value < low or (high is not None and value > high):
        raise ValueError(f"must be at least {low}" if high is None else f"must be {low} to {high}")
    return value


def finite(text: str) -> float:
    """Return a number that is neither NaN nor infinite."""
    if not math.isfinite(value := float(text)):
        raise ValueError("must be a finite number")
    return value


def filled(text: str) -> str:
    """Return a text. Raise ValueError if it is empty: `"$NAME"` is if NAME is not set."""
    if not text.strip():
        raise ValueError("must be a text that is not empty")
    return text


def converter(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return `read` for argparse, with its ValueError's text in the message."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            must_be = str(error)
            if not must_be.startswith("must be"):  # it is Python's own message
                must_be = "must be a whole number" if "int()" in must_be else "must be a number"
            raise argparse.ArgumentTypeError(f"{text!r} {must_be}") from error

    return convert


def whole(low: int = 1, high: int | None = None) -> Callable[[str], int]:
    """Return the argparse type of a whole number from `low` to `high`."""
    return converter(partial(positive, low=low, high=high))


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line and suggests the closest flag.

    With it `type=int` is a whole number from 0, and `type=float` a finite number; a path, and a
    text without a type, must not be empty (`type=str` may be).
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        readers: dict[Any, Callable[[str], Any]]
        readers = {int: partial(positive, low=0), float: finite, None: filled}
        readers[Path] = lambda text: Path(filled(text))
        for kind, read in readers.items():
            self.register("type", kind, converter(read))

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr and exit with status 2."""
        if message.startswith("unrecognized arguments: "):
            unknown = message.split(": ", 1)[1].split()[0]
            message = f"unknown flag or argument {unknown}: {self.suggest(unknown.split('=')[0])}"
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file or sys.stdout)  # Python 3.12 ignores errors

    def suggest(self, unknown: str) -> str:
        """Return what to pass instead of an unknown flag."""
        known = [name for action in self._actions for name in action.option_strings]
        bare = {name.lstrip("-"): name for name in known}
        word = unknown.lstrip("-")
        close = difflib.get_close_matches(word, bare, n=1, cutoff=0.8)
        close = close or [name for name in bare if len(word) > 3 and name.startswith(word)]
        return f"did you mean {bare[close[0]]}?" if close else f"see {self.help_command}"

    @property
    def help_command(self) -> str:
        return f"`{self.prog} --help`"


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """Run a whole program and flush what it printed.

    Raises SystemExit: after one line if a disk is full, with status 141 if a pipe was closed.
    """
    escape_unprintable()
    try:
        try:
            yield
        finally:
            if sys.stdout:  # None if it was closed before the start
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in (*FULL, errno.EPIPE):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python tries again at its end
        if error.errno == errno.EPIPE:  # `| head` has ended
            raise SystemExit(141) from error
        name = error.filename or "standard output"  # which has no name if it is unbuffered
        print(f"error: {name} cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from error

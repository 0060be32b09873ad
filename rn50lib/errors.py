"""The exception for bad input, and the parser and converters of every command."""

from __future__ import annotations

import argparse
import difflib
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

TERMINATED = 143  # the exit status after SIGTERM: 128 + its number, as a shell says


REMEDIES: dict[str, Callable[..., str]] = {}
"""What to run against an error, by the key that the library gives: only a command knows."""

Remedy = Sequence[object]  # a key of REMEDIES, and the arguments of its function


class UserError(Exception):
    """Bad input: the message names the file, record or flag and says what to do about it.

    The command line prints it as one line, ``error: ...``, and exits with status 2. The sentence of
    a `remedy` ends the message if a command has registered it.
    """

    def __init__(self, message: str, remedy: Remedy = ()) -> None:
        super().__init__(message)
        self.remedy = tuple(map(str, remedy))

    def __str__(self) -> str:
        message, (key, *words) = self.args[0], self.remedy or ("",)
        return f"{message}; {REMEDIES[key](*words)}" if key in REMEDIES else message


def expected(error: BaseException) -> UserError | None:
    """Return the error to print in one line instead of a traceback; None for a fault of ours."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("rn50"):
        return UserError(str(error), ("setup",))
    # PyTorch on the CPU raises a plain RuntimeError if memory runs out
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        text = str(error).partition("DefaultCPUAllocator: ")[2] or str(error) or "allocation failed"
        line = text.splitlines()[0]
        return UserError(f"out of memory ({line}): use a smaller -b or --image-shape")
    return None


def status_of(work: Callable[[], int]) -> int:
    """Do the work and return its exit status; print one line for an expected error."""
    try:
        return work()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if (line := expected(error)) is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        return 2


def as_command(*words: object) -> str:
    """Return a command for a message, in backquotes, as a shell takes it."""
    return f"`{shlex.join(map(str, words))}`"


def first_line(error: BaseException) -> str:
    """Return the first line of a framework's error message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"[:200]


def first_names(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are; "none" if there are none."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


def memory_full(batch: int, accumulates: bool) -> UserError:
    """Return the error for a full device memory, which names half of the batch size.

    `accumulates` says whether the updates can stay as large.
    """
    fits, problem = batch // 2, f"--batch-size {batch}: the device's memory is full"
    if fits < 1:
        return UserError(f"{problem}: not even one image fits; use a smaller --image-shape")
    more = f"; with --macrobatch-size {batch // fits * fits} the updates stay about as large"
    return UserError(f"{problem}: use -b {fits}{more if accumulates else ''}")


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

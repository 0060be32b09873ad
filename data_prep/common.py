"""Shared parts of the data preparation programs: errors as one line, free space, and progress."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from tqdm import tqdm

from data_prep import remedies  # noqa: F401 - registers what to run against an error
from data_prep.command_line import whole_output
from rn50lib import lifetime
from rn50lib.errors import TERMINATED, UserError, status_of
from rn50lib.files import format_bytes


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Run a program's ``main`` and exit with its status; bad input is one line on stderr, status 2.

    SIGTERM becomes an exception first, so that unfinished files are removed.
    """

    def work() -> int:
        with refuse_denied():
            return main() or 0

    def status() -> int:
        with whole_output():
            try:
                code = status_of(work)
            except Exception:
                if not lifetime.terminated:
                    raise
        return TERMINATED if lifetime.terminated else code

    lifetime.end_on_sigterm()
    lifetime.end_with(status)


@contextlib.contextmanager
def refuse_denied() -> Iterator[None]:
    """Raise UserError if the system refuses access to a file, or memory runs out."""
    try:
        yield
    except MemoryError as error:
        raise UserError("out of memory: end other programs, or use fewer processes") from error
    except OSError as error:
        if not error.filename:  # of the output: `whole_output`'s
            raise
        raise UserError(f"{error.filename}: {error.strerror}") from error


def check_room(folder: str | os.PathLike, needed: int, what: str) -> None:
    """Raise UserError before any work if ``needed`` bytes do not fit on the disk of ``folder``."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{os.fspath(folder)}: {what} needs {format_bytes(needed)}, but {format_bytes(free)} "
            "are free on this disk; make room, or write to another one"
        )


class Progress(tqdm):
    """A progress bar on stderr: on a terminal at once, in a log after 2 and every 30 seconds.

    ``unit`` is the plural of what is counted. ``quiet`` shows nothing.
    """

    _lock = threading.RLock()  # without fork, Python would report tqdm's own semaphore as leaked

    def __init__(self, total: int, what: str, unit: str = "images", quiet: bool = False) -> None:
        pace = {} if sys.stderr.isatty() else {"delay": 2, "mininterval": 30}
        super().__init__(total=total, desc=what, unit=f" {unit}", disable=quiet, **pace)
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._start, 1e-9)

    def took(self, count: int) -> str:
        """Return "12.3 s (45 images/s)" for a number of images since the start."""
        return f"{self.seconds:.1f} s ({count / self.seconds:,.0f} images/s)"

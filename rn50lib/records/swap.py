"""A folder of outputs that appears whole: filled as `NAME.part`, then put in the place of the old
one.

A run that was killed finds what it had finished and goes on from there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError

STAMP = ".made-from"
COMPLETE = ".complete"


class OutputFolder:
    """A context manager that gives the folder to fill (``part``) and at its end puts it in place.

    ``stamp`` says what the folder is made from, as JSON can hold it. If a killed or failed run left
    a part with the same stamp, its files stay there to be used again (``resumed`` is True); files
    are to be written under other names and renamed when they are whole. An error keeps the part.

    Raises UserError if another process fills the same folder.
    """

    def __init__(self, path: str | os.PathLike, stamp: Any) -> None:
        self.path = Path(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.stamp = json.dumps(stamp, sort_keys=True)
        self.resumed = False
        self._lock = -1

    def is_complete(self) -> bool:
        """Whether the folder is in place and made from the same."""
        finish_swap(self.path)
        marker = self.path / COMPLETE
        return marker.exists() and marker.read_text() == self.stamp + "\n"

    def __enter__(self) -> OutputFolder:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        finish_swap(self.path)
        self._lock = self._lock_part()
        stamp = self.part / STAMP
        self.resumed = stamp.exists() and stamp.read_text() == self.stamp
        if not self.resumed:
            for entry in self.part.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            stamp.write_text(self.stamp)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                _sync(self.part)
                draft = self.part / (COMPLETE + ".part")
                draft.write_text(self.stamp + "\n")
                _sync(draft)
                os.replace(draft, self.part / COMPLETE)
                _sync(self.part)
                finish_swap(self.path)
        finally:
            os.close(self._lock)

    def _lock_part(self) -> int:
        """Hold the part by a lock that ends with this process; it goes along when it is renamed."""
        while True:
            self.part.mkdir(exist_ok=True)
            descriptor = os.open(self.part, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise UserError(
                    f"{self.path}: another process is writing this folder just now; wait until it "
                    "has finished"
                ) from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.part), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)


def finish_swap(path: str | os.PathLike) -> None:
    """Finish what a killed process had begun: put a complete part in place, remove the old folder.

    Called by every writer and reader of the folder.
    """
    path = Path(path)
    part, old = path.with_name(path.name + ".part"), path.with_name(path.name + ".old")
    if (part / COMPLETE).exists():
        with contextlib.suppress(FileNotFoundError):  # another process finishes it as well
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)
                os.rename(path, old)
            os.rename(part, path)
        _sync(path.parent)
    elif old.exists() and not path.exists():
        os.rename(old, path)
    if old.exists() and path.exists():
        shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

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
from rn50lib.files import sync, write_file

STAMP = ".made-from"
COMPLETE = ".complete"


class OutputFolder:
    """A context manager that gives the folder to fill (``part``) and at its end puts it in place.

    ``stamp`` says what the folder is made from, as JSON can hold it. If a killed or failed run left
    a part with the same stamp, its files stay there to be used again (``resumed`` is True); files
    are to be written under other names and renamed when they are whole. An error keeps a part that
    holds any.

    Raises UserError if another process fills the same folder.
    """

    def __init__(self, path: str | os.PathLike, stamp: Any) -> None:
        self.path = followed(path)
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
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: this is no folder; name another place")
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
                sync(self.part)
                write_file(self.part / COMPLETE, self.stamp + "\n")
                finish_swap(self.path)
            elif not self.has_files():
                shutil.rmtree(self.part, ignore_errors=True)
        finally:
            os.close(self._lock)

    def has_files(self) -> bool:
        """Whether there is anything in the part that a later run could go on from."""
        return any(entry.is_file() and entry.name != STAMP for entry in self.part.rglob("*"))

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


def followed(path: str | os.PathLike) -> Path:
    """The folder itself where `path` is a symlink to it, so that the link stays."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def finish_swap(path: str | os.PathLike) -> None:
    """Finish what a killed process had begun: put a complete part in place, remove the old folder.

    Called by every writer and reader of the folder.
    """
    path = followed(path)
    part, old = path.with_name(path.name + ".part"), path.with_name(path.name + ".old")
    if (part / COMPLETE).exists():
        with contextlib.suppress(FileNotFoundError):  # another process finishes it as well
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)
                os.rename(path, old)
            os.rename(part, path)
        sync(path.parent)
    elif old.exists() and not path.exists():
        os.rename(old, path)
    if old.exists() and path.exists():
        shutil.rmtree(old, ignore_errors=True)

"""Outputs that appear whole: several files at once, or a folder that a later run can go on with."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rn50lib.errors import UserError
from rn50lib.files import FULL, check_file, replacing, sync

STAMP = ".made-from"
COMPLETE = ".complete"
BUFFER_BYTES = 64 << 10
"""Bytes in one call of the system. Measured on Linux 6.18 and ext4, which takes large pieces of
memory for large writes: 400 MB cost 0.1 s in pieces of 64 KB, and 0.4 to 1.0 s in larger ones."""


@contextlib.contextmanager
def new_files(*paths: str | os.PathLike) -> Iterator[list[BinaryIO]]:
    """New files that take the places of ``paths`` when the block ends well; see
    ``rn50lib.files.replacing``.

    Raises UserError if the folder is missing or cannot be written to, or if the disk becomes full.
    """
    targets = [Path(path) for path in paths]
    folder, first = targets[0].parent, targets[0].name
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder to write {first} to")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder}: cannot write there (no permission)")
    try:
        with contextlib.ExitStack() as stack:
            drafts = []
            for target in targets:
                check_file(target)
                _remove_drafts(target)
                drafts.append(stack.enter_context(replacing(target)))
            # opened after all of them, so that all are closed before the first is put in place
            yield [stack.enter_context(open(draft, "wb", BUFFER_BYTES)) for draft in drafts]
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"{folder}: the disk is full, so {first} was not written; what was there before is "
            "untouched. Make room and run the command again"
        ) from error


def _remove_drafts(target: Path) -> None:
    """Remove what killed processes had written of a file: of a record file that may be much."""
    pattern = re.compile(rf"\.{re.escape(target.stem)}\.(\d+)\.tmp{re.escape(target.suffix)}")
    for name in os.listdir(target.parent):
        match = pattern.fullmatch(name)
        if match and not Path("/proc", match[1]).exists():
            target.with_name(name).unlink(missing_ok=True)


class OutputFolder:
    """A context manager that gives the folder to fill (``part``) and at its end puts it in place.

    ``stamp`` says what the folder is made from, as JSON can hold it. If a killed or failed run left
    a part with the same stamp, its files stay there to be used again (``resumed`` is True); files
    are to be written under other names and renamed when they are whole. An error keeps a part that
    holds any.

    If another process fills the same folder, that raises UserError; or, with ``wait``, its end is
    awaited, and ``finished`` is True where it has made the same: then there is nothing to do.
    """

    def __init__(self, path: str | os.PathLike, stamp: Any, wait: bool = False) -> None:
        self.path = _followed(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.stamp = json.dumps(stamp, sort_keys=True) + "\n"
        self.wait = wait
        self.resumed = self.finished = False
        self._lock = -1

    def is_complete(self) -> bool:
        """Whether the folder is in place and made from the same."""
        finish_swap(self.path)
        mark = self.path / COMPLETE
        return mark.exists() and mark.read_text() == self.stamp

    def __enter__(self) -> OutputFolder:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: this is a file; name a folder to write to")
        if self.path.is_mount():
            raise UserError(f"{self.path}: this is a mount point; name a folder below it")
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
            if kind is None and not self.finished:
                os.replace(self.part / STAMP, self.part / COMPLETE)
                sync(self.part)
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
                if not self.wait:
                    os.close(descriptor)
                    raise UserError(
                        f"{self.path}: another process is writing this folder just now; wait until "
                        "it has finished"
                    ) from None
                message = f"{self.path}: another process is writing this folder; waiting for it"
                print(message, file=sys.stderr, flush=True)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self.finished = self.is_complete()
            # The other process has renamed or removed what it held.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.part), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)


def _followed(path: str | os.PathLike) -> Path:
    """The folder itself where `path` is a symlink to it, so that the link stays."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def finish_swap(path: str | os.PathLike) -> None:
    """Finish what a killed process had begun: put a complete part in place, remove the old folder.

    Called by every writer and reader of the folder.
    """
    path = _followed(path)
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

"""Outputs that appear whole: several files at once, or a folder that a later run can continue."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rn50lib.data.recordio import MAGIC_BYTES
from rn50lib.errors import UserError
from rn50lib.files import (
    FULL,
    check_output,
    is_stream,
    lock_open,
    make_folder,
    replacing,
    sync,
)
from rn50lib.lifetime import is_running

STAMP = ".made-from"
COMPLETE = ".complete"
BUFFER_BYTES = 64 << 10
"""Bytes per write. On ext4, 400 MB took 0.1 s so, and 0.4 to 1.0 s in larger writes."""


def _is_table(path: Path) -> bool:
    """Return True if a file's first line begins with a number, as those of our tables do."""
    with open(path, "rb") as file:
        return file.readline(80).split(b"\t")[0].isdigit()


def _is_record_file(path: Path) -> bool:
    """Return True if a file begins like a record, or has an index, as a damaged one does."""
    with open(path, "rb") as file:
        return file.read(4) == MAGIC_BYTES or path.with_suffix(".idx").exists()


KINDS: dict[str, tuple[str, Callable[[Path], bool]]] = {
    ".rec": ("a record file", _is_record_file),
    ".idx": ("an index", _is_table),
    ".crc": ("a list of checksums", _is_table),
    ".lst": ("a list of images", _is_table),
}


def check_file(path: str | Path) -> None:
    """Raise UserError if `path` exists and is not a regular file."""
    if Path(path).is_dir() or is_stream(path):
        raise UserError(
            f"{path} is not a regular file (a folder, a device or a FIFO): remove it, or name"
            " another place"
        )


@contextlib.contextmanager
def new_files(*paths: str | os.PathLike) -> Iterator[list[BinaryIO]]:
    """Open new files that replace ``paths`` if the block succeeds; see ``rn50lib.files.replacing``.

    Raises UserError if the folder cannot be written to, if a file there is of a different kind than
    its name says, or if the disk is full.
    """
    targets = [Path(path) for path in paths]
    try:
        with contextlib.ExitStack() as held, contextlib.ExitStack() as stack:
            drafts = []
            for target in targets:
                check_file(target)
                check_output(target, "the output", *KINDS[target.suffix])
                _remove_drafts(target)
                drafts.append(stack.enter_context(replacing(target)))
                lock = held.enter_context(open(drafts[-1], "wb"))  # until it is in place
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(lock, fcntl.LOCK_EX)
            # Opened last, so that all are closed before the first is put in place.
            yield [stack.enter_context(open(draft, "wb", BUFFER_BYTES)) for draft in drafts]
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"{targets[0].parent}: the disk is full, so {targets[0].name} was not written; an"
            " earlier one is untouched. Make room and run the command again"
        ) from error


def _remove_drafts(target: Path) -> None:
    """Remove the drafts of killed processes: those of a record file may be large.

    A process in another container or on another host is not in /proc, but holds a lock.
    """
    pattern = re.compile(rf"\.{re.escape(target.stem)}\.(\d+)-\w+\.tmp{re.escape(target.suffix)}")
    for name in os.listdir(target.parent):
        match = pattern.fullmatch(name)
        if match and not is_running(int(match[1])):
            draft = target.with_name(name)
            with contextlib.suppress(OSError):  # it has been removed, or is not a file
                # NFS locks only what is open for writing; a pipe would wait, a link lead elsewhere
                opened = os.open(draft, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held, or no locks here
                    draft.unlink()
                finally:
                    os.close(opened)


def refuse_others(out: Path, is_ours: Callable[[str], object] = lambda name: False) -> None:
    """Raise UserError if a folder that will be replaced as a whole holds files of others.

    `is_ours` tells them by their names in a folder that was completed here; without it, all are.
    """
    finish_swap(out)
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out}: this is a file; name a folder to write to")
    made_here = (out / COMPLETE).exists()
    for name in sorted(os.listdir(out)):
        if not (made_here and is_ours(name)):
            raise UserError(
                f"{out / name}: the output folder is replaced as a whole, and this was not made by"
                " this program; choose another folder, or move it away"
            )


class OutputFolder:
    """A context manager with a folder to fill, ``part``, that takes its place at the end.

    ``stamp`` identifies, as JSON, what the folder is made from. If a killed or failed run left a
    part with the same stamp, its files are kept (``resumed`` is True), so write files under other
    names and rename them when they are whole. An error keeps a part that holds files.

    If another process fills the same folder, that raises UserError. With ``wait`` this one waits
    instead, and ``finished`` is True if the other has made the same: nothing is left to do.
    """

    def __init__(self, path: str | os.PathLike[str], stamp: Any, wait: bool = False) -> None:
        finish_swap(path)
        if os.path.islink(path) and not os.path.exists(path):
            raise UserError(
                f"{os.fspath(path)}: this link leads to {os.readlink(path)}, which is missing:"
                " mount or make that folder, or remove the link"
            )
        self.path = _followed(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.stamp = json.dumps(stamp, sort_keys=True) + "\n"
        self.wait = wait
        self.resumed = self.finished = False
        self._lock = -1

    def is_complete(self) -> bool:
        """Return True if the folder is in place and has the same stamp."""
        finish_swap(self.path)
        mark = self.path / COMPLETE
        return mark.exists() and mark.read_text() == self.stamp

    def __enter__(self) -> OutputFolder:
        if self.path.is_mount():
            raise UserError(f"{self.path}: this is a mount point; name a folder below it")
        with contextlib.suppress(FileNotFoundError):  # the working directory is gone
            if Path.cwd().is_relative_to(self.path.resolve()):
                raise UserError(
                    f"{self.path}: the working directory is in this folder, which is replaced as a"
                    " whole; run the command from elsewhere"
                )
        make_folder(self.path.parent, str(self.path))
        finish_swap(self.path)
        self._lock = self._lock_part()
        stamp = self.part / STAMP
        self.resumed = stamp.exists() and stamp.read_text() == self.stamp
        if not self.resumed:
            entries = [entry for entry in self.part.iterdir() if entry != stamp]
            if entries and not stamp.exists():
                os.close(self._lock)
                raise UserError(
                    f"{self.part}: this was not made by this program, which writes there before it"
                    " renames the folder; move it away"
                )
            for entry in entries:  # the old stamp stays until they are gone
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            stamp.write_text(self.stamp)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None and not self.finished:
                os.sync()  # all files at once: else a power cut may leave empty ones in place
                os.replace(self.part / STAMP, self.part / COMPLETE)
                sync(self.part)
                finish_swap(self.path)
            elif not self.has_files():
                shutil.rmtree(self.part, ignore_errors=True)
        finally:
            os.close(self._lock)

    def has_files(self) -> bool:
        """Return True if the part holds files that a later run could use."""
        return any(entry.is_file() and entry.name != STAMP for entry in self.part.rglob("*"))

    def _lock_part(self) -> int:
        """Lock the part. The lock ends with this process, and stays when the part is renamed."""
        while True:
            self.part.mkdir(exist_ok=True)
            descriptor = os.open(self.part, os.O_RDONLY)
            if not lock_open(descriptor, self.part, wait=False):
                if not self.wait:
                    os.close(descriptor)
                    raise UserError(
                        f"{self.path}: another process is writing this folder; wait until it "
                        "has finished"
                    )
                message = f"{self.path}: another process is writing this folder; waiting for it"
                print(message, file=sys.stderr, flush=True)
                lock_open(descriptor, self.part)
                self.finished = self.is_complete()
            # The other process has renamed or removed what it held.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.part), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)


def _followed(path: str | os.PathLike) -> Path:
    """Return the folder itself if `path` is a symlink to it, so that the link stays."""
    nameless = Path(path).name in ("", "..")  # `.` and `..`
    return Path(os.path.realpath(path)) if nameless or os.path.islink(path) else Path(path)


def finish_swap(path: str | os.PathLike) -> None:
    """Finish a killed process's swap: put a complete part in place, remove the old folder.

    Every writer and reader of the folder calls this first.
    """
    path = _followed(path)
    # NAME.old is what people call their own copies
    part, old = path.with_name(path.name + ".part"), path.with_name(f".{path.name}.replaced")
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

"""Output files that appear together or not at all: written beside as `NAME.part`, synced, then
renamed.

A kill at any moment leaves the old files whole, or a note by which the renaming is finished later.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from rn50lib.errors import UserError
from rn50lib.files import FULL, check_file, sync


def part_of(path: Path) -> Path:
    """Where an output stands until it is complete."""
    return path.with_name(path.name + ".part")


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + ".renaming")


class OutputSet:
    """A context manager that opens one new file for each path and puts all of them in place at its
    end.

    ``files`` holds the open binary files (unbuffered) in the order of the paths. If the block
    raises, the new files are removed and whatever was there before stays as it was. The first path
    names the set: its lock keeps a second writer out, and its note remembers a renaming that has
    begun.

    Raises UserError if another process is writing the same set, if the folder is missing or cannot
    be written to, or if the disk becomes full.
    """

    def __init__(self, *paths: str | os.PathLike, fsync: bool = True) -> None:
        self.paths = [Path(path) for path in paths]
        self.fsync = fsync
        self.files: list[io.FileIO] = []

    def __enter__(self) -> OutputSet:
        folder = self.paths[0].parent
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder to write {self.paths[0].name} to")
        for path in self.paths:
            refuse(path)
        try:
            with _signals_wait():
                finish_renaming(self.paths[0])
                for path in self.paths:
                    self.files.append(_open_locked(path))
        except OSError as error:
            self._discard()
            raise UserError(f"{folder}: cannot write there ({error.strerror})") from error
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._publish()
        except BaseException as failed:
            error = failed
        if error is None:
            return
        self._discard()
        if isinstance(error, OSError) and error.errno in FULL:
            raise UserError(
                f"{self.paths[0].parent}: the disk is full, so {self.paths[0].name} was not "
                "written; what was there before is untouched. Make room and run the command again"
            ) from error
        if kind is None:
            raise error

    def _publish(self) -> None:
        for file in self.files:
            if self.fsync:
                os.fsync(file.fileno())
        with _signals_wait():
            note = _note_of(self.paths[0])
            draft = part_of(note)
            draft.write_text(json.dumps([path.name for path in self.paths]))
            if self.fsync:
                sync(draft)
            os.replace(draft, note)
            finish_renaming(self.paths[0], fsync=self.fsync)
            for file in self.files:
                file.close()

    def _discard(self) -> None:
        """Remove the parts that were opened, unless their renaming has begun."""
        with _signals_wait():
            note = _note_of(self.paths[0])
            opened = zip(self.paths, self.files, strict=False)
            paths = [path for path, file in opened if not file.closed]
            if paths and not note.exists():
                for path in (*paths, note):
                    with contextlib.suppress(OSError):
                        part_of(path).unlink()
            for file in self.files:
                file.close()


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Hold back Ctrl-C and termination until the block has ended.

    Where a signal raises an exception, it could do so between the making of a file and the noting
    of it, and the file would stay behind. Python calls its handlers in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None is a handler that C code has set, which Python cannot put back.
    handlers = {n: h for n, h in handlers.items() if h not in (None, signal.SIG_IGN)}
    try:
        for name in handlers:
            signal.signal(name, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for arrived in dict.fromkeys(came):
            signal.raise_signal(arrived)


def finish_renaming(first: str | os.PathLike, fsync: bool = True) -> bool:
    """Finish what a killed process had begun to rename; True if there was anything to finish.

    ``first`` is the first path of the set. Called by every writer and reader of the set, so that no
    one sees a new file beside an old one.
    """
    first = Path(first)
    note = _note_of(first)
    try:
        names = json.loads(note.read_text())
    except FileNotFoundError:
        return False
    for name in names:
        final = first.with_name(Path(name).name)
        with contextlib.suppress(FileNotFoundError):
            os.replace(part_of(final), final)
    if fsync:
        sync(first.parent)
    with contextlib.suppress(FileNotFoundError):
        note.unlink()
    return True


def refuse(path: Path) -> None:
    """Raise UserError for what a renaming would put away: a set lies in one folder, so that it
    cannot be written through a symlink."""
    check_file(path)
    if path.is_symlink():
        raise UserError(
            f"{path} is a link to {os.path.realpath(path)}: name that, or remove the link"
        )


def _open_locked(path: Path) -> io.FileIO:
    """Open and empty `NAME.part`, held by a lock that ends with this process, however it ends."""
    part = part_of(path)
    while True:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(
                f"{path}: another process is writing this file just now; wait until it has finished"
            ) from None
        # Between opening and locking, the other writer may have finished and renamed the file.
        with contextlib.suppress(FileNotFoundError):
            status = os.fstat(descriptor)
            if os.path.samestat(os.stat(part), status):
                if status.st_size:  # ext4 flushes a file at its closing that was once truncated
                    os.ftruncate(descriptor, 0)
                return io.FileIO(descriptor, "w")
        os.close(descriptor)

"""Files that a user names: read as JSON, looked at before long work, written whole or not at all.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from rn50lib.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, or a limit that is reached
DESCRIPTORS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")  # an open file's other name


def read_json(path: str | Path) -> Any:
    """The content of a JSON file. Raises OSError, or ValueError where it is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None


def is_stream(path: str | Path) -> bool:
    """Whether `path` is written into as it is, because it is no file to be replaced: a FIFO, a
    device such as /dev/null, or a name of what this process has open, such as /dev/stdout."""
    if os.fspath(Path(path).absolute()).startswith(DESCRIPTORS):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def check_writable(path: str | Path, flag: str) -> None:
    """Raise UserError now, not after an hour of work, where a file cannot be written."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{flag} {path} cannot be written: it is a folder; name a file in it")
    if path.is_block_device():
        raise UserError(f"{flag} {path} cannot be written: it is a disk; name a file")
    if not is_stream(path):
        make_folder(Path(os.path.realpath(path)).parent, f"{flag} {path}")
    elif not path.exists():
        raise UserError(f"{flag} {path} cannot be written: it is not open here; name a file")
    elif not os.access(path, os.W_OK):
        raise UserError(f"{flag} {path} cannot be written (no permission): name another file")


def check_output(path: str | Path, flag: str, kind: str, is_kind: Callable[[Path], bool]) -> None:
    """Check that an output can be written without losing anything that is not its earlier version.

    Args:
        path: The file. If it exists and is not empty, ``is_kind(path)`` must be true.
        flag: The flag that names it, for the message.
        kind: What the flag writes, for the message, such as "a report".
        is_kind: Whether a file is an earlier output of the same kind.

    Raises:
        UserError: The file cannot be written, or it holds something else.
    """
    check_writable(path, flag)
    path = Path(path)
    if path.exists() and not is_stream(path) and path.stat().st_size and not is_kind(path):
        raise UserError(f"{flag} {path} exists and is not {kind}: name another file, or remove it")


def check_file(path: str | Path, name: str | None = None) -> None:
    """Raise UserError, which begins with `name`, where something is at `path` that is no file: what
    must be read again cannot stand in a device, and opening a FIFO waits for its other end."""
    if Path(path).is_dir() or is_stream(path):
        raise UserError(
            f"{name or path} is no regular file (a folder, a device or a FIFO): remove it, or name"
            " another place"
        )


def make_folder(folder: Path, name: str) -> None:
    """Make a folder, if it is not there. Raises UserError, which begins with `name`, where that
    cannot be, or where nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        why = "a file is in the way"
    except OSError as error:
        why = error.strerror or str(error)
    else:
        if os.access(folder, os.W_OK):
            return
        why = "no permission"
    raise UserError(f"{name} cannot be written ({why}): name a place that you may write to")


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path of the same suffix to write to; what stands there takes the place of `path` when the
    block ends well, and goes away otherwise. At any moment the old or the new file is there, whole.

    A symlink is followed, and a file that is there keeps its owner and its permissions. What is no
    regular file, a FIFO or /dev/null, is never replaced: the content is written into it. Raises
    OSError.
    """
    path = Path(path)
    if path.is_block_device():
        raise OSError(errno.EINVAL, "it is a disk, not a file", str(path))
    if is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder, path.name)
            yield draft
            # Appended: where standard output goes into a file, that keeps what it has.
            with open(draft, "rb") as source, open(path, "ab") as stream:
                shutil.copyfileobj(source, stream)
        return
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        with contextlib.suppress(FileNotFoundError):
            keep_owner(target.stat(), draft)
        sync(draft)
        os.replace(draft, target)
        sync(target.parent)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def keep_owner(old: os.stat_result, draft: Path) -> None:
    """Give a draft the permissions of the file that it is to replace, and its owner where one
    may."""
    new = draft.stat()
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        with contextlib.suppress(OSError):
            os.chown(draft, old.st_uid, old.st_gid)
    draft.chmod(stat.S_IMODE(old.st_mode) & 0o777)


def sync(path: Path) -> None:
    """Return when a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: str | Path, content: bytes | str) -> None:
    """Write a file as `replacing` does; text as UTF-8. Raises OSError."""
    with replacing(path) as draft:
        with open(draft, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def lock(path: Path, name: str) -> Iterator[None]:
    """Hold the lock of what `name` says for the block; it ends with this process, however it ends.

    The file at `path` says who has it, and goes away in the end. Raises UserError where another
    process has the lock; where the filesystem has no locks, that is said, and nothing is held.
    """
    file = take_lock(path, name)
    try:
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                path.unlink()
            file.close()


def take_lock(path: Path, name: str) -> TextIO | None:
    """The open file behind a lock that is held; see `lock`.

    The lock is the process's own (lockf): children that outlive it, a loader's, hold nothing.
    """
    while True:
        try:
            file = open(path, "a+")
        except OSError as error:
            raise UserError(
                f"{name} cannot be written ({error.strerror}): name a place that you may write to"
            ) from error
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder: dict[str, Any] = {}
            with file, contextlib.suppress(ValueError):  # its owner has written nothing yet
                file.seek(0)
                holder = json.load(file)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                text = f"note: {name} is not locked ({error.strerror}): start no other run with it"
                print(text, file=sys.stderr, flush=True)
                return None
            raise UserError(
                f"{name}: another run is writing there (process {holder.get('pid', 'unknown')} on"
                f" {holder.get('host', 'an unknown host')}): wait for its end, or name another"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                file.truncate(0)
                holder = {"pid": os.getpid(), "host": socket.gethostname()}
                with contextlib.suppress(OSError):  # a full disk: the lock holds without its text
                    os.write(file.fileno(), json.dumps(holder).encode())
                return file
        file.close()  # its owner removed it between our opening and our locking it


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """For a program's whole work: standard streams that are closed become /dev/null, so that no
    file that is opened later takes their place, and what was printed has arrived when it ends.
    Raises SystemExit, after one line, where a disk is full and nobody else has said so."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))
    try:
        yield
    except OSError as error:
        flush_output(error)
        if error.errno not in FULL:
            raise
        name = error.filename or "standard output"  # which names no file, where it is unbuffered
        print(f"error: {name} cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from error
    except BaseException:
        flush_output()
        raise
    flush_output()


def flush_output(cause: OSError | None = None) -> None:
    """Write out what was printed; raises SystemExit where that cannot be."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python tries again at its end
        if isinstance(error, BrokenPipeError):  # `| head` has seen enough
            raise SystemExit(141) from cause
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from cause

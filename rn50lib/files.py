"""Files that a user names: checked before long work, and written whole or not at all.

Symlinks are followed. A device such as /dev/stdout is written to, never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError

NAMES = "surrogateescape"  # how Python reads bytes in a file's name that are not UTF-8
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, or a limit that is reached
# how a file system refuses what it does not offer: locks, waiting for a folder, mapping a file
UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)
Content = bytes | str | Callable[[Path], object]  # a function writes to the path that it gets
UNWRITABLE = "{} cannot be written ({}): name a place that you may write to"
LOCK_S = 5.0  # how long a lock is waited for: the workers of a killed run need a moment
DEVICES = ("/dev/std", "/dev/fd/", "/proc/")  # these may be links to a regular file


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file. Raises OSError or ValueError."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(str(error)) from None


def load_json(path: str | Path) -> Any:
    """Return the content of a JSON file that the user names. Raises UserError."""
    try:
        return read_json(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {' '.join(str(error).split())}") from error


def cache_folder() -> Path:
    """Return the user's folder for what need not be computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rn50")


def is_stream(path: str | Path) -> bool:
    """Return True for a device or anything else that is neither a regular file nor a folder."""
    path = Path(path)
    named = str(path.absolute()).startswith(DEVICES)
    return named or (path.exists() and not path.is_file() and not path.is_dir())


def check_output(path: str | Path, flag: str, kind: str, is_kind: Callable[[Path], bool]) -> None:
    """Raise UserError if an output cannot be written or would replace a file of a different kind.

    Its folder need not exist yet. `kind`, such as "a report", is for the message; `is_kind` returns
    True for a file that may be replaced, and False or OSError or ValueError for others.
    """
    path = Path(path)
    if str(path) == "-":
        raise UserError(f"{flag} -: use /dev/stdout for standard output")
    if path.is_dir() or path.is_block_device():
        why = "it is a folder" if path.is_dir() else "it is a disk"
        raise UserError(f"{flag} {path} cannot be written: {why}; name a file")
    if is_stream(path):
        return
    check_folder(Path(os.path.realpath(path)).parent, f"{flag} {path}")
    if not path.exists() or not path.stat().st_size:
        return
    try:
        if is_kind(path):
            return
    except (OSError, ValueError):  # it cannot be read, or not as this kind
        pass
    raise UserError(f"{flag} {path} exists and is not {kind}: name another file, or remove it")


def check_folder(folder: Path, name: str) -> None:
    """Raise UserError, beginning with `name`, if a folder is not writable, or cannot be made."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "no permission, or read-only" if folder.is_dir() else "a file is in the way"
        if folder.is_symlink() and not folder.exists():
            why = f"{folder} is a link to {os.readlink(folder)}, which is missing"
        raise UserError(UNWRITABLE.format(name, why))


def make_folder(folder: Path, name: str) -> None:
    """Create a folder if needed. Raises UserError, beginning with `name`, if it is not writable."""
    check_folder(folder, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(UNWRITABLE.format(name, error.strerror)) from error


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to, of the same suffix; it replaces `path` if the block succeeds.

    At any moment the old or the new file is there, whole; permissions are kept. A device is written
    to instead. Raises OSError.
    """
    path = Path(path)
    if is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder, path.name)
            yield draft
            with open(draft, "rb") as source, open(path, "ab") as stream:
                shutil.copyfileobj(source, stream)
        return
    target = Path(os.path.realpath(path))
    # two containers that share a folder have the same numbers of processes; and a name that others
    # can guess may be a link of theirs
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"
    draft = target.with_name(f".{path.stem}.{unique}.tmp{path.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        if target.exists():
            shutil.copymode(target, draft)
        sync(draft)
        os.replace(draft, target)
        sync(target.parent)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk, if its file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def write_file(
    path: str | Path, content: Content, remedy: str = "make room, or name another place"
) -> None:
    """Write a file as `replacing` does; text as UTF-8. Raise UserError, ending with `remedy`.

    Names of files may contain bytes that are not UTF-8; they are kept.
    """
    needed = ""
    try:
        with replacing(path) as draft:
            if callable(content):
                content(draft)
            else:
                data = content.encode(errors=NAMES) if isinstance(content, str) else content
                needed = f"{format_bytes(len(data))} needed, "
                draft.write_bytes(data)
    except OSError as error:
        folder = Path(os.path.realpath(path)).parent  # for a link: the disk of its target
        free = shutil.disk_usage(folder).free if folder.is_dir() else 0
        raise UserError(
            f"{path} cannot be written: {error.strerror or error} ({needed}{format_bytes(free)}"
            f" free); {remedy}"
        ) from error


def format_bytes(count: float) -> str:
    """Return a size in words: 12.3MB, 140GB (powers of ten)."""
    from tqdm import tqdm

    return tqdm.format_sizeof(count, "B")


def lock(path: Path, name: str) -> contextlib.AbstractContextManager[Any]:
    """Take a lock file and return the context that holds it; it ends with this process in any case.

    Without locks on the file system, that is reported and nothing is held. Raises UserError,
    beginning with `name`, if another run holds the lock, or if its file cannot be made.
    """
    from filelock import FileLock, Timeout

    try:
        return FileLock(path).acquire(timeout=LOCK_S)
    except Timeout:
        raise UserError(
            f"{name}: another run is writing there: wait for its end, or name another"
        ) from None
    except OSError as error:
        if error.errno in UNSUPPORTED:
            report_no_locks(path, error)
            return contextlib.nullcontext()
        raise UserError(
            f"{name} cannot be locked: {path}: {error.strerror}: name a place that you may write to"
        ) from error


def lock_open(descriptor: int, path: Path, wait: bool = True) -> bool:
    """Lock an open file or folder, until it is closed; return False if another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        report_no_locks(path, error)
    return True


def report_no_locks(path: Path, error: OSError) -> None:
    """Warn that nothing keeps two processes from writing to the same place."""
    text = f"{path}: this file system has no locks ({error.strerror}): let no other process write"
    print(f"{text} there meanwhile", file=sys.stderr, flush=True)


def escape_unprintable() -> None:
    """Let both standard streams escape what their encoding lacks, such as in a file's name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

"""Files that a user names: checked before long work, and written whole or not at all.

Symlinks are followed. A device such as /dev/stdout is written to, never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, or a limit that is reached
DEVICES = ("/dev/std", "/dev/fd/", "/proc/")  # these may be links to a regular file


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file. Raises OSError or ValueError."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def is_stream(path: str | Path) -> bool:
    """Return True for a device or anything else that is neither a regular file nor a folder."""
    path = Path(path)
    named = str(path.absolute()).startswith(DEVICES)
    return named or (path.exists() and not path.is_file() and not path.is_dir())


def check_writable(path: str | Path, flag: str) -> None:
    """Create a file's folder. Raise UserError if the file cannot be written."""
    path, why = Path(path), ""
    if path.is_dir() or path.is_block_device():
        why = "it is a folder" if path.is_dir() else "it is a disk"
    elif not is_stream(path):
        make_folder(Path(os.path.realpath(path)).parent, f"{flag} {path}")
    elif not os.access(path, os.W_OK):
        why = "no permission" if path.exists() else "it is not open here"
    if why:
        raise UserError(f"{flag} {path} cannot be written: {why}; name a file")


def check_output(path: str | Path, flag: str, kind: str, is_kind: Callable[[Path], bool]) -> None:
    """Raise UserError if an output cannot be written or would replace a file of a different kind.

    `kind`, such as "a report", is for the message; `is_kind` returns True for a file that may be
    replaced.
    """
    check_writable(path, flag)
    path = Path(path)
    if path.exists() and not is_stream(path) and path.stat().st_size and not is_kind(path):
        raise UserError(f"{flag} {path} exists and is not {kind}: name another file, or remove it")


def check_file(path: str | Path, name: str | None = None) -> None:
    """Raise UserError, beginning with `name`, if `path` exists and is not a regular file."""
    if Path(path).is_dir() or is_stream(path):
        raise UserError(
            f"{name or path} is not a regular file (a folder, a device or a FIFO): remove it, or"
            " name another place"
        )


def make_folder(folder: Path, name: str) -> None:
    """Create a folder if needed. Raises UserError, beginning with `name`, if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.W_OK) else "no permission"
    except (FileExistsError, NotADirectoryError):
        why = "a file is in the way"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise UserError(f"{name} cannot be written ({why}): name a place that you may write to")


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
    draft = target.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
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
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: str | Path, content: bytes | str) -> None:
    """Write a file as `replacing` does; text as UTF-8. Raises OSError."""
    with replacing(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def lock(path: Path, name: str) -> Iterator[None]:
    """Hold a lock file for the block; it ends with this process in any case.

    Raises UserError, beginning with `name`, if another run holds the lock or the file cannot be
    written.
    """
    from filelock import FileLock, Timeout

    held = FileLock(path)
    try:
        held.acquire(timeout=0)
    except Timeout:
        holder: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):  # the holder has not written it yet
            holder = json.loads(path.read_text())
        raise UserError(
            f"{name}: another run is writing there (process {holder.get('pid', 'unknown')} on"
            f" {holder.get('host', 'an unknown host')}): wait for its end, or name another"
        ) from None
    except OSError as error:
        raise UserError(
            f"{name} cannot be written ({error.strerror}): name a place that you may write to"
        ) from error
    try:
        with contextlib.suppress(OSError):  # a full disk
            path.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        path.unlink(missing_ok=True)
        held.release()


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """Run a whole program with usable standard streams, and flush what it printed.

    Closed streams become /dev/null, so that no file opened later takes their place. Raises
    SystemExit, after one line, if a disk is full.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))
    try:
        yield
    except OSError as error:
        flush_output(error)
        if error.errno not in FULL:
            raise
        name = error.filename or "standard output"  # which has no name if it is unbuffered
        print(f"error: {name} cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from error
    except BaseException:
        flush_output()
        raise
    flush_output()


def flush_output(cause: OSError | None = None) -> None:
    """Flush standard output. Raises SystemExit if it cannot be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python tries again at its end
        if isinstance(error, BrokenPipeError):  # `| head` has ended
            raise SystemExit(141) from cause
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from cause

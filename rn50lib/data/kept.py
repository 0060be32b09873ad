"""What takes long to find out about large files is found out once, and kept beside them.

It is kept with the files' sizes, times and inodes, so that it is found out again where a file was
written or copied since; and in the user's cache where nothing can be written beside them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from rn50lib.files import write_file

Arrays = dict[str, np.ndarray]
LARGE = 500_000_000
"""Bytes from which on finding out takes long enough to keep the result, or to say what is done."""


def kept(path: Path, files: Iterable[Path], find_out: Callable[[], Arrays]) -> Arrays:
    """The arrays kept at `path` about `files`, else those that `find_out` gives, which are kept.

    One process of this machine finds out while the others wait for it (each for itself where the
    file system has no locks).
    """
    files = list(files)
    found = load(path, state(files))
    if found is None:
        with held(files[0]):
            before = state(files)
            found = load(path, before)
            if found is None:
                found = find_out()
                if state(files) == before:
                    save(path, before, found)
    return found


def state(files: Iterable[Path]) -> str:
    """What changes when one of the files is written again or copied."""
    found = [file.stat() for file in files]
    return "".join(f"{s.st_size} {s.st_mtime_ns} {s.st_ino}\n" for s in found)


def load(path: Path, state: str) -> Arrays | None:
    """What was kept while the files were in this state; None where nothing was."""
    for place in _places(path):
        with contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile):
            with np.load(place, allow_pickle=False) as stored:
                if str(stored["state"]) == state:
                    return {name: stored[name] for name in stored.files if name != "state"}
    return None


def save(path: Path, state: str, arrays: Arrays) -> None:
    """Keep arrays at the first place that can be written to."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, state=np.array(state), **arrays)
    for place in _places(path):
        with contextlib.suppress(OSError):  # a folder that is only to be read, a full disk
            write_file(place, content.getvalue())
            return


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep the other ranks of this machine waiting, by a lock on a file that all of them read."""
    with open(path, "rb") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _places(path: Path) -> Iterator[Path]:
    yield path
    with contextlib.suppress(RuntimeError):  # no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
        yield cache / "rn50" / "kept" / name

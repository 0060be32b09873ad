"""What takes long to find out about large files is found out once, and kept next to them.

It is kept with the files' sizes, times and inodes, so that it is found out again if a file was
written or copied since; and in the user's cache if nothing can be written next to them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from rn50lib.files import write_file

Arrays = dict[str, np.ndarray]
LARGE = 100_000_000
"""Bytes from which on finding out takes long enough to keep the result, or to say what is done."""


def kept(path: Path, files: Sequence[Path], find_out: Callable[[], Arrays]) -> Arrays:
    """Return the arrays kept at `path` about `files`, or those that `find_out` gives.

    One process of this machine finds out while the others wait for it (each for itself if the file
    system has no locks).
    """
    found = load(path, state(files))
    if found is None:
        with open(files[0], "rb") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            before = state(files)
            found = load(path, before)
            if found is None:
                found = find_out()
                if state(files) == before:
                    save(path, before, found)
    return found


def state(files: Sequence[Path]) -> str:
    """Return what changes when one of the files is written again or copied."""
    found = [file.stat() for file in files]
    return "".join(f"{s.st_size} {s.st_mtime_ns} {s.st_ino}\n" for s in found)


def sizes(files: Sequence[Path]) -> str:
    """Return what a writer knows of its files wherever they are copied."""
    return "".join(f"{file.stat().st_size}\n" for file in files)


def load_sidecar(path: Path, files: Sequence[Path]) -> Arrays | None:
    """Return what the writer of `files` left, unless one of them is newer or of another size."""
    with contextlib.suppress(OSError):
        written = path.stat().st_mtime_ns
        if all(file.stat().st_mtime_ns <= written for file in files):
            return load(path, sizes(files))
    return None


def load(path: Path, state: str) -> Arrays | None:
    """Return what was kept while the files were in this state, or None."""
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
        with contextlib.suppress(OSError):  # a read-only folder, a full disk
            write_file(place, content.getvalue())
            return


def _places(path: Path) -> Iterator[Path]:
    yield path
    with contextlib.suppress(RuntimeError):  # no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
        yield cache / "rn50" / "kept" / name

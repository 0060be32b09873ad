"""Files that a user names: read as JSON, looked at before long work, written whole or not at all.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError


def read_json(path: str | Path) -> Any:
    """The content of a JSON file. Raises OSError, or ValueError where it is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None


def check_writable(path: str | Path, flag: str) -> None:
    """Raise UserError now, not after an hour of work, where a file cannot be written."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{flag} {path} cannot be written: it is a folder; name a file in it")
    make_folder(path.absolute().parent, f"{flag} {path}")


def make_folder(folder: Path, told: str) -> None:
    """Make a folder, if it is not there. Raises UserError, which begins with `told`, where that
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
    raise UserError(f"{told} cannot be written ({why}): name a place that you may write to")


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A place to write to, of the same suffix, that takes the place of `path` when the block ends
    well, and else goes away. Raises OSError."""
    place = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield place
        os.replace(place, path)
    finally:
        with contextlib.suppress(OSError):
            place.unlink()

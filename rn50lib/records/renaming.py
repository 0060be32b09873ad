"""Files that a killed im2rec had complete and not yet renamed: whoever reads them finishes that.

`data_prep.output_set` writes such a set as `NAME.part`, and a note of what is to be renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from rn50lib.files import sync


def part_of(path: Path) -> Path:
    """Where an output stands until it is complete."""
    return path.with_name(path.name + ".part")


def note_of(path: Path) -> Path:
    return path.with_name(path.name + ".renaming")


def finish_renaming(first: str | os.PathLike, fsync: bool = True) -> bool:
    """Finish what a killed process had begun to rename; True if there was anything to finish.

    ``first`` is the first path of the set. Called by every writer and reader of the set, so that no
    one sees a new file beside an old one.
    """
    first = Path(first)
    note = note_of(first)
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

"""A copy of the folder that a script runs in, so that no write reaches the original."""

from __future__ import annotations

import os
import shutil
from collections import deque
from pathlib import Path

from rn50lib.errors import UserError

ENTRIES = 100_000  # more files and directories than this are refused
BYTES = 4 * 2**30  # and more data


def copy_folder(folder: Path, to: Path) -> None:
    """Copy a folder, including what its links lead to.

    A link to something in the folder becomes a link to its copy; a file or directory elsewhere is
    copied, so that the copy contains no way to the original. Unreadable files are left out.

    Raises UserError if there are more than ENTRIES entries or BYTES bytes.
    """
    folder = folder.resolve()
    made, left = {folder: to}, deque([(folder, to)])
    entries = size = 0
    while left:
        source, target = left.popleft()
        target.mkdir()
        for entry in os.scandir(source) if os.access(source, os.R_OK | os.X_OK) else ():
            new, real = target / entry.name, Path(entry.path).resolve()
            if entry.name == "__pycache__" or real == to.parent:
                continue
            entries += 1
            if entry.is_symlink() and real.is_relative_to(folder):
                new.symlink_to(to / real.relative_to(folder))
            elif real in made:
                new.symlink_to(made[real])
            elif entry.is_dir() and not folder.is_relative_to(real):  # not a link upwards
                made[real] = new
                left.append((real, new))
            elif entry.is_file() and os.access(real, os.R_OK):
                size += entry.stat().st_size
                if size <= BYTES:
                    shutil.copy2(real, new)
        if entries > ENTRIES or size > BYTES:
            raise UserError(
                f"{folder} holds more than {ENTRIES:,} files or {BYTES / 2**30:.0f} GiB, and a"
                " script is tried in a copy: change to a smaller folder and pass the data by its"
                " absolute path"
            )

"""A copy of the folder that a script runs in, so that its files do not mix with yours."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rn50lib.errors import UserError

ENTRIES = 100_000  # more files and directories than this are refused
BYTES = 4 * 2**30  # and more data


def copy_folder(folder: Path, to: Path) -> None:
    """Copy a folder. Links become what they lead to; unreadable files and loops are left out.

    Raises UserError if there are more than ENTRIES entries or BYTES bytes.
    """
    folder, entries, size = folder.resolve(), 0, 0

    def left_out(where: str, names: list[str]) -> list[str]:
        nonlocal entries, size
        paths, here = [Path(where, name) for name in names], Path(where).resolve()
        gone = [p.name for p in paths if p.name == "__pycache__" or not os.access(p, os.R_OK)
                or here.is_relative_to(p.resolve()) or p.resolve() == to.parent]  # fmt: skip
        entries += len(names) - len(gone)
        size += sum(p.stat().st_size for p in paths if p.name not in gone and p.is_file())
        if entries > ENTRIES or size > BYTES:
            raise UserError(
                f"{folder} holds more than {ENTRIES:,} files or {BYTES / 2**30:.0f} GiB, and a"
                " script is tried in a copy: change to a smaller folder and pass the data by its"
                " absolute path"
            )
        return gone

    shutil.copytree(folder, to, ignore=left_out)

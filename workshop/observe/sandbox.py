"""A copy of the folder that a script runs in, so that its files do not mix with yours."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rn50lib.errors import UserError

ENTRIES = 100_000  # more files and directories than this are refused
BYTES = 4 * 2**30  # and more data


def copy_folder(folder: Path, to: Path) -> None:
    """Copy a folder. Links become what they lead to.

    Unreadable files, loops, `.git` and virtual environments are left out. Raises UserError, before
    anything is copied, if there are more than ENTRIES entries or BYTES bytes.
    """
    folder = folder.resolve()

    def left_out(where: str, names: list[str]) -> list[str]:
        paths, here = [Path(where, name) for name in names], Path(where).resolve()
        return [p.name for p in paths if p.name in ("__pycache__", ".git")
                or (p / "pyvenv.cfg").exists() or not os.access(p, os.R_OK)
                or here.is_relative_to(p.resolve()) or p.resolve() == to.parent]  # fmt: skip

    entries = size = 0
    for where, folders, files in os.walk(folder, followlinks=True):
        gone = {*left_out(where, [*folders, *files])}
        folders[:] = [name for name in folders if name not in gone]
        kept = [Path(where, name) for name in files if name not in gone]
        entries += len(folders) + len(kept)
        size += sum(path.stat().st_size for path in kept)
        if entries > ENTRIES or size > BYTES:
            raise UserError(
                f"{folder} holds more than {ENTRIES:,} files or {BYTES / 2**30:.0f} GiB, and a"
                " script is tried in a copy: change to a smaller folder and pass the data by its"
                " absolute path"
            )
    shutil.copytree(folder, to, ignore=left_out)

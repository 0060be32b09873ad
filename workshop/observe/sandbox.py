"""A copy of the folder that a script runs in, so that no write reaches the original."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
from collections import deque
from pathlib import Path

from rn50lib.errors import UserError

SMALL = 2**20  # bytes: a larger file becomes a link
COPIED = 2000  # files that are copied; the rest become links
ENTRIES = 100_000  # more files and directories than this are refused

NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18  # MS_...
LOCKED = 2 | 4 | 8  # nosuid, nodev, noexec: a remount has to keep them
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def copy_folder(folder: Path, to: Path) -> None:
    """Copy a folder as real directories, copies of small files, and links to large files.

    A link to something in the folder becomes a link to its copy. A directory outside the folder
    that a link leads to is copied in the same way. The recorder removes the link to a large file
    before the script replaces it.

    Raises UserError if there are more than ENTRIES entries.
    """
    folder = folder.resolve()
    made, left = {folder: to}, deque([(folder, to)])
    copied = entries = 0
    while left:
        source, target = left.popleft()
        target.mkdir()
        for entry in os.scandir(source) if os.access(source, os.R_OK | os.X_OK) else ():
            new, entries = target / entry.name, entries + 1
            real = Path(os.path.realpath(entry.path)) if entry.is_symlink() else Path(entry.path)
            if entry.name == "__pycache__" or real == to.parent:
                continue
            if entry.is_symlink() and real.is_relative_to(folder):
                new.symlink_to(to / real.relative_to(folder))
            elif real in made:
                new.symlink_to(made[real])
            elif entry.is_dir() and folder.is_relative_to(real):  # a link upwards
                new.symlink_to(real)
            elif entry.is_dir():
                made[real] = new
                left.append((real, new))
            elif entry.is_file():
                small = copied < COPIED and entry.stat().st_size <= SMALL
                if small and os.access(real, os.R_OK):
                    shutil.copy2(real, new)
                    copied += 1
                else:
                    new.symlink_to(real)
        if entries > ENTRIES:
            raise UserError(
                f"{folder} holds more than {ENTRIES:,} files: change to a smaller folder and pass"
                " the data by its absolute path"
            )


def make_read_only(folder: Path) -> None:
    """Make a folder read-only for this process and its children, if the kernel allows it.

    This stops C code and other programs, which the recorder does not see. It needs a user
    namespace unless the user is root; many containers allow neither.
    """
    if LIBC is None:
        return
    user, group = os.geteuid(), os.getegid()
    if LIBC.unshare(NEW_MOUNTS | (NEW_USER if user else 0)):
        return
    if user:
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for name, text in maps.items():
            with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    LIBC.mount(None, b"/", None, RECURSIVE | PRIVATE, None)
    path = os.fsencode(folder)
    if not LIBC.mount(path, path, None, BIND | RECURSIVE, None):
        flags = BIND | REMOUNT | READ_ONLY | os.statvfs(path).f_flag & LOCKED
        LIBC.mount(None, path, None, flags, None)

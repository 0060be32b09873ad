"""A copy of the folder that a script runs in, so that no write reaches the original."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
from collections import deque
from pathlib import Path

SMALL = 2**20  # bytes: a larger file becomes a link
COPIED = 2000  # files that are copied; the rest become links
ENTRIES = 100_000  # files and directories in all; deeper directories become links

NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18  # MS_...
LOCKED = 2 | 4 | 8  # nosuid, nodev, noexec: a remount has to keep them
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def copy_folder(folder: Path, to: Path) -> list[Path]:
    """Copy a folder as real directories, copies of small files, and links to large files.

    A link to something in the folder becomes a link to its copy. A directory outside the folder
    that a link leads to is copied in the same way. The recorder replaces the link to a large file
    by a copy before the script writes to it.

    Returns the outside directories that are only linked because there are more than ENTRIES
    entries.
    """
    folder = folder.resolve()
    to.mkdir()
    made, left, linked = {folder: to}, deque([(folder, to)]), []
    copied = entries = 0
    while left:  # breadth first, so that the deepest directories become links
        source, target = left.popleft()
        if entries > ENTRIES or not os.access(source, os.R_OK | os.X_OK):
            target.rmdir()
            target.symlink_to(source)
            if not source.is_relative_to(folder):
                linked.append(source)
            continue
        for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
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
                new.mkdir()
                made[real] = new
                left.append((real, new))
            elif entry.is_file():
                small = copied < COPIED and entry.stat().st_size <= SMALL
                if small and os.access(real, os.R_OK):
                    shutil.copy2(real, new)
                    copied += 1
                else:
                    new.symlink_to(real)
    return linked


def make_read_only(folders: list[Path]) -> None:
    """Make folders read-only for this process and its children, if the kernel allows it.

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
    for path in map(os.fsencode, folders):
        if not LIBC.mount(path, path, None, BIND | RECURSIVE, None):
            flags = BIND | REMOUNT | READ_ONLY | os.statvfs(path).f_flag & LOCKED
            LIBC.mount(None, path, None, flags, None)

"""The files that a script writes, taken from Python's audit events; none of them is the user's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from workshop.observe.recorder import Protected, quietly

# audit events before a file changes: those that act on the target of a link, and the others
FOLLOWS = ("os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.link",
           "sqlite3.connect")  # fmt: skip
CHANGES = (*FOLLOWS, "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink")


class FileGuard:
    """Records the files that are written, and refuses changes of the user's files."""

    def __init__(self, write: Callable[..., None]) -> None:
        self.write = write
        self.records = os.environ["RN50_TRY"]
        self.copy = os.environ["RN50_TRY_FOLDER"]
        self.original = os.environ["RN50_TRY_ORIGINAL"]
        self.paths: set[str] = set()

    def audit(self, event: str, details: tuple) -> None:
        """Receive an audit event from Python."""
        if event == "open":
            with quietly():
                self.opened(*details)
        elif event in CHANGES:
            with quietly():
                self.changed(event, details)

    def opened(self, path: Any, mode: Any, flags: Any) -> None:
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if isinstance(mode, str):
            writes = any(letter in mode for letter in "wax+")
        # a temporary file without a name is opened by the name of its folder
        if writes and path is not None and not isinstance(path, int) and not os.path.isdir(path):
            self.wrote(path, replaces=mode in ("w", "wb", "wt"))

    def changed(self, event: str, details: tuple) -> None:
        if event in ("os.rename", "os.link"):
            pairs = [(details[0], details[2]), (details[1], details[3])]
        else:
            index = 1 if event == "os.symlink" else 0
            has_fd = event not in ("os.truncate", "os.setxattr", "sqlite3.connect")
            pairs = [(details[index], details[-1] if has_fd else -1)]
        paths = [located(path, fd) for path, fd in pairs]
        for path in filter(None, paths):
            self.guard(path, event in FOLLOWS)
        if event == "os.rename":
            self.wrote(paths[1])

    def wrote(self, path: Any, *, replaces: bool = True) -> None:
        """Record, once for each path, that this process is about to write to it.

        A link to a large file that the script replaces is removed first.
        """
        whole = os.path.abspath(os.fsdecode(path))
        if within(whole, self.records):
            return
        if replaces and os.path.islink(whole) and self.is_link_out(whole):
            os.unlink(whole)
        self.guard(whole, follow=True)
        if whole not in self.paths:
            self.paths.add(whole)
            self.write("file", path=whole)

    def is_link_out(self, path: str) -> bool:
        """Return True for a link in the copy that leads out of it."""
        return within(resolved(path), self.copy) and not within(os.path.realpath(path), self.copy)

    def guard(self, path: str, follow: bool) -> None:
        """Raise Protected if a change of `path`, or of what it links to, would reach the user."""
        real = os.path.realpath(path) if follow else resolved(path)
        leaves = within(path, self.copy) or within(real, self.original)
        if leaves and not within(real, os.path.dirname(self.copy)):
            text = f"rn50 workshop try changes nothing in {self.original}; write to a new file"
            raise Protected(errno.EACCES, text, path)


def located(path: Any, folder: int) -> str | None:
    """Return the absolute path of a name relative to an open folder, or to none (-1)."""
    if isinstance(path, int):
        return None
    if folder != -1:
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    return os.path.abspath(os.fsdecode(path))


def resolved(path: str) -> str:
    """Return the path with all links followed except the last."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")

"""The files that a script writes, taken from Python's audit events; none of them is the user's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from workshop.observe.recorder import Protected, quietly

# Audit events before a change: of a path, of a path relative to an open folder, of two of them
PLAIN = {"os.truncate", "os.setxattr", "sqlite3.connect"}
RELATIVE = {"os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.utime"}
PAIRS = {"os.rename", "os.link"}


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
        with quietly():
            if event == "open":
                self.opened(*details)
            elif event in PLAIN:
                self.guard(located(details[0]))
            elif event in RELATIVE:
                self.guard(located(details[0], details[-1]))
            elif event in PAIRS:
                self.guard(located(details[0], details[2]))
                self.guard(new := located(details[1], details[3]))
                if event == "os.rename":
                    self.wrote(new)
            elif event == "os.symlink":
                self.guard(located(details[1], details[2]))

    def opened(self, path: Any, mode: Any, flags: Any) -> None:
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if isinstance(mode, str):
            writes = any(letter in mode for letter in "wax+")
        # a temporary file without a name is opened by the name of its folder
        if writes and path is not None and not isinstance(path, int) and not os.path.isdir(path):
            self.wrote(path)

    def wrote(self, path: Any) -> None:
        """Record, once for each path, that this process is about to write to it."""
        whole = os.path.abspath(os.fsdecode(path))
        if within(whole, self.records):
            return
        self.guard(whole)
        if whole not in self.paths:
            self.paths.add(whole)
            self.write("file", path=whole)

    def guard(self, path: str) -> None:
        """Raise Protected if a change of `path`, or of what it links to, would reach the user."""
        folder, name = os.path.split(path)
        top = os.path.dirname(self.copy)
        for place in (path, os.path.join(os.path.realpath(folder), name), os.path.realpath(path)):
            if within(place, self.original) and not within(place, top):
                text = f"rn50 workshop try changes nothing in {self.original}; write to a new file"
                raise Protected(errno.EACCES, text, path)


def located(path: Any, folder: int = -1) -> str:
    """Return the absolute path of an open file, or of a name relative to a folder (-1: here)."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    if folder != -1:
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    return os.path.abspath(os.fsdecode(path))


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")

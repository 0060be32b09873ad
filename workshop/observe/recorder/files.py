"""The files that a script writes, and the images that it reads, from Python's audit events."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from workshop.observe.recorder import quietly

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".npy")
READS = 5000  # reads that are recorded of a process


class Files:
    """Records the paths, in order."""

    def __init__(self, write: Callable[..., None]) -> None:
        self.write, self.records = write, os.environ["RN50_TRY"]
        self.paths: set[str] = set()
        self.reads = 0

    def audit(self, event: str, details: tuple) -> None:
        """Receive an audit event from Python."""
        with quietly():
            if event == "open":
                self.opened(*details)
            elif event == "os.rename":
                self.wrote(os.path.join(located(details[3]), os.fsdecode(details[1])))

    def opened(self, path: Any, mode: Any, flags: Any) -> None:
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if isinstance(mode, str):
            writes = any(letter in mode for letter in "wax+")
        if path is None or isinstance(path, int):
            return
        # a temporary file without a name is opened by the name of its folder
        if writes and not os.path.isdir(path):
            self.wrote(path)
        elif os.fsdecode(path).lower().endswith(IMAGES) and self.reads < READS:
            self.reads += 1
            self.write("read", path=os.path.abspath(os.fsdecode(path)))

    def wrote(self, path: Any) -> None:
        """Record, once for each path, that this process is about to write to it."""
        whole = os.path.abspath(os.fsdecode(path))
        if whole not in self.paths and not whole.startswith(self.records + os.sep):
            self.paths.add(whole)
            self.write("file", path=whole)


def located(folder: int) -> str:
    """Return the path of an open folder (-1: the current one)."""
    return "" if folder == -1 else os.readlink(f"/proc/self/fd/{folder}")

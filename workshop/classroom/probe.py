"""What a box on this machine keeps in, found out by trying to get out of one."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from workshop.classroom import box, view

WAYS = {
    "network": "the network can be reached from an answer",
    "files": "an answer can read other files of this machine, such as solutions and submissions",
    "writing": "an answer can write outside of its own folder",
    "processes": "an answer can see and signal other processes",
    "memory": "the memory of an answer has no limit",
    "count": "the number of processes that an answer starts has no limit",
    "size": "the size of the files that an answer writes has no limit",
    "root": "answers run with the rights of root",
}


def open_ways(folder: Path, hidden: list[Path]) -> list[str]:
    """The keys of WAYS that are open here. `folder` is empty, and stands where others can pass;
    `hidden` are the submissions and what else no answer may see."""
    shown, secret = view.readable(), [*hidden, *view.solutions()]
    tried = [name for path in secret for name in {path, *view.names(path, shown)}]
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    reading, writing = os.pipe()  # and no file: a full disk is no open way
    with tempfile.NamedTemporaryFile(dir=folder) as other:
        os.chmod(other.name, 0o666)
        other.write(b"x")
        other.flush()
        (folder / "box").mkdir()
        limits = box.Limits(memory=256 * box.MIB, processes=64, file_size=box.MIB)
        made = box.Box(folder / "box", limits, shown=shown, hidden=hidden)
        trials: dict[str, Callable[[], bool]] = {
            "network": lambda: bool(socket.create_connection(("127.0.0.1", port), 2)),
            "files": lambda: any(map(_read, [Path(other.name), *tried])),
            "writing": lambda: bool(Path(other.name).write_text("x")),
            "processes": lambda: _signalled(os.getppid() or parent),
            "memory": lambda: bool(len(bytearray(1024 * box.MIB))),
            "count": _many,
            "size": lambda: bool(Path("large").write_bytes(bytes(2 * box.MIB))),
            "root": lambda: os.geteuid() == 0,
        }
        parent = os.getpid()

        def inside() -> None:
            for name, way in trials.items():
                try:
                    found = way()
                except (OSError, MemoryError, RuntimeError):
                    found = False
                os.write(writing, f"{name} {found}\n".encode())

        pid = made.start(inside, keep=(writing,))
        os.waitpid(pid, 0)
        box.end_children()
    os.close(writing)
    with open(reading, encoding="ascii") as lines:
        said = dict(line.split() for line in lines)
    server.close()
    return [name for name in WAYS if said.get(name) != "False"]


def _read(path: Path) -> bool:
    """Whether there is anything to read."""
    try:
        return any(path.iterdir()) if path.is_dir() else bool(path.open("rb").read(1))
    except OSError:
        return False


def _signalled(pid: int) -> bool:
    os.kill(pid, 0)
    return True


def _many() -> bool:
    """Whether 100 processes are too many for a limit of 64."""
    started = []
    try:
        for _ in range(100):
            pid = os.fork()
            if not pid:
                os.read(os.pipe()[0], 1)
            started.append(pid)
        return True
    finally:
        for pid in started:
            os.kill(pid, 9)
            os.waitpid(pid, 0)

"""Runs inside a training script's processes and writes down what they do; the script neither helps
nor knows, except that an attempt to change one of the user's files fails.

Python loads this before the script (a `sitecustomize` on PYTHONPATH does so). It waits until the
script imports PyTorch, TensorFlow, Keras or Horovod, and then listens: to their own hooks where
there are some, to their public functions elsewhere. Each process appends JSON lines to a file of
its own in the folder `$RN50_TRY`. After `$RN50_TRY_STEPS` updates it listens to files alone.

Standard library only, and loaded by its path: the rest of the workbook is not imported. Nothing
that goes wrong in here may reach the script: it is written down as "trouble".
"""

from __future__ import annotations

import collections
import errno
import functools
import hashlib
import importlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

SAMPLED = 16  # numbers that are kept of each parameter and gradient
ROWS = 512  # samples of a batch that are told apart
# by launcher: where a process finds its rank
RANKS = ("HOROVOD_RANK", "RANK", "OMPI_COMM_WORLD_RANK")
# what Python reports before it changes a file, and what of it acts on the target of a link
FOLLOWS = ("os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.link",
           "sqlite3.connect")  # fmt: skip
CHANGES = (*FOLLOWS, "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink")


class Recorder:
    """What this process has done since its last update, and the file that it is written to."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder = folder
        self.copy = os.environ["RN50_TRY_FOLDER"]
        self.original = os.environ["RN50_TRY_ORIGINAL"]
        self.limit = limit
        told = [int(os.environ[name]) for name in RANKS if name in os.environ]
        self.rank = told[0] if told else None  # else it comes with the group
        self.steps = 0
        self.calls: collections.Counter[str] = collections.Counter()
        self.inputs: list[str] = []  # a hash of each sample that went into the model
        self.indices: list[
            int
        ] = []  # the indices of these samples in their data set, if it has any
        self.paths: set[str] = set()
        self.writing = threading.local()

    @property
    def watching(self) -> bool:
        return self.steps < self.limit

    def write(self, kind: str, **what: Any) -> None:
        """Append a line: one system call, so that lines of several threads do not mix."""
        line = json.dumps({"kind": kind, "rank": self.rank, **what})
        self.writing.now = True
        try:
            name = os.path.join(self.folder, f"{os.getpid()}.jsonl")
            file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, line.encode() + b"\n")
            os.close(file)
        finally:
            self.writing.now = False

    def update(self, **what: Any) -> None:
        """An optimizer is about to change the weights: write down what led there."""
        if not self.watching:
            return
        what |= {"inputs": self.inputs, "indices": self.indices, "calls": dict(self.calls)}
        self.write("update", step=self.steps, **what)
        self.steps += 1
        self.inputs, self.indices = [], []

    def fed(self, rows: Iterable[bytes]) -> None:
        """A batch went into the model: its samples, as bytes."""
        for _, row in zip(range(ROWS), rows, strict=False):
            self.inputs.append(digest([row]))

    def audit(self, event: str, details: tuple) -> None:
        """Hear from Python what it is about to open or change."""
        if (event == "open" or event in CHANGES) and not getattr(self.writing, "now", False):
            with quietly():
                self.heard(event, details)

    def heard(self, event: str, details: tuple) -> None:
        if event == "open":
            path, mode, flags = details
            flags = flags if isinstance(flags, int) else 0
            writes = flags & (os.O_WRONLY | os.O_RDWR)
            if isinstance(mode, str):
                writes = any(letter in mode for letter in "wax+")
            # a temporary file without a name is opened by the name of its folder
            if writes and not os.path.isdir(path):
                self.wrote(path, keep=mode != "w" and not flags & os.O_TRUNC)
        else:
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

    def guard(self, path: str, follow: bool, keep: bool = True) -> None:
        """Raise Protected if a change of `path` would reach the user's folder.

        A link to a large file, which `follow`ed would lead there, is first replaced by the file,
        with its contents if they are to be kept.
        """
        while follow and os.path.islink(path):
            target = os.path.join(os.path.dirname(path), os.readlink(path))
            if not within(resolved(target), self.copy):
                if within(resolved(path), self.copy) and os.path.isfile(target):
                    self.replace_link(path, target if keep else None)
                else:
                    path = target
                break
            path = target
        real = resolved(path)
        leaves = within(os.path.abspath(path), self.copy) or within(real, self.original)
        if leaves and not within(real, os.path.dirname(self.copy)):
            text = f"rn50 workshop try changes nothing in {self.original}; write to a new folder"
            raise Protected(errno.EACCES, text, path)

    def replace_link(self, link: str, source: str | None) -> None:
        """Put a file in the place of a link, in one step: another rank may be reading it."""
        self.writing.now = True
        try:
            new = f"{link}.{os.getpid()}"
            if source is None:
                os.close(os.open(new, os.O_WRONLY | os.O_CREAT))
            else:
                shutil.copyfile(source, new)
            os.replace(new, link)
        finally:
            self.writing.now = False

    def wrote(self, path: Any, keep: bool = True) -> None:
        """Write down, once for each path, that this process is about to write to it."""
        if isinstance(path, int) or path is None:
            return
        whole = os.path.abspath(os.fsdecode(path))
        self.guard(whole, follow=True, keep=keep)
        with quietly():
            if whole not in self.paths:
                self.paths.add(whole)
                self.write("file", path=whole)

    def count(self, owner: Any, names: Iterable[str], prefix: str) -> None:
        """Count the calls of functions (or the making of objects) that `owner` has."""
        for name in names:
            found = getattr(owner, name, None)
            if isinstance(found, type):
                before(found, "__init__", self.counter(prefix + name))
            elif callable(found):
                before(owner, name, self.counter(prefix + name))

    def counter(self, name: str) -> Callable[..., None]:
        def add(*args: Any, **kwargs: Any) -> None:
            if self.watching:
                self.calls[name] += 1

        return add

    def horovod_imported(self, ops: Any) -> None:
        after(ops, "init", lambda *a, **k: self.initialised("Horovod", ops.rank(), ops.size()))

    def initialised(self, by: str, rank: int, size: int) -> None:
        if self.rank is None:
            self.rank = rank
        self.write("start", by=by, group_rank=rank, size=size)


def located(path: Any, folder: int) -> str | None:
    """Return the absolute path of a file that is named relative to an open folder, -1 for none."""
    if isinstance(path, int):
        return None
    if folder != -1:
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    return os.path.abspath(os.fsdecode(path))


def resolved(path: str) -> str:
    """Return the path with all links followed but the last."""
    whole = os.path.abspath(path)
    return os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


class Protected(PermissionError):
    """A refused change of the user's files: the only error that reaches the script."""


class quietly:
    """A block whose errors are written down and go no further."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, Exception) and not isinstance(error, Protected):
            if RECORDER is not None and len(TROUBLE) < 20 and str(error) not in TROUBLE:
                TROUBLE.append(str(error))
                place = trace.tb_next.tb_frame.f_code.co_name if trace.tb_next else ""
                RECORDER.write("trouble", error=f"{kind.__name__}: {error}", place=place)
            return True
        return False


def before(owner: Any, name: str, listen: Callable[..., None]) -> None:
    """Let `listen` hear the arguments of `owner.name` each time before it is called."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def heard(*args: Any, **kwargs: Any) -> Any:
        with quietly():
            listen(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, heard)


def after(owner: Any, name: str, listen: Callable[..., None]) -> None:
    """Let `listen` hear the result of `owner.name`, and then its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def heard(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with quietly():
            listen(result, *args, **kwargs)
        return result

    setattr(owner, name, heard)


def digest(parts: Iterable[Any]) -> str:
    made = hashlib.blake2b(digest_size=8)
    for part in parts:
        made.update(part)
    return made.hexdigest()


def stride(count: int) -> int:
    """Every how many numbers one is kept, so that SAMPLED are spread over all."""
    return max(1, count // SAMPLED)


class Imports:
    """Calls `listen(module)` for some modules as soon as each has been imported."""

    def __init__(self, listeners: dict[str, Callable[[Any], None]]) -> None:
        self.listeners = listeners

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        listen = self.listeners.get(name)
        if listen is None:
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        loader: Any = spec.loader if spec is not None else None
        if not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            with quietly():
                listen(module)

        loader.exec_module = exec_module
        return spec


RECORDER: Recorder | None = None
TROUBLE: list[str] = []


def begin() -> None:
    """Listen from now on, in the way that the environment says."""
    global RECORDER
    pytorch = importlib.import_module(".pytorch", __name__)
    tensor_flow = importlib.import_module(".tensor_flow", __name__)
    RECORDER = Recorder(os.environ["RN50_TRY"], int(os.environ["RN50_TRY_STEPS"]))
    listeners = {**pytorch.listeners(RECORDER), **tensor_flow.listeners(RECORDER)}
    sys.meta_path.insert(0, Imports(listeners))  # type: ignore[arg-type]
    sys.addaudithook(RECORDER.audit)

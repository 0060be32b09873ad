"""A recorder inside a training script's processes: it writes down what they do as JSON lines.

A `sitecustomize` on PYTHONPATH loads it by its path before the script, so it uses the standard
library only. It waits until the script imports PyTorch, TensorFlow, Keras or Horovod, and then
listens to their hooks and public functions. After `$RN50_TRY_STEPS` updates it listens to files
only. Its own errors are recorded as "trouble" and never reach the script.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

SAMPLED = 16  # numbers that are kept of each parameter and gradient
ROWS = 512  # samples of a batch that are recorded
RANKS = ("HOROVOD_RANK", "RANK")  # set by the launchers


class Recorder:
    """The actions of this process since its last update, and the file that they are written to."""

    def __init__(self) -> None:
        self.limit = int(os.environ["RN50_TRY_STEPS"])
        known = [int(os.environ[name]) for name in RANKS if name in os.environ]
        self.rank = known[0] if known else None  # otherwise `initialised` sets it
        self.steps = 0
        self.calls: set[str] = set()  # functions that exchange gradients
        self.inputs: list[str] = []  # a hash of each sample that went into the model
        self.shards: list[tuple[int, int, str]] = []  # of the data: how many, which, and of what

    @property
    def watching(self) -> bool:
        return self.steps < self.limit

    def write(self, kind: str, **what: Any) -> None:
        """Append a line in one system call, so that the lines of several threads do not mix."""
        line = json.dumps({"kind": kind, "rank": self.rank, **what})
        name = os.path.join(os.environ["RN50_TRY"], f"{os.getpid()}.jsonl")
        file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line.encode() + b"\n")
        os.close(file)

    def update(self, **what: Any) -> None:
        """Write down what led to an update of the weights."""
        what |= {"inputs": self.inputs, "calls": sorted(self.calls), "shards": self.shards}
        self.write("update", step=self.steps, **what)
        self.steps += 1
        self.inputs = []

    def fed(self, rows: Iterable[bytes]) -> None:
        """Note the samples of a batch that goes into the model, as bytes."""
        self.inputs += [digest([row]) for _, row in zip(range(ROWS), rows, strict=False)]

    def listen_calls(self, owner: Any, names: Iterable[str], prefix: str) -> None:
        """Note the calls of functions of `owner`, and the creation of its classes."""
        for name in names:
            found = getattr(owner, name, None)
            if found is not None:
                shown = prefix + name.rstrip("_").removesuffix("_async")
                note = functools.partial(self.called, shown)
                if isinstance(found, type):
                    before(found, "__init__", note)
                else:
                    before(owner, name, note)

    def called(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        self.calls.add(name)

    def vary_seed(self, owner: Any, name: str) -> None:
        """Add the rank to each seed, in the run that shows what depends on equal seeds."""
        if "RN50_TRY_RESEED" in os.environ:
            original = getattr(owner, name)
            setattr(owner, name, lambda seed: original(seed + (self.rank or 0)))

    def initialised(self, by: str, rank: int, size: int) -> None:
        """Note that this process has joined a group."""
        if self.rank is None:
            self.rank = rank
        self.write("start", by=by, group_rank=rank, size=size)

    def dali_imported(self, dali: Any) -> None:
        def note(*args: Any, num_shards: int = 1, shard_id: int = 0, **kwargs: Any) -> None:
            named = [kwargs.get(name) for name in ("file_root", "file_list", "files", "path")]
            self.shards.append((num_shards, shard_id, digest([repr(named).encode()])))

        for name in ("file", "mxnet", "tfrecord", "webdataset", "caffe"):
            before(dali.fn.readers, name, note)

    def horovod_imported(self, ops: Any) -> None:
        after(ops, "init", lambda *a, **k: self.initialised("Horovod", ops.rank(), ops.size()))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Record the errors of a block instead of raising them."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if RECORDER is not None and len(TROUBLE) < 20 and text not in TROUBLE:
            TROUBLE.append(text)
            RECORDER.write("trouble", error=text)


def before(owner: Any, name: str, listen: Callable[..., None]) -> None:
    """Call `listen` with the arguments of `owner.name` before each call."""
    wrap(owner, name, listen, lambda *args, **kwargs: None)


def after(owner: Any, name: str, listen: Callable[..., None]) -> None:
    """Call `listen` with the result and the arguments of `owner.name` after each call."""
    wrap(owner, name, lambda *args, **kwargs: None, listen)


def wrap(owner: Any, name: str, first: Callable[..., None], last: Callable[..., None]) -> None:
    """Replace `owner.name` by a function that also calls `first` and `last`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def heard(*args: Any, **kwargs: Any) -> Any:
        with quietly():
            first(*args, **kwargs)
        result = original(*args, **kwargs)
        with quietly():
            last(result, *args, **kwargs)
        return result

    setattr(owner, name, heard)


def digest(parts: Iterable[Any]) -> str:
    """Return a hash of some bytes."""
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


class Imports:
    """An import hook that calls `listeners[name](module)` once a module has been imported."""

    def __init__(self, listeners: dict[str, Callable[[Any], None]]) -> None:
        self.listeners = listeners

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        listen = self.listeners.pop(name, None)
        if listen is None:
            return None
        spec = importlib.util.find_spec(name)  # by the other finders: `name` is not listed now
        self.listeners[name] = listen
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            with quietly():
                listen(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


RECORDER: Recorder | None = None
TROUBLE: list[str] = []


def begin() -> None:
    """Start to listen."""
    global RECORDER
    files, pytorch, tensorflow = (
        importlib.import_module(f".{name}", __name__)
        for name in ("files", "pytorch", "tensor_flow")
    )
    RECORDER = Recorder()
    seen = files.Files(RECORDER.write)
    listeners = {
        **pytorch.listeners(RECORDER, seen.wrote), **tensorflow.listeners(RECORDER, seen.wrote),
        "nvidia.dali": RECORDER.dali_imported,
    }  # fmt: skip
    sys.meta_path.insert(0, Imports(listeners))  # type: ignore[arg-type]
    sys.addaudithook(seen.audit)

"""A recorder inside a training script's processes: it writes down what they do as JSON lines.

It is copied to the script's PYTHONPATH as `rn50_recorder`, and imports the standard library only.
Its own errors never reach the script.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

SAMPLED = 16  # numbers that are kept of each gradient


class Recorder:
    """Listens to the frameworks, once the script has imported them, and to the files it opens."""

    def __init__(self) -> None:
        from . import pytorch, tensor_flow

        self.folder, self.left = os.environ["RN50_TRY"], int(os.environ["RN50_TRY_STEPS"])
        self.file = open(os.path.join(self.folder, f"{os.getpid()}.jsonl"), "ab", buffering=0)
        rank = os.environ.get("HOROVOD_RANK", os.environ.get("RANK"))
        self.rank = int(rank) if rank else None  # otherwise `started` sets it
        self.in_group = False
        self.shards: list[tuple[int, int, str]] = []  # of the data: how many, which, and of what
        self.shuffled: list[tuple[str, str]] = []  # data that was shuffled as a whole, its order
        self.fixed_orders: list[bool] = []  # one for each sampler that took a shard
        self.known: set[str] = set()  # paths that have been recorded
        torch, tensorflow = pytorch.Watch(self), tensor_flow.Watch(self)
        self.imported: dict[str, Callable[[Any], None]] = {
            "torch": torch.torch_imported,
            "horovod.torch.mpi_ops": self.horovod_imported,
            "tensorflow": tensorflow.tensorflow_imported,
            "keras": tensorflow.keras_imported,
            "tf_keras": tensorflow.keras_imported,
            "horovod.tensorflow.mpi_ops": self.horovod_imported,
            "nvidia.dali": self.dali_imported,
        }
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        sys.addaudithook(self.audit)

    def write(self, kind: str, **what: Any) -> None:
        """Append a line in one system call, so that the lines of several threads do not mix."""
        line = json.dumps({"kind": kind, "rank": self.rank, **what})
        self.file.write(line.encode() + b"\n")

    def update(self, batch: list[bytes], weights: list[bytes], **what: Any) -> None:
        """Write down what led to an update of the weights."""
        hashes = {"inputs": [digest(sample) for sample in batch], "hash": digest(b"".join(weights))}
        fixed = bool(self.fixed_orders) and all(self.fixed_orders)
        data = {"shards": self.shards, "shuffled": self.shuffled, "fixed_order": fixed}
        self.write("update", **hashes, **data, **what)
        self.left -= 1

    def started(self, by: str, rank: int, size: int) -> None:
        self.in_group = True
        self.rank = rank if self.rank is None else self.rank
        self.write("start", by=by, place=[rank, size])

    def wrote(self, path: Any) -> None:
        """Note, once for each path, that this process writes to it."""
        if isinstance(path, str | bytes | os.PathLike):
            whole = os.path.abspath(os.fsdecode(path))
            if whole not in self.known and not whole.startswith(self.folder + os.sep):
                self.known.add(whole)
                self.write("file", path=whole)

    def audit(self, event: str, details: tuple) -> None:
        with suppress(Exception):
            if event == "os.rename":
                self.wrote(details[1])
            elif event == "open" and details[2] & (os.O_WRONLY | os.O_RDWR):
                if not os.path.isdir(details[0] or ""):  # there: a temporary file without a name
                    self.wrote(details[0])

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Take part in an import, to listen to a module after it."""
        listener = self.imported.pop(name, None)
        if listener is None:
            return None
        spec = importlib.util.find_spec(name)  # by the other finders: `name` is not known now
        self.imported[name] = listener
        if spec and spec.loader:
            self.listen(spec.loader, "exec_module", lambda result, module: listener(module))
        return spec

    def listen(
        self, owner: Any, name: str, listener: Callable[..., None], first: bool = False
    ) -> None:
        """Call `listener` with the result and arguments of `owner.name`; `first`: before it."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def heard(*args: Any, **kwargs: Any) -> Any:
            args = tuple(list(value) if isinstance(value, zip) else value for value in args)
            if first:
                with suppress(Exception):
                    listener(*args, **kwargs)
            result = original(*args, **kwargs)
            if not first:
                with suppress(Exception):
                    listener(result, *args, **kwargs)
            return result

        setattr(owner, name, heard)

    def vary_seed(self, owner: Any, name: str) -> None:
        """Vary each seed by rank, in the run that shows what depends on equal seeds.

        Until a spawned process has a rank, its seeds vary by its number.
        """
        if "RN50_TRY_RESEED" not in os.environ:
            return
        original = getattr(owner, name)

        def varied(seed: Any = None, *args: Any) -> Any:
            more = os.getpid() if self.rank is None else self.rank
            return original(seed + more if hasattr(seed, "__index__") else seed, *args)

        setattr(owner, name, varied)

    def horovod_imported(self, ops: Any) -> None:
        self.listen(ops, "init", lambda *a, **k: self.started("Horovod", ops.rank(), ops.size()))

    def dali_imported(self, dali: Any) -> None:
        def reads(*args: Any, num_shards: int = 1, shard_id: int = 0, **data: Any) -> None:
            what = re.sub(r" at 0x\w+", "", repr(data))  # the same on all ranks
            self.shards.append((num_shards, shard_id, what))

        for name in ("file", "mxnet", "tfrecord", "webdataset", "caffe"):
            self.listen(dali.fn.readers, name, reads)


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def few(array: Any) -> list[float]:
    """Return the sum and some numbers of a NumPy array, the same ones each time."""
    flat = array.reshape(-1)
    return [float(flat.sum()), *flat[:: max(1, flat.size // SAMPLED)].tolist()]

"""Recorder for PyTorch, DistributedDataParallel and Horovod for PyTorch."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

from workshop.observe.recorder import SAMPLED, Recorder, after, before, digest, quietly

EXCHANGES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter")


def listeners(recorder: Recorder, wrote: Callable[..., None]) -> dict[str, Callable[[Any], None]]:
    """Return what to do after the import of each module."""
    watch = Watch(recorder, wrote)
    return {
        "torch": watch.torch_imported,
        "torch.utils.data": watch.data_imported,
        "horovod.torch.mpi_ops": watch.horovod_imported,
        "horovod.torch": lambda hvd: recorder.listen_calls(hvd, ["DistributedOptimizer"], "hvd."),
    }


class Watch:
    """The memory of the recorder between the events of a step."""

    def __init__(self, recorder: Recorder, wrote: Callable[..., None]) -> None:
        self.recorder, self.wrote = recorder, wrote
        self.torch: Any = None
        self.modules = 0  # how many forward passes are inside each other
        self.stepping: list[Any] = []  # optimizers whose step has begun, the outermost first
        self.state: dict[str, Any] = {}
        self.local: dict[int, Any] = {}  # by parameter id: its gradient before any exchange
        self.hooked: set[int] = set()
        self.sent: set[int] = set()  # addresses of tensors that were broadcast
        self.loader: Any = None  # the DataLoader that the latest batch came from
        self.drawn = 0  # batches of DataLoaders since the last update
        self.fed = 0  # batches that went into the model
        self.plan: dict[str, Any] | None = None  # what the first DataLoader reads in an epoch

    def torch_imported(self, torch: Any) -> None:
        self.torch = torch
        modules = torch.nn.modules.module
        modules.register_module_forward_pre_hook(self.enter)
        modules.register_module_forward_hook(self.leave, always_call=True)
        optimizers = sys.modules["torch.optim.optimizer"]
        optimizers.register_optimizer_step_pre_hook(self.step_begins)
        optimizers.register_optimizer_step_post_hook(self.step_ends)
        before(torch, "save", self.saved)
        self.recorder.vary_seed(torch, "manual_seed")
        if torch.distributed.is_available():
            after(torch.distributed, "init_process_group", self.group_started)
            self.recorder.listen_calls(torch.distributed, EXCHANGES, "dist.")
            before(torch.distributed, "broadcast", self.sends)
            ddp = torch.nn.parallel.DistributedDataParallel
            self.recorder.listen_calls(torch.nn.parallel, [ddp.__name__], "")
            before(ddp, "__init__", lambda self_, module, *a, **k: self.sends(*module.parameters()))

    def saved(self, obj: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        """Report a file that PyTorch opens in C++, where Python's audit does not see it."""
        if isinstance(file, str | os.PathLike):
            self.wrote(file)

    def group_started(self, result: Any, *args: Any, **kwargs: Any) -> None:
        dist = self.torch.distributed
        self.recorder.initialised("torch.distributed", dist.get_rank(), dist.get_world_size())

    def horovod_imported(self, ops: Any) -> None:
        # all its exchanges call one of these
        names = ("allreduce_async", "allreduce_async_", "grouped_allreduce_async",
                 "grouped_allreduce_async_")  # fmt: skip
        self.recorder.listen_calls(ops, names, "hvd.")
        for name in ("broadcast_async", "broadcast_async_"):
            before(ops, name, self.sends)
        self.recorder.horovod_imported(ops)

    def sends(self, *values: Any, **kwargs: Any) -> None:
        """Note tensors that take the values of one rank."""
        self.sent.update(tensor.data_ptr() for tensor in self.tensors([values]))

    # the data

    def data_imported(self, data: Any) -> None:
        """Note which DataLoader each batch comes from."""
        original = data.DataLoader.__iter__

        def iterate(loader: Any) -> Iterator[Any]:
            for batch in original(loader):
                self.loader, self.drawn = loader, self.drawn + 1
                yield batch

        data.DataLoader.__iter__ = iterate

    def read_by(self, loader: Any) -> dict[str, Any]:
        """Return which samples of its data set a DataLoader reads in an epoch, {} if unknown."""
        data, batches = loader.dataset, loader.batch_sampler
        try:
            if batches is None or isinstance(batches, Iterator):
                return {}
            with self.torch.random.fork_rng(devices=[]):  # the script draws the same numbers
                indices = [int(i) for batch in islice(batches, len(batches)) for i in batch]
            return {"data": self.content(data), "size": len(data), "indices": indices}
        except Exception:  # a stream without a length, or a data set that cannot be pickled
            return {}

    def content(self, dataset: Any) -> str:
        """Return a hash of a data set with everything in it, to compare it between the ranks."""
        content, watch = hashlib.blake2b(digest_size=8), self

        class Pickler(pickle.Pickler):
            def reducer_override(self, value: Any) -> Any:
                if not isinstance(value, watch.torch.Tensor):
                    return NotImplemented
                return bytes, (watch.bytes_of(value.cpu().contiguous()),)

        Pickler(SimpleNamespace(write=content.update)).dump(dataset)
        return content.hexdigest()

    # the forward pass

    def enter(self, module: Any, inputs: Any) -> None:
        self.modules += 1
        if self.modules > 1 or not self.recorder.watching:
            return
        with quietly():
            parameters = [p for p in module.parameters() if p.requires_grad]
            if not (parameters and module.training and self.torch.is_grad_enabled()):
                return  # a loss, or validation
            for parameter in parameters:
                if id(parameter) not in self.hooked:
                    self.hooked.add(id(parameter))
                    parameter.register_hook(self.collector(id(parameter)))
            for batch in self.tensors(inputs):
                self.recorder.fed(map(self.bytes_of, batch.detach().cpu().contiguous()))
                break
            self.fed += 1
            if self.plan is None and self.loader is not None:
                self.plan = {}
                self.plan = self.read_by(self.loader)

    def leave(self, module: Any, inputs: Any, output: Any) -> None:
        self.modules -= 1

    def tensors(self, value: Any) -> Iterator[Any]:
        """Yield the tensors among arguments that have a dimension or more."""
        if isinstance(value, self.torch.Tensor):
            if value.ndim:
                yield value
        elif isinstance(value, dict | list | tuple):
            for item in value.values() if isinstance(value, dict) else value:
                yield from self.tensors(item)

    def collector(self, key: int) -> Callable[[Any], None]:
        """Return a hook that adds up a parameter's gradients of this rank's backward passes."""

        def collect(gradient: Any) -> None:
            if self.recorder.watching:
                with quietly():
                    new, old = self.few(gradient), self.local.get(key)
                    self.local[key] = [a + b for a, b in zip(old, new, strict=True)] if old else new

        return collect

    # the update

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Look at the gradients that the update gets.

        Horovod's optimizer exchanges in its `step` and then calls that of the class it was made
        from, so both are heard.
        """
        self.stepping.append(optimizer)
        if self.recorder.watching and optimizer is self.stepping[0]:
            with quietly():
                self.state = self.look(optimizer)

    def step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.stepping:
            self.stepping.pop()
        if not self.stepping and self.state:
            with quietly():
                # Horovod's broadcast_optimizer_state makes a step with gradients of zero
                if self.local or any(any(numbers) for numbers in self.state["given"] if numbers):
                    read = {"plan": self.plan, "drawn": self.drawn, "fed": self.fed}
                    self.recorder.update(**self.state, **read)
            self.state, self.local, self.drawn, self.fed = {}, {}, 0, 0
            self.plan = self.plan and {}  # once is enough

    def look(self, optimizer: Any) -> dict[str, Any]:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        weights = [p.detach() for p in parameters]
        device = str(weights[0].device)
        if weights[0].is_cuda:
            uuid = getattr(self.torch.cuda.get_device_properties(device), "uuid", "")
            device += f" {uuid} of {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"
        return {
            "rates": [float(group["lr"]) for group in optimizer.param_groups],
            "hash": digest(self.bytes_of(w.cpu().contiguous()) for w in weights),
            "given": [None if p.grad is None else self.few(p.grad) for p in parameters],
            "local": [self.local.get(id(p)) for p in parameters],
            "device": device,
            "sent": sum(w.data_ptr() in self.sent for w in weights) > len(weights) / 2,
        }

    def few(self, tensor: Any) -> list[float]:
        """Return the sum and some numbers of a tensor, the same ones each time."""
        flat = (tensor.to_dense() if tensor.is_sparse else tensor).detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // SAMPLED)].double()
        return [float(flat.double().sum()), *some.tolist()]

    def bytes_of(self, tensor: Any) -> bytes:
        raw: bytes = tensor.detach().reshape(-1).view(self.torch.uint8).numpy().tobytes()
        return raw

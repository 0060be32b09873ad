"""Recorder for PyTorch, DDP and Horovod for PyTorch."""

from __future__ import annotations

import copy
import os
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from workshop.try_script.recorder import Recorder, after, before, digest, quietly, stride

EXCHANGES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
             "all_gather_object", "broadcast", "broadcast_object_list")  # fmt: skip


def listeners(recorder: Recorder) -> dict[str, Callable[[Any], None]]:
    watch = Watch(recorder)
    return {
        "torch": watch.torch_imported,
        "torch.utils.data.dataloader": watch.loader_imported,
        "torch.optim.lr_scheduler": watch.schedules_imported,
        "torch.distributed.fsdp": watch.fsdp_imported,
        "horovod.torch.functions": watch.functions_imported,
        "horovod.torch.mpi_ops": watch.horovod_imported,
        "horovod.torch": lambda hvd: recorder.count(hvd, ("DistributedOptimizer",), "hvd."),
    }


class Watch:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.torch: Any = None
        self.modules: list[Any] = []  # those whose forward pass is under way, the outermost first
        self.stepping: list[Any] = []  # optimizers whose step is under way
        self.state: dict[str, Any] = {}
        self.local: dict[int, Any] = {}  # id of a parameter: its gradient before any exchange
        self.hooked: set[int] = set()
        self.sent: set[int] = set()  # addresses of tensors that one rank has sent to all
        self.sharded = False
        self.lambdas: list[Any] = []  # factors of the learning rate, as functions of the step
        # by iterator of a DataLoader: the indices of the batches that it has yet to hand out
        self.queued: weakref.WeakKeyDictionary[Any, deque] = weakref.WeakKeyDictionary()
        self.batch: tuple[Any, Any] | None = None  # the iterator and the indices of the last batch
        # by iterator: the batches that it handed out and the script put aside
        self.skipped: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.data: dict[str, Any] = {}  # what the training samples come from

    def torch_imported(self, torch: Any) -> None:
        self.torch = torch
        modules = torch.nn.modules.module
        modules.register_module_forward_pre_hook(self.enter)
        modules.register_module_forward_hook(self.leave, always_call=True)
        optimizers = sys.modules["torch.optim.optimizer"]
        optimizers.register_optimizer_step_pre_hook(self.step_begins)
        optimizers.register_optimizer_step_post_hook(self.step_ends)
        before(torch, "save", lambda obj, f, *a, **k: self.saved(f))
        if torch.distributed.is_available():
            after(torch.distributed, "init_process_group", self.ddp_started)
            self.recorder.count(torch.distributed, EXCHANGES, "dist.")
            before(torch.distributed, "broadcast", self.sends)
            self.recorder.count(torch.nn.parallel, ("DistributedDataParallel",), "")
            ddp = torch.nn.parallel.DistributedDataParallel
            before(ddp, "__init__", lambda self_, module, *a, **k: self.sends(module))

    def loader_imported(self, module: Any) -> None:
        iterator = module._BaseDataLoaderIter  # the one place for all kinds of samplers
        after(iterator, "_next_index", self.queues)
        after(iterator, "__next__", self.hands_out)

    def schedules_imported(self, module: Any) -> None:
        def keep(scheduler: Any, optimizer: Any, lr_lambda: Any, *a: Any, **k: Any) -> None:
            self.lambdas += lr_lambda if isinstance(lr_lambda, list | tuple) else [lr_lambda]

        before(module.LambdaLR, "__init__", keep)

    def fsdp_imported(self, module: Any) -> None:
        before(module.FullyShardedDataParallel, "__init__", self.shards)

    def shards(self, *args: Any, **kwargs: Any) -> None:
        self.sharded = True

    def saved(self, file: Any) -> None:
        """PyTorch opens a file that it is given by name in C++, unseen by Python's audit."""
        if isinstance(file, str | os.PathLike):
            self.recorder.wrote(file)

    def ddp_started(self, result: Any, *args: Any, **kwargs: Any) -> None:
        dist = self.torch.distributed
        self.recorder.initialised("torch.distributed", dist.get_rank(), dist.get_world_size())

    def functions_imported(self, functions: Any) -> None:
        self.recorder.count(functions, ("broadcast_parameters",), "hvd.")
        before(functions, "broadcast_parameters", self.sends)

    def horovod_imported(self, ops: Any) -> None:
        names = ("allreduce", "allreduce_", "allreduce_async", "allreduce_async_",
                 "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
                 "grouped_allreduce_async_", "sparse_allreduce_async", "broadcast", "broadcast_",
                 "broadcast_async", "broadcast_async_", "allgather")  # fmt: skip
        self.recorder.count(ops, names, "hvd.")
        before(ops, "broadcast_", self.sends)
        # `t.copy_(hvd.broadcast(t, 0))` sends t as much as `hvd.broadcast_(t, 0)` does
        after(ops, "broadcast", lambda *given, **named: self.sends([*given, named]))
        self.recorder.horovod_imported(ops)

    def sends(self, values: Any, *args: Any, **kwargs: Any) -> None:
        """These tensors become those of one rank: a state dict, pairs with names, or a tensor."""
        if not self.recorder.watching:
            return
        if isinstance(values, self.torch.nn.Module):
            values = list(values.parameters())
        self.sent.update(tensor.data_ptr() for tensor in self.tensors(values))

    # the samples

    def queues(self, indices: Any, iterator: Any) -> None:
        self.queued.setdefault(iterator, deque()).append(indices)

    def hands_out(self, batch: Any, iterator: Any) -> None:
        if self.recorder.watching:
            if self.batch is not None and self.batch[0] is iterator:
                self.skipped[iterator] = self.skipped.get(iterator, 0) + 1
            queue = self.queued.get(iterator)
            self.batch = (iterator, queue.popleft()) if queue else None

    def look_up(self, iterator: Any, indices: Any) -> None:
        """Note which samples of which data set the batch has that goes into the model."""
        data, sampler = iterator._dataset, iterator._index_sampler
        if not (isinstance(indices, list | tuple) and hasattr(data, "__getitem__")):
            return
        is_batches = type(sampler) is self.torch.utils.data.BatchSampler
        planned = len(sampler.sampler) if is_batches else None
        while isinstance(data, self.torch.utils.data.Subset):
            data, indices = data.dataset, [data.indices[index] for index in indices]
        self.recorder.indices += [int(index) for index in indices]
        if not self.data:
            self.data = {"planned": planned, "size": len(data), "sign": None, "skipped": 0}
            self.data["sign"] = self.sign(data)
        self.data["skipped"] = self.skipped.get(iterator, 0)

    def sign(self, data: Any) -> str:
        """Return a hash that data sets with equal samples share, however they augment them.

        Some samples are read with fixed seeds, from a copy: a file that the data set opens for it
        must not be shared with its workers.
        """
        numpy = sys.modules.get("numpy")
        states = random.getstate(), numpy and numpy.random.get_state()
        try:
            with self.torch.random.fork_rng(devices=[]):
                parts = []
                for index in sorted({0, len(data) // 2, len(data) - 1}):
                    self.torch.manual_seed(0)
                    random.seed(0)
                    if numpy:
                        numpy.random.seed(0)
                    parts += self.flat(copy.copy(data)[index])
            return digest(parts)
        finally:
            random.setstate(states[0])
            if numpy:
                numpy.random.set_state(states[1])

    def flat(self, item: Any) -> list[bytes]:
        """The bytes of everything in a sample."""
        if isinstance(item, self.torch.Tensor):
            return [self.bytes_of(item)]
        if isinstance(item, dict):
            item = list(item.values())
        if isinstance(item, list | tuple):
            return [part for one in item for part in self.flat(one)]
        return [item.tobytes() if hasattr(item, "tobytes") else repr(item).encode()]

    # the forward pass

    def enter(self, module: Any, inputs: Any) -> None:
        self.modules.append(module)
        if len(self.modules) > 1 or not self.recorder.watching:
            return
        with quietly():
            parameters = [p for p in module.parameters() if p.requires_grad]
            if not (parameters and module.training and self.torch.is_grad_enabled()):
                return  # a loss, a validation pass
            for parameter in parameters:
                if id(parameter) not in self.hooked:
                    self.hooked.add(id(parameter))
                    parameter.register_hook(self.collector(parameter))
            batch = next(self.tensors(inputs), None)
            if batch is not None:
                rows = batch.detach().cpu().contiguous()
                self.recorder.fed(self.bytes_of(row) for row in rows)
                if self.batch is not None:
                    (iterator, indices), self.batch = self.batch, None
                    self.look_up(iterator, indices)

    def leave(self, module: Any, inputs: Any, output: Any) -> None:
        if self.modules:
            self.modules.pop()

    def tensors(self, value: Any) -> Iterator[Any]:
        """The tensors among a module's arguments that can be a batch."""
        if isinstance(value, self.torch.Tensor):
            if value.ndim:
                yield value
        elif isinstance(value, dict):
            for item in value.values():
                yield from self.tensors(item)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from self.tensors(item)

    def collector(self, parameter: Any) -> Callable[[Any], None]:
        """Adds up the gradients of a parameter as they come out of this rank's backward pass."""
        key = id(parameter)

        def collect(gradient: Any) -> None:
            if self.recorder.watching:
                with quietly():
                    new = self.sample(gradient)
                    old = self.local.get(key)
                    self.local[key] = [a + b for a, b in zip(old, new, strict=True)] if old else new

        return collect

    # the update

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Horovod's optimizer exchanges in its `step` and then calls that of the class it was made
        from: both are heard, and the last one sees what the update gets."""
        self.stepping.append(optimizer)
        if not self.recorder.watching or optimizer is not self.stepping[0]:
            return
        with quietly():
            self.state = self.look(optimizer)

    def step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.stepping:
            self.stepping.pop()
        if not self.stepping and self.state:
            with quietly():
                # Horovod's broadcast_optimizer_state makes a step by itself, with gradients of zero
                if self.local or any(any(numbers) for numbers in self.state["given"] if numbers):
                    self.recorder.update(**self.state)
            self.state, self.local = {}, {}

    def look(self, optimizer: Any) -> dict[str, Any]:
        torch = self.torch
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        weights = [p.detach() for p in parameters]
        device = weights[0].device if weights else None
        name = str(device)
        if device is not None and device.type == "cuda":
            name += f" {getattr(torch.cuda.get_device_properties(device), 'uuid', '')}"
            name += f" of {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"
        first = optimizer.param_groups[0]
        # what a scheduler works towards: its own peak, or the rate that it was given
        peak = first.get("max_lr", first.get("initial_lr"))
        if peak is not None and self.lambdas:
            peak *= max(factor(2**n) for factor in self.lambdas for n in range(20))
        return {
            "peak": peak and float(peak),
            "data": self.data,
            "shards": [],
            "rates": [float(group["lr"]) for group in optimizer.param_groups],
            "hash": digest(self.bytes_of(w.cpu().contiguous()) for w in weights),
            "given": [None if p.grad is None else self.sample(p.grad) for p in parameters],
            "local": [self.local.get(id(p)) for p in parameters],
            "device": name,
            "sent": sum(w.data_ptr() in self.sent for w in weights) > len(weights) / 2,
            "sharded": self.sharded or any(type(p).__name__ == "DTensor" for p in parameters),
        }

    def sample(self, tensor: Any) -> list[float]:
        """The sum and some numbers of a tensor, the same ones each time."""
        flat = (tensor.to_dense() if tensor.is_sparse else tensor).detach().reshape(-1)
        few = flat[:: stride(flat.numel())].double()
        return [float(flat.double().sum()), *few.tolist()]

    def bytes_of(self, tensor: Any) -> bytes:
        flat = tensor.detach().reshape(-1)
        raw: bytes = flat.view(self.torch.uint8).numpy().tobytes()
        return raw

"""Recorder for PyTorch, DistributedDataParallel and Horovod for PyTorch."""

from __future__ import annotations

import copyreg
import hashlib
import os
import pickle
import sys
from contextlib import suppress
from functools import partial, wraps
from types import FunctionType, SimpleNamespace
from typing import Any

from . import Recorder, digest, few

SHARDED = {"FSDPModule", "FullyShardedDataParallel"}


class Named(pickle.Pickler):
    """Pickles functions and classes by name, also lambdas and local ones."""

    def reducer_override(self, value: Any) -> Any:
        named = isinstance(value, FunctionType | type)
        return (len, (value.__qualname__,)) if named else NotImplemented


class Watch:
    """The memory of the recorder between the events of a step."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.torch: Any = None
        self.batch: Any = ()  # what went into the model last
        self.batches: list[bytes] = []  # the samples of the backward passes of this update
        self.in_backward = False
        self.sharded = False
        self.local: dict[int, Any] = {}  # by parameter id: its gradient before any exchange
        self.hooked: set[int] = set()  # ids of parameters
        self.stepping = 0  # optimizers whose steps are inside each other
        self.state: dict[str, Any] = {}
        self.steps = 0
        self.epoch_set = False  # a sampler's set_epoch was called

    def torch_imported(self, torch: Any) -> None:
        self.torch, dist, listen = torch, torch.distributed, self.recorder.listen
        torch.nn.modules.module.register_module_forward_hook(self.called)
        optimizers = sys.modules["torch.optim.optimizer"]
        optimizers.register_optimizer_step_pre_hook(self.step_begins)
        optimizers.register_optimizer_step_post_hook(self.step_ends)
        listen(torch.optim.Optimizer, "add_param_group", self.parameters_added)
        listen(torch.utils.data.DistributedSampler, "__iter__", self.takes_shard)
        listen(torch.utils.data.DistributedSampler, "set_epoch", self.sets_epoch)
        listen(torch.utils.data.RandomSampler, "__iter__", self.shuffles)
        listen(torch, "save", self.saves)
        self.follow_backward(torch.autograd)
        self.recorder.vary_seed(torch, "manual_seed")
        if dist.is_available():
            listen(dist, "init_process_group", self.group_started)

    def group_started(self, *args: Any, **kwargs: Any) -> None:
        dist = self.torch.distributed
        self.recorder.started("torch.distributed", dist.get_rank(), dist.get_world_size())

    def find_group(self) -> None:
        """Note a group that was joined by an imported function or by a device mesh."""
        dist = self.torch.distributed
        if not self.recorder.in_group and dist.is_available() and dist.is_initialized():
            self.group_started()

    def saves(self, result: Any, value: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        """Note the file, which is opened in C++, where Python's audit does not see it.

        Note also if the weights in it, or in a dictionary in it, have the names of DDP's copy.
        """
        self.recorder.wrote(file)
        parts = [value, *(value.values() if isinstance(value, dict) else ())]
        for names in (set(part) for part in parts if isinstance(part, dict)):
            prefixed = names and all(str(name).startswith("module.") for name in names)
            if prefixed and self.torch.distributed.is_initialized():
                self.recorder.write("ddp names")

    def sets_epoch(self, *args: Any) -> None:
        self.epoch_set = True

    def takes_shard(self, result: Any, sampler: Any) -> None:
        what = self.identify(sampler.dataset) if sampler.num_replicas == 1 else ""
        self.recorder.shards.append((sampler.num_replicas, sampler.rank, what))
        self.recorder.fixed_orders.append(not sampler.shuffle)
        if sampler.shuffle and self.torch.is_grad_enabled():  # not to validate
            order = [id(sampler), sampler.seed, sampler.epoch]  # nothing else decides it
            self.recorder.write("order", order=order, steps=self.steps, set=self.epoch_set)

    def shuffles(self, result: Any, sampler: Any) -> None:
        """Note which data is shuffled as a whole, and the random state that decides its order."""
        if not sampler.replacement:
            state = (sampler.generator or self.torch.default_generator).get_state()
            what = self.identify(sampler.data_source), digest(self.raw(state))
            self.recorder.shuffled.append(what)

    def identify(self, data: Any) -> str:
        """Return a hash of a data set, the same on two ranks if they have the same one."""
        hashed = hashlib.blake2b(digest_size=8)
        pickler = Named(SimpleNamespace(write=hashed.update))
        table: dict[type, Any] = {**copyreg.dispatch_table}
        table[self.torch.Tensor] = lambda value: (bytes, (self.raw(value),))
        pickler.dispatch_table = table
        pickler.dump((len(data), data))
        return hashed.hexdigest()

    def tensors(self, value: Any) -> list[Any]:
        """Return the tensors among arguments that have a dimension or more."""
        if isinstance(value, dict | list | tuple):
            items = value.values() if isinstance(value, dict) else value
            return [tensor for item in items for tensor in self.tensors(item)]
        return [value] if isinstance(value, self.torch.Tensor) and value.ndim else []

    def called(self, module: Any, inputs: Any, output: Any) -> None:
        """Keep what went into a model. Of nested ones, the outermost returns last."""
        if module.training and next(module.parameters(), None) is not None:
            self.batch = inputs
        if not self.sharded and SHARDED & {base.__name__ for base in type(module).__mro__}:
            self.sharded = True
            self.recorder.write("sharded")

    def samples(self) -> list[bytes]:
        return [self.raw(sample) for batch in self.tensors(self.batch)[:1] for sample in batch]

    def follow_backward(self, autograd: Any) -> None:
        """Keep what went into the model: an update may follow several backward passes.

        Reentrant checkpointing calls `backward` inside `backward`; only the outer one counts.
        """
        original = autograd.backward

        @wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            outer, self.in_backward = not self.in_backward, True
            with suppress(Exception):
                if outer and self.recorder.left > 0:
                    self.batches += self.samples()
            try:
                return original(*args, **kwargs)
            finally:
                self.in_backward = not outer
                self.batch = ()  # also what activation checkpointing passed in

        autograd.backward = backward

    def parameters_added(self, result: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Follow the gradients of an optimizer's parameters; note the weights of the first one."""
        self.find_group()
        if not self.hooked:
            weights = [self.raw(p) for p in optimizer.param_groups[0]["params"]]
            self.recorder.write("weights", hash=digest(b"".join(weights)))
        for parameter in optimizer.param_groups[-1]["params"]:
            if parameter.requires_grad and id(parameter) not in self.hooked:
                self.hooked.add(id(parameter))
                parameter.register_hook(partial(self.collect, id(parameter)))

    def collect(self, key: int, gradient: Any) -> None:
        """Add up the gradients of this rank's backward passes."""
        with suppress(Exception):
            if self.recorder.left > 0:
                new, old = self.few(gradient), self.local.get(key)
                self.local[key] = [a + b for a, b in zip(old, new, strict=True)] if old else new

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Look at the gradients. Horovod's `step` exchanges, then calls the one that counts."""
        self.stepping += 1
        with suppress(Exception):
            self.find_group()
            self.state = self.look(optimizer) if self.recorder.left > 0 else {}

    def step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.stepping -= 1
        self.steps += 1
        # Horovod's broadcast_optimizer_state makes a step before any backward pass
        if not self.stepping and self.local:
            with suppress(Exception):
                self.recorder.update(**self.state)
            self.local, self.batches = {}, []

    def look(self, optimizer: Any) -> dict[str, Any]:
        groups = optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        device, visible = parameters[0].device, os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        return {
            "batch": self.batches or self.samples(),
            "weights": [self.raw(p) for p in parameters],
            "optimizer": type(optimizer).__name__,
            "groups": [
                [str(g.get(key, 0)) for key in ("momentum", "weight_decay")] for g in groups
            ],
            "rate": max(float(group["lr"]) for group in groups),
            "given": [None if p.grad is None else self.few(p.grad) for p in parameters],
            "local": [self.local.get(id(p)) for p in parameters],
            "device": f"{device} of {visible}",
        }

    def few(self, tensor: Any) -> list[float]:
        return few(tensor.detach().to_dense().double().cpu().numpy())

    def raw(self, tensor: Any) -> bytes:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return bytes(flat.view(self.torch.uint8).numpy())

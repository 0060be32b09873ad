"""Gradient exchange for PyTorch: what happens between the backward pass and the update.

All of them give every rank the average of all ranks' gradients. Horovod and DDP start sending while
the backward pass still runs: a gradient is ready long before the pass is over, the last layer's
first.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from rn50lib import comm as groups
from rn50lib import overrides
from rn50lib.backends.shared import learners_average
from rn50lib.comm.vectors import Vectors
from rn50lib.config import Experiment


def exchange_for(
    experiment: Experiment, comm: groups.Comm, model: nn.Module, named: Mapping[str, Tensor]
) -> Exchange:
    """The exchange for a group of workers. `named` holds the parameters by canonical name."""
    function = overrides.get("exchange_gradients")
    if function is not groups.average:
        return OverriddenExchange(function, comm, model)
    if comm.size == 1 or not isinstance(comm, Vectors):
        return Exchange(model)
    if hasattr(comm, "hvd"):
        return HorovodExchange(experiment, comm, model, named)
    return DdpExchange(experiment, model)


class Exchange:
    """Averages the gradients of a model over all ranks, in place.

    This one is a single worker's, who has nobody to exchange with. `model` is what the training
    step calls: the plain model, or a wrapper of it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self) -> None:
        """Called after the backward pass; returns when every gradient is averaged."""

    def held(self) -> AbstractContextManager[Any]:
        """Backward passes in here only add to the gradients: nothing is sent yet."""
        return contextlib.nullcontext()


class OverriddenExchange(Exchange):
    """Runs a learner's `exchange_gradients` on NumPy copies: slow, and easy to read and debug."""

    def __init__(self, function: Callable[..., Any], comm: groups.Comm, model: nn.Module) -> None:
        super().__init__(model)
        self.function, self.comm = function, comm

    @torch.no_grad()
    def __call__(self) -> None:
        held = [p.grad for p in self.model.parameters() if p.grad is not None]
        gradients = [grad.cpu().numpy() for grad in held]
        averaged = learners_average(self.function, gradients, self.comm)
        for grad, array in zip(held, averaged, strict=True):
            grad.copy_(torch.from_numpy(array))


class HorovodExchange(Exchange):
    """An all-reduce for each gradient, started the moment it is ready.

    Horovod's own thread agrees with the other ranks on what is ready everywhere and joins small
    gradients into one message.
    """

    def __init__(
        self,
        experiment: Experiment,
        comm: Any,
        model: nn.Module,
        named: Mapping[str, Tensor],
    ) -> None:
        super().__init__(model)
        self.hvd = comm.hvd
        if next(model.parameters()).is_cuda:
            comm.check_gpu_exchange()
        kinds = self.hvd.Compression
        self.compression = kinds.fp16 if experiment.fp16_allreduce else kinds.none
        self.names = {tensor: name for name, tensor in named.items()}
        self.holding = False
        self.pending: list[tuple[Tensor, int, Any]] = []  # gradient, handle, compression context
        self.waits: Any = contextlib.nullcontext()
        if experiment.timeline is not None and comm.rank == 0:
            from rn50lib import timeline

            self.waits = timeline.Waits(experiment.timeline)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.start)

    def start(self, parameter: Tensor) -> None:
        """Called by autograd as soon as the gradient of `parameter` is complete."""
        if self.holding:
            return
        assert parameter.grad is not None
        sent, context = self.compression.compress(parameter.grad)
        name = f"gradient/{self.names[parameter]}"
        handle = self.hvd.allreduce_async_(sent, name=name, op=self.hvd.Average)
        self.pending.append((parameter.grad, handle, context))

    def __call__(self) -> None:
        with self.waits:
            for gradient, handle, context in self.pending:
                averaged = self.compression.decompress(self.hvd.synchronize(handle), context)
                if averaged is not gradient:
                    gradient.copy_(averaged)
        self.pending.clear()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.holding = True
        try:
            yield
        finally:
            self.holding = False


class DdpExchange(Exchange):
    """PyTorch's own: the wrapper's hooks send buckets of gradients during the backward pass, which
    returns when all of them have arrived."""

    def __init__(self, experiment: Experiment, model: nn.Module) -> None:
        options: dict[str, Any] = {}
        if experiment.fusion_mb:
            options["bucket_cap_mb"] = experiment.fusion_mb
        # Running statistics are averaged before they are used, not sent around at every step.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer releases rename the option
            wrapped = nn.parallel.DistributedDataParallel(
                model, broadcast_buffers=False, gradient_as_bucket_view=True, **options
            )
        if experiment.fp16_allreduce:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        super().__init__(wrapped)
        self.wrapped = wrapped

    def held(self) -> AbstractContextManager[Any]:
        return self.wrapped.no_sync()

"""Gradient synchronisation for PyTorch: one worker, Horovod or DDP.

Each gives every rank the average of all ranks' gradients. Horovod and DDP start sending during the
backward pass, the last layer's gradients first.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.profiler import record_function

from rn50lib.distributed import Comm


class GradientSync:
    """Gradient synchronisation of a single worker: nothing to do.

    `model` is what the training step calls: the plain model, or a wrapper of it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self) -> None:
        """Return, after a backward pass, when every gradient is averaged."""

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return a context in which backward passes add to the gradients and send nothing."""
        return contextlib.nullcontext()


class HorovodSync(GradientSync):
    """One all-reduce per gradient, started as soon as the gradient is ready.

    Horovod's thread joins small gradients that are ready on every rank into one message.
    """

    def __init__(self, comm: Any, model: nn.Module, named: Mapping[str, Tensor]) -> None:
        super().__init__(model)
        self.hvd = comm.hvd
        if next(model.parameters()).is_cuda:
            comm.check_gpu_exchange()
        self.names = {tensor: name for name, tensor in named.items()}
        self.paused = False
        self.pending: list[int] = []  # handles
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.register_post_accumulate_grad_hook(self.start)

    def start(self, parameter: Tensor) -> None:
        """Start the all-reduce of a gradient; autograd calls this when it is complete."""
        if self.paused:
            return
        assert parameter.grad is not None
        name = f"gradient/{self.names[parameter]}"
        handle = self.hvd.allreduce_async_(parameter.grad, name=name, op=self.hvd.Average)
        self.pending.append(handle)

    def __call__(self) -> None:
        with record_function("exchange"):
            for handle in self.pending:
                self.hvd.synchronize(handle)
        self.pending.clear()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.paused = True
        try:
            yield
        finally:
            self.paused = False


def ddp_sync(model: nn.Module) -> GradientSync:
    """Return DistributedDataParallel's, whose backward pass ends with averaged gradients."""
    # running statistics are averaged before they are used, not broadcast at every step
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer releases rename the option
        wrapped = nn.parallel.DistributedDataParallel(
            model, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    sync = GradientSync(wrapped)
    sync.no_sync = wrapped.no_sync  # type: ignore[method-assign]
    return sync


def gradient_sync(comm: Comm, model: nn.Module, named: Mapping[str, Tensor]) -> GradientSync:
    """Return the synchronisation for a group of workers; `named` has the parameters by name."""
    if comm.size == 1:
        return GradientSync(model)
    if comm.name == "horovod":
        return HorovodSync(comm, model, named)
    return ddp_sync(model)

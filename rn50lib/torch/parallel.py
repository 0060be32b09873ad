"""Gradient exchange by Horovod and by DDP.

Both start sending while the backward pass still runs: a gradient is ready long before the pass is
over, the last layer's first.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from rn50lib.config import TrainConfig
from rn50lib.torch.gradient_sync import Exchange


class HorovodExchange(Exchange):
    """An all-reduce for each gradient, started the moment it is ready.

    Horovod's own thread agrees with the other ranks on what is ready everywhere and joins small
    gradients into one message.
    """

    def __init__(
        self,
        config: TrainConfig,
        comm: Any,
        model: nn.Module,
        named: Mapping[str, Tensor],
    ) -> None:
        super().__init__(model)
        self.hvd = comm.hvd
        if next(model.parameters()).is_cuda:
            comm.check_gpu_exchange()
        self.names = {tensor: name for name, tensor in named.items()}
        self.holding = False
        self.pending: list[int] = []  # handles
        self.waits: Any = contextlib.nullcontext()
        if config.timeline is not None and comm.rank == 0:
            from rn50lib.distributed import timeline

            self.waits = timeline.Waits(config.timeline)
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.register_post_accumulate_grad_hook(self.start)

    def start(self, parameter: Tensor) -> None:
        """Called by autograd as soon as the gradient of `parameter` is complete."""
        if self.holding:
            return
        assert parameter.grad is not None
        name = f"gradient/{self.names[parameter]}"
        handle = self.hvd.allreduce_async_(parameter.grad, name=name, op=self.hvd.Average)
        self.pending.append(handle)

    def __call__(self) -> None:
        with self.waits:
            for handle in self.pending:
                self.hvd.synchronize(handle)
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

    def __init__(self, model: nn.Module) -> None:
        # Running statistics are averaged before they are used, not sent around at every step.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer releases rename the option
            wrapped = nn.parallel.DistributedDataParallel(
                model, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        super().__init__(wrapped)
        self.wrapped = wrapped

    def held(self) -> AbstractContextManager[Any]:
        return self.wrapped.no_sync()

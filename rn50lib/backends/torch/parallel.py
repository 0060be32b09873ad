"""Gradient exchange for PyTorch: what happens between the backward pass and the update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from rn50lib import comm as groups
from rn50lib import seams


class Exchange(Protocol):
    """Averages the gradients of `parameters` over all ranks, in place."""

    def __call__(self, parameters: list[torch.nn.Parameter]) -> None: ...


def exchange_for(comm: groups.Comm) -> Exchange:
    """The exchange for a group of workers; one alone has nothing to do, save a learner's own."""
    function = seams.get("exchange_gradients")
    if function is groups.average and comm.size == 1:
        return lambda parameters: None
    return Replaced(function, comm)


class Replaced:
    """Runs a learner's `exchange_gradients` on NumPy copies: slow, and easy to read and debug."""

    def __init__(self, function: Callable[..., Any], comm: groups.Comm) -> None:
        self.function, self.comm = function, comm

    @torch.no_grad()
    def __call__(self, parameters: list[torch.nn.Parameter]) -> None:
        held = [p.grad for p in parameters if p.grad is not None]
        averaged = self.function([grad.cpu().numpy() for grad in held], self.comm)
        for grad, array in zip(held, averaged, strict=True):
            grad.copy_(torch.from_numpy(array))

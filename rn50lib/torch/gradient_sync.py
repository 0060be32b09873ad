"""Gradient exchange for PyTorch: what happens between the backward pass and the update.

All of them give every rank the average of all ranks' gradients; those of several workers stand in
`parallel`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from rn50lib import distributed as groups
from rn50lib.step_common import learners_average


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

"""A learner's training step on a model of two weights, with PyTorch's own loss scaler (ex06.step).

Runs in the process that checks the answer: it is a matter of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def train(
    step: Callable[[Any, Any, Any, Any, Any], Any],
    start: Sequence[float],
    lr: float,
    scale: float,
    images: Sequence[Sequence[float]],
    targets: Sequence[float],
    times: int,
) -> tuple[list[float], float]:
    """The two weights and the loss scale after so many steps on one batch, on the CPU.

    The scale doubles after two good steps.
    """
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([list(start)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    batch = torch.tensor(images), torch.tensor(targets)[:, None]
    for _ in range(times):
        step(model, *batch, optimizer, scaler)
    return model.weight.detach().double().ravel().tolist(), float(scaler.get_scale())

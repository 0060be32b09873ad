"""Gradient exchange for TensorFlow: what happens between the backward pass and the update.

Both ways give every rank the average of all ranks' gradients, inside the step's graph. Horovod's
Keras integration and its DistributedOptimizer are not used: under Keras 3 they average nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rn50lib import distributed as groups
from rn50lib import hooks as overrides
from rn50lib.config import Experiment
from rn50lib.step_common import learners_average
from rn50lib.tensorflow import PythonCalls

Exchange = Callable[[list[Any]], list[Any]]
MESSAGES = 4  # groups of gradients that travel one after the other


def exchange_for(experiment: Experiment, comm: groups.Comm) -> Exchange:
    """The exchange for a group of workers: gradients in, averaged gradients out, in one order."""
    function = overrides.get("exchange_gradients")
    if function is not groups.average:
        return OverriddenExchange(function, comm)
    if comm.size == 1 or not hasattr(comm, "hvd"):
        return no_exchange
    return HorovodExchange(experiment, comm)


def no_exchange(gradients: list[Any]) -> list[Any]:
    """One worker has nobody to exchange with."""
    return gradients


class OverriddenExchange:
    """Runs a learner's `exchange_gradients` on NumPy copies: slow, and easy to read and debug."""

    def __init__(self, function: Callable[..., Any], comm: groups.Comm) -> None:
        self.function, self.comm = function, comm
        self.python = PythonCalls()

    def __call__(self, gradients: list[Any]) -> list[Any]:
        averaged = self.python(self.run, gradients, [g.dtype for g in gradients])
        for new, old in zip(averaged, gradients, strict=True):
            new.set_shape(old.shape)
        return averaged

    def run(self, *gradients: np.ndarray) -> list[np.ndarray]:
        """Called from the graph, at every step."""
        return learners_average(self.function, list(gradients), self.comm)


class HorovodExchange:
    """All-reduces of a few groups of gradients, the last layers' first.

    The backward pass makes those first, so that they travel while it goes on to the earlier layers.
    """

    def __init__(self, experiment: Experiment, comm: Any) -> None:
        self.hvd = comm.hvd
        kinds = self.hvd.Compression
        self.compression = kinds.fp16 if experiment.fp16_allreduce else kinds.none

    def __call__(self, gradients: list[Any]) -> list[Any]:
        averaged: list[Any] = []
        for i, group in enumerate(in_groups(gradients[::-1])):
            averaged += self.hvd.grouped_allreduce(
                group, op=self.hvd.Average, compression=self.compression, name=f"gradients/{i}"
            )
        return averaged[::-1]


def in_groups(gradients: Sequence[Any]) -> list[list[Any]]:
    """The gradients in `MESSAGES` groups of about the same number of bytes, in order."""
    share = sum(g.shape.num_elements() for g in gradients) / MESSAGES
    groups_made: list[list[Any]] = [[]]
    held = 0
    for gradient in gradients:
        if held >= share * len(groups_made) and len(groups_made) < MESSAGES:
            groups_made.append([])
        groups_made[-1].append(gradient)
        held += gradient.shape.num_elements()
    return groups_made

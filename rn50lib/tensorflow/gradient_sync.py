"""Gradient synchronisation for TensorFlow, in the step's graph: Horovod, or a learner's function.

Horovod's Keras integration and DistributedOptimizer are not used: under Keras 3 they average
nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rn50lib import distributed as groups
from rn50lib import hooks
from rn50lib.tf import PythonCalls

GradientSync = Callable[[list[Any]], list[Any]]
MESSAGES = 4  # groups of gradients that are sent one after the other


def gradient_sync(comm: groups.Comm) -> GradientSync:
    """Return the function that averages gradients over a group of workers."""
    function = hooks.get("exchange_gradients")
    if function is not groups.average:
        return OverriddenSync(function, comm)
    if comm.size == 1 or not hasattr(comm, "hvd"):
        return list
    return functools.partial(horovod_average, comm.hvd)


class OverriddenSync:
    """Runs a learner's `exchange_gradients` on NumPy copies."""

    def __init__(self, function: Callable[..., Any], comm: groups.Comm) -> None:
        self.function, self.comm = function, comm
        self.python = PythonCalls()

    def __call__(self, gradients: list[Any]) -> list[Any]:
        """Return the learner's average."""
        averaged = self.python(self.run, gradients, [g.dtype for g in gradients])
        for new, old in zip(averaged, gradients, strict=True):
            new.set_shape(old.shape)
        return averaged

    def run(self, *gradients: np.ndarray) -> list[np.ndarray]:
        """Call the learner's function; the graph does this at every step."""
        return groups.learners_average(self.function, list(gradients), self.comm)


def horovod_average(hvd: Any, gradients: list[Any]) -> list[Any]:
    """Average a few groups of gradients over all ranks, in the order of the backward pass."""
    averaged: list[Any] = []
    for i, group in enumerate(in_groups(gradients[::-1])):
        averaged += hvd.grouped_allreduce(group, op=hvd.Average, name=f"gradients/{i}")
    return averaged[::-1]


def in_groups(gradients: Sequence[Any]) -> list[list[Any]]:
    """Divide the gradients into `MESSAGES` groups of about the same size, in order."""
    share = sum(g.shape.num_elements() for g in gradients) / MESSAGES
    groups_made: list[list[Any]] = [[]]
    held = 0
    for gradient in gradients:
        if held >= share * len(groups_made) and len(groups_made) < MESSAGES:
            groups_made.append([])
        groups_made[-1].append(gradient)
        held += gradient.shape.num_elements()
    return groups_made

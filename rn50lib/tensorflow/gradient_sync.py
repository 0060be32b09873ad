"""Gradient synchronisation for TensorFlow, in the step's graph, by Horovod.

Horovod's Keras integration and DistributedOptimizer are not used: under Keras 3 they average
nothing.
"""

from __future__ import annotations

import math
from typing import Any

from rn50lib.distributed import Comm

MESSAGES = 4  # groups of gradients that are sent one after the other


def average(gradients: list[Any], comm: Comm) -> list[Any]:
    """Average gradients over all ranks, a few at a time, in the order of the backward pass."""
    hvd = getattr(comm, "hvd", None)
    if comm.size == 1 or hvd is None:
        return gradients
    waiting, averaged = gradients[::-1], []
    size = math.ceil(len(waiting) / MESSAGES)
    for first in range(0, len(waiting), size):
        group, name = waiting[first : first + size], f"gradients/{first}"
        averaged += hvd.grouped_allreduce(group, op=hvd.Average, name=name)
    return averaged[::-1]

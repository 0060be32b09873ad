"""Talk between workers: rank, size, broadcast, sum and barrier, whatever carries them.

This layer knows no optimizer and no framework; arrays are NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np


class Comm(Protocol):
    """A group of `size` workers; this one is number `rank`, and `local_rank` on its own host."""

    rank: int
    size: int
    local_rank: int

    def broadcast(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rank 0's arrays, by name, on every rank."""
        ...

    def sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each array added up over all ranks, on every rank."""
        ...

    def barrier(self) -> None:
        """Return when every rank has come here."""
        ...

    def run(self, function: Callable[[Any], Any], state: Any) -> Any:
        """Call `function(state)`; an elastic group calls it again when workers come or go."""
        ...


def connect(name: str = "local") -> Comm:
    """The group that this process belongs to."""
    from rn50lib.comm.local import Local

    return Local()


def average(gradients: Sequence[np.ndarray], comm: Comm) -> list[np.ndarray]:
    """Every gradient averaged over all ranks: sum, then divide by their number."""
    if comm.size == 1:
        return list(gradients)
    return [total / comm.size for total in comm.sum(gradients)]


def broadcast_start(arrays: dict[str, np.ndarray], comm: Comm) -> dict[str, np.ndarray]:
    """Rank 0's initial weights on every rank, so that all of them start from the same point."""
    return comm.broadcast(arrays) if comm.size > 1 else arrays

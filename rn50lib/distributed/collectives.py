"""What Horovod and torch.distributed have in common: exchanges as few long vectors.

A message costs its latency however short it is, and a model has hundreds of small arrays. So the
arrays of one type travel as one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


class Vectors:
    """`Comm` on top of two operations on NumPy vectors: `add_up` and `from_first`."""

    rank: int
    size: int
    local_rank: int

    def add_up(self, vector: np.ndarray) -> np.ndarray:
        """The vector summed over all ranks."""
        raise NotImplementedError

    def from_first(self, vector: np.ndarray) -> np.ndarray:
        """Rank 0's vector."""
        raise NotImplementedError

    def broadcast(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        sent = joined(list(arrays.values()), self.from_first)
        return dict(zip(arrays, sent, strict=True))

    def sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return joined(arrays, self.add_up)

    def barrier(self) -> None:
        self.add_up(np.zeros(1, np.float32))


def joined(
    arrays: Sequence[np.ndarray], exchange: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """`exchange` applied to the arrays, one call for all that have the same type."""
    arrays = [np.asarray(array) for array in arrays]
    results: list[np.ndarray] = list(arrays)
    for dtype in sorted({array.dtype for array in arrays}, key=str):
        which = [i for i, array in enumerate(arrays) if array.dtype == dtype]
        whole = exchange(np.concatenate([arrays[i].ravel() for i in which]))
        ends = np.cumsum([arrays[i].size for i in which])[:-1]
        for i, part in zip(which, np.split(whole, ends), strict=True):
            results[i] = part.reshape(arrays[i].shape)
    return results

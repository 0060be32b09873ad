"""Collectives that Horovod and torch.distributed share: one long vector per type of array.

Every message costs its latency, and a model has hundreds of small arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


class FlatCollectives:
    """`Comm` on top of two operations on NumPy vectors: `sum_vector` and `broadcast_vector`."""

    rank: int
    size: int
    local_rank: int

    def sum_vector(self, vector: np.ndarray) -> np.ndarray:
        """Return the sum of the vector over all ranks."""
        raise NotImplementedError

    def broadcast_vector(self, vector: np.ndarray) -> np.ndarray:
        """Return rank 0's vector."""
        raise NotImplementedError

    def broadcast(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return rank 0's arrays, by name."""
        return dict(zip(arrays, joined(list(arrays.values()), self.broadcast_vector), strict=True))

    def sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the sum of each array over all ranks."""
        return joined(arrays, self.sum_vector)

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self.sum_vector(np.zeros(1, np.float32))


def joined(
    arrays: Sequence[np.ndarray], exchange: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Apply `exchange` to the arrays, in one call for all that have the same type."""
    arrays = [np.asarray(array) for array in arrays]
    results: list[np.ndarray] = list(arrays)
    for dtype in sorted({array.dtype for array in arrays}, key=str):
        which = [i for i, array in enumerate(arrays) if array.dtype == dtype]
        whole = exchange(np.concatenate([arrays[i].ravel() for i in which]))
        ends = np.cumsum([arrays[i].size for i in which])[:-1]
        for i, part in zip(which, np.split(whole, ends), strict=True):
            results[i] = part.reshape(arrays[i].shape)
    return results

"""The optimizer's rules as pure functions on NumPy arrays.

The backends use their framework's fused implementations of the same rules, and are tested against
these.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def sgd(
    weight: np.ndarray,
    gradient: np.ndarray,
    velocity: np.ndarray,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> tuple[np.ndarray, np.ndarray]:
    """One step of SGD with momentum: the new weight and the new velocity.

    Weight decay is L2 in the gradient. The velocity does not contain the learning rate, so a change
    of the rate acts on the whole velocity at once (torch's rule; Keras folds the rate in).
    """
    velocity = momentum * velocity + (gradient + weight_decay * weight)
    return weight - lr * velocity, velocity


def decay_groups(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names of the parameters with and without weight decay. The reference decays all of them."""
    return list(names), []

"""The optimizer's rules as pure functions on NumPy arrays.

The backends use their framework's fused implementations of the same rules, and are tested against
these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what `rn50 --help` needs from here does without it
    import numpy as np

FIRST_SCALE, GROWTH_STEPS = 2.0**16, 2000  # of a loss scale, where nothing else is said
GROWTH, BACKOFF = 2.0, 0.5  # powers of two: scaling and unscaling round nothing
SMALLEST_SCALE, LARGEST_SCALE = 1.0, 2.0**24
TRUST = 0.001  # LARS' coefficient: You et al. 2017, and MLPerf's reference


def parse_loss_scale(text: str) -> tuple[float, int | None]:
    """Return the first scale and the good steps after which it doubles (None: a static scale).

    'dynamic', 'dynamic:START', 'dynamic:START:STEPS' or a number. Raises ValueError otherwise.
    """
    word, *numbers = text.split(":")
    dynamic = word == "dynamic"
    try:
        start = float(numbers[0] if dynamic and numbers else FIRST_SCALE if dynamic else text)
        growth_steps = int(numbers[1]) if dynamic and numbers[1:] else GROWTH_STEPS
    except ValueError:
        start = growth_steps = 0
    if len(numbers) > 2 or growth_steps < 1 or not SMALLEST_SCALE <= start <= LARGEST_SCALE:
        raise ValueError(
            "must be dynamic, dynamic:START:STEPS or a number, and the scale from 1 to 2^24 ="
            f" {LARGEST_SCALE:.0f}"
        )
    return start, growth_steps if dynamic else None


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


def trust_ratio(weight: np.ndarray, gradient: np.ndarray, weight_decay: float) -> float:
    """How much of the learning rate a layer gets under LARS: about TRUST times its weights' length,
    in lengths of its gradient. 1 where either of the two is zero."""
    import numpy as np

    length, slope = np.linalg.norm(weight), np.linalg.norm(gradient)
    if length == 0 or slope == 0:
        return 1.0
    return float(TRUST * length / (slope + weight_decay * length))


def lars(
    weight: np.ndarray,
    gradient: np.ndarray,
    velocity: np.ndarray,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> tuple[np.ndarray, np.ndarray]:
    """One step of LARS: the new weight and the new velocity, for a tensor that is a layer.

    Algorithm 1 of You, Gitman and Ginsburg 2017 (arXiv:1708.03888), as MLPerf's reference has it:
    the velocity holds the learning rate, so that a step that was long when the rate was high stays
    long. A batch norm's gamma and beta and a bias are no layer: those, of one dimension, go by the
    plain `lr`.
    """
    rate = lr * (trust_ratio(weight, gradient, weight_decay) if weight.ndim > 1 else 1.0)
    velocity = momentum * velocity + rate * (gradient + weight_decay * weight)
    return weight - velocity, velocity


def weights_only(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names of the parameters with and without weight decay: convolutions and the last layer's
    weights, against every gamma, beta and bias (He et al. 2018, arXiv:1812.01187, section 3.1)."""
    listed = list(names)
    decayed = [name for name in listed if name.endswith(".weight")]
    return decayed, [name for name in listed if not name.endswith(".weight")]


def decay_groups(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names of the parameters with and without weight decay. The reference decays all of them."""
    return list(names), []


def loss_scale_update(
    scale: float, good_steps: int, finite: bool, growth_steps: int
) -> tuple[float, int]:
    """The dynamic loss scale after a step, and how many good steps it has held for.

    A gradient that is not finite halves the scale, and its step is skipped. After `growth_steps`
    good steps in a row the scale doubles, to try whether more of the small gradients can be kept
    (Micikevicius et al. 2018). It stays from 1 to 2**24.
    """
    if not finite:
        return max(scale * BACKOFF, SMALLEST_SCALE), 0
    if good_steps + 1 < growth_steps:
        return scale, good_steps + 1
    return min(scale * GROWTH, LARGEST_SCALE), 0

"""The rules of the optimizers: what decays, for both backends, and PyTorch's loss scale."""

from __future__ import annotations

from collections.abc import Iterable

# A dynamic loss scale (Micikevicius et al. 2018): a gradient that is not finite multiplies it by
# BACKOFF, and its step is skipped; GROWTH_STEPS good steps in a row multiply it by GROWTH.
FIRST_SCALE, GROWTH_STEPS = 2.0**16, 2000  # by default
GROWTH, BACKOFF = 2.0, 0.5  # powers of two: scaling and unscaling round nothing
SMALLEST_SCALE, LARGEST_SCALE = 1.0, 2.0**24


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
    fits = SMALLEST_SCALE <= start <= LARGEST_SCALE and 1 <= growth_steps < 2**31
    if len(numbers) > 2 or not fits:
        raise ValueError(
            "must be dynamic, dynamic:START:STEPS or a number, and the scale from 1 to 2^24 ="
            f" {LARGEST_SCALE:.0f}"
        )
    return start, growth_steps if dynamic else None


def weight_decays(names: Iterable[str], wd: float, bn_decay: bool) -> dict[str, float]:
    """Return the weight decay of each parameter by name.

    The reference decays all of them. Without `bn_decay` only `.weight` arrays decay (He et al.
    2018, arXiv:1812.01187, section 3.1).
    """
    return {name: wd if bn_decay or name.endswith(".weight") else 0.0 for name in names}

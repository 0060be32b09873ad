"""The rules that both backends' optimizers share: what decays, and the loss scale."""

from __future__ import annotations

from collections.abc import Iterable

from rn50lib import hooks
from rn50lib.errors import UserError

FIRST_SCALE, GROWTH_STEPS = 2.0**16, 2000  # of a loss scale, by default
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
    if len(numbers) > 2 or growth_steps < 1 or not SMALLEST_SCALE <= start <= LARGEST_SCALE:
        raise ValueError(
            "must be dynamic, dynamic:START:STEPS or a number, and the scale from 1 to 2^24 ="
            f" {LARGEST_SCALE:.0f}"
        )
    return start, growth_steps if dynamic else None


def weights_only(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names with and without weight decay, where only `.weight` arrays decay.

    He et al. 2018, arXiv:1812.01187, section 3.1.
    """
    listed = list(names)
    decayed = [name for name in listed if name.endswith(".weight")]
    return decayed, [name for name in listed if not name.endswith(".weight")]


def decay_groups(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names with and without weight decay; the reference decays all parameters."""
    return list(names), []


def weight_decays(names: Iterable[str], wd: float, bn_decay: bool) -> dict[str, float]:
    """Return the weight decay of each parameter by name: `wd` or 0."""
    names = list(names)
    groups = hooks.get("decay_groups")
    if groups is decay_groups and not bn_decay:
        groups = weights_only
    decayed, plain = groups(names)
    if sorted([*decayed, *plain]) != sorted(names):
        raise UserError(
            f"decay_groups put {len(decayed)} + {len(plain)} names in its groups: each of the"
            f" {len(names)} parameters must be in exactly one, or it is not trained"
        )
    return dict.fromkeys(decayed, wd) | dict.fromkeys(plain, 0.0)


def loss_scale_update(
    scale: float, good_steps: int, finite: bool, growth_steps: int
) -> tuple[float, int]:
    """Return the dynamic loss scale after a step, and its number of good steps in a row.

    A gradient that is not finite halves the scale, and its step is skipped. After `growth_steps`
    good steps the scale doubles (Micikevicius et al. 2018). It stays from 1 to 2**24.
    """
    if not finite:
        return max(scale * BACKOFF, SMALLEST_SCALE), 0
    if good_steps + 1 < growth_steps:
        return scale, good_steps + 1
    return min(scale * GROWTH, LARGEST_SCALE), 0

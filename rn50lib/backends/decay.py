"""Which parameters decay, and how much: the same for both frameworks."""

from __future__ import annotations

from collections.abc import Iterable

from rn50lib import optim, seams
from rn50lib.config import Experiment
from rn50lib.errors import UserError


def weight_decays(experiment: Experiment, names: Iterable[str]) -> dict[str, float]:
    """The weight decay of each parameter, by name: `wd` or 0.

    Raises UserError where a learner's `decay_groups` leaves a parameter out or has one twice.
    """
    names = list(names)
    groups = seams.get("decay_groups")
    if groups is optim.decay_groups and not experiment.bn_decay:
        groups = optim.weights_only
    decayed, plain = groups(names)
    if sorted([*decayed, *plain]) != sorted(names):
        raise UserError(
            f"decay_groups put {len(decayed)} + {len(plain)} names in its groups: each of the"
            f" {len(names)} parameters must be in exactly one, or it is not trained"
        )
    return dict.fromkeys(decayed, experiment.wd) | dict.fromkeys(plain, 0.0)

"""What the steps of both frameworks share: weight decay, a learner's exchange, short errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rn50lib import hooks as overrides
from rn50lib import optim
from rn50lib.config import TrainConfig
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.resnet import Network

USABLE = 0.85  # of the memory: the rest is the driver's, the libraries' and the allocator's


def weight_decays(config: TrainConfig, names: Iterable[str]) -> dict[str, float]:
    """Return the weight decay of each parameter by name: `wd` or 0.

    Raises UserError if a learner's `decay_groups` leaves a parameter out or has one twice.
    """
    names = list(names)
    groups = overrides.get("decay_groups")
    if groups is optim.decay_groups and not config.bn_decay:
        groups = optim.weights_only
    decayed, plain = groups(names)
    if sorted([*decayed, *plain]) != sorted(names):
        raise UserError(
            f"decay_groups put {len(decayed)} + {len(plain)} names in its groups: each of the"
            f" {len(names)} parameters must be in exactly one, or it is not trained"
        )
    return dict.fromkeys(decayed, config.wd) | dict.fromkeys(plain, 0.0)


def learners_average(
    function: Callable[..., Any], gradients: list[np.ndarray], comm: Comm
) -> list[np.ndarray]:
    """Return what a learner's `exchange_gradients` makes of the gradients of this rank.

    Raises UserError if it is not an array of the same shape for each.
    """
    averaged = list(function(gradients, comm))
    if len(averaged) != len(gradients):
        raise UserError(
            f"exchange_gradients returned {len(averaged)} arrays for {len(gradients)} gradients"
        )
    arrays = [np.asarray(new, old.dtype) for new, old in zip(averaged, gradients, strict=True)]
    for new, old in zip(arrays, gradients, strict=True):
        if new.shape != old.shape:
            raise UserError(
                f"exchange_gradients made shape {new.shape} of a gradient of shape {old.shape}"
            )
    return arrays


def first_line(error: BaseException) -> str:
    """Return the message of a framework's error, without its stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"[:200]


def memory_full(
    config: TrainConfig, net: Network, capacity: int | None, training: bool
) -> UserError:
    """Return an error that names -b and the batch that would fit a device of `capacity` bytes.

    It names half the batch if the capacity is unknown, or would do: something else is using it.
    """
    batch, pixels = config.batch_size, config.image_shape
    fits = batch // 2
    if capacity:
        from rn50lib import memory

        usable = int(USABLE * capacity)
        predicted = memory.largest_batch(net, pixels, config.dtype, usable, training)
        fits = predicted if predicted < batch else fits
    has = f" ({capacity / 1e9:.1f} GB)" if capacity else ""
    problem = f"--batch-size {batch}: the device's memory{has} is full"
    if fits < 1:
        return UserError(f"{problem}: not even one image fits; use a smaller --image-shape")
    remedy = f"use -b {fits}"
    if training:
        remedy += f"; with --macrobatch-size {batch // fits * fits} the updates stay about as large"
    return UserError(f"{problem}: {remedy}")

"""What a user is told when the device's memory is full."""

from __future__ import annotations

from rn50lib import memory
from rn50lib.config import Experiment
from rn50lib.errors import UserError
from rn50lib.network import Network

USABLE = 0.85  # of the memory: the rest is the driver's, the libraries' and the allocator's


def memory_full(
    experiment: Experiment, net: Network, capacity: int | None, training: bool
) -> UserError:
    """One line that names -b and the batch that would fit a device of `capacity` bytes.

    Half the batch is named where the capacity is not known, or would do: somebody else is using it.
    """
    batch, pixels = experiment.batch_size, experiment.image_shape
    has = f" ({capacity / 1e9:.1f} GB)" if capacity else ""
    fits = batch // 2
    if capacity:
        usable = int(USABLE * capacity)
        predicted = memory.largest_batch(net, pixels, experiment.dtype, usable, training)
        fits = predicted if predicted < batch else fits
    said = f"--batch-size {batch}: the device's memory{has} is full"
    if fits < 1:
        return UserError(f"{said}: not even one image fits; use a smaller --image-shape")
    beside = ""
    if training:
        beside = f"; with --macrobatch-size {batch // fits * fits} the updates stay about as large"
    return UserError(f"{said}: use -b {fits}{beside}")

"""What random crops leave of an image."""

from __future__ import annotations

import numpy as np

from rn50lib import recipe


def crop_shares(
    augmentation: recipe.Augmentation, width: int, height: int, count: int
) -> np.ndarray:
    """Return the shares of the image's area that `count` random crops hold, float64 (count,)."""
    boxes = (recipe.augment(i, width, height, augmentation)[0] for i in range(count))
    return np.fromiter((w * h for _, _, w, h in boxes), np.float64, count) / (width * height)

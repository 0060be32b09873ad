"""The published ResNet-50 v1.5 recipe as numbers, and the road signs'.

Everything that decides accuracy is here, once; all pipelines and backends read it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

MEAN = tuple(255 * x for x in (0.485, 0.456, 0.406))  # of RGB values 0..255
STD = tuple(255 * x for x in (0.229, 0.224, 0.225))

BN_MOMENTUM = 0.9  # share of the old running average that is kept (torch calls 0.1 the same thing)
BN_EPS = 1e-5
LR_BATCH, LR_FACTOR = 256, 0.1  # the batch of `lr`; what a step of the schedule multiplies by
CURVES: dict[str, Callable[[float], float]] = {  # share of the peak rate by the share done
    # Loshchilov and Hutter 2016, arXiv:1608.03983, after the warm-up as in arXiv:1812.01187
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
SCHEDULES = ("step", *CURVES)


@dataclass(frozen=True)
class Augmentation:
    """The random changes to a training image.

    A crop has a share of the image's `area` and an `aspect` (width / height) within these limits.
    `flip` is the probability of a horizontal flip.
    """

    area: tuple[float, float] = (0.05, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5


@dataclass(frozen=True)
class Recipe:
    """A published training recipe: values of the flags with these names, and their source.

    `lr` is the learning rate at a global batch of `lr_batch`. The schedule `step` multiplies it by
    `lr_factor` at each of `lr_step_epochs`, counted from 0; all others fall to 0 over all
    `num_epochs`.
    """

    name: str
    source: str
    expected: str  # accuracy to expect, with its spread and where it was measured
    num_epochs: int
    lr: float
    batch_size: int  # per worker
    image_shape: int
    warmup_epochs: float
    lr_step_epochs: tuple[float, ...]
    lr_schedule: str = "step"
    mom: float = 0.9
    wd: float = 1e-4
    bn_decay: bool = True  # weight decay on batch norm and bias too, not only on weights
    zero_gamma: bool = False  # start each block as its shortcut: Goyal et al. 2017, section 5.1
    label_smoothing: float = 0.0  # Szegedy et al. 2015, arXiv:1512.00567, section 7
    crop_area: float = 0.05
    lr_batch: int = LR_BATCH
    lr_factor: float = LR_FACTOR


REFERENCE = Recipe(
    name="reference",
    source="ResNet50 v1.5 for MXNet, NVIDIA, 18.12; Goyal et al. 2017, arXiv:1706.02677",
    expected="top-1 76.49 (FP16) and 76.67 (FP32) on ImageNet, 8 x V100, published",
    num_epochs=90,
    lr=0.1,
    batch_size=208,
    image_shape=224,
    warmup_epochs=5.0,
    lr_step_epochs=(30.0, 60.0, 80.0),
)


def rescaled(recipe: Recipe, epochs: int) -> Recipe:
    """Return a recipe over other `epochs`: warm-up for 1/18 of them, decay at 1/3, 2/3, 8/9."""
    warmup, *steps = (round(epochs * part, 2) for part in (1 / 18, 1 / 3, 2 / 3, 8 / 9))
    return replace(recipe, num_epochs=epochs, warmup_epochs=warmup, lr_step_epochs=tuple(steps))


# The built-in data: the reference's schedule, 90 epochs shrunk to 9.
ROADSIGNS = rescaled(
    replace(
        REFERENCE,
        name="roadsigns",
        source="the reference's schedule, shortened; learning rate from a sweep on this data set",
        expected="top-1 86.6 (84.6 to 88.8) in bfloat16, 87.4 (85.8 to 88.3) in float32; 10 seeds",
        lr=0.4,  # after 4 of 12 epochs: 67.7% top-1 with 0.1, 77.8% with 0.2, 84.3% with 0.4
        batch_size=32,
        image_shape=64,
        zero_gamma=True,
        crop_area=0.35,  # a sign fills a quarter of its image: most crops of 5% would miss it
    ),
    epochs=9,
)

RECIPES = {recipe.name: recipe for recipe in (REFERENCE, ROADSIGNS)}


def learning_rate(progress: float, global_batch: int, recipe: Recipe = REFERENCE) -> float:
    """Return the learning rate after `progress` epochs, 0 or more, which may be a fraction.

    The rate scales linearly with the global batch and warms up linearly from zero over
    `warmup_epochs` (Goyal et al. 2017, sections 2.1 and 2.2). Then it follows the schedule. A
    run passes its `TrainConfig`, which has the same attributes, as `recipe`.
    """
    peak = recipe.lr * global_batch / recipe.lr_batch
    if progress < recipe.warmup_epochs:
        return peak * progress / recipe.warmup_epochs
    if recipe.lr_schedule != "step":
        length = recipe.num_epochs - recipe.warmup_epochs
        done = min(1.0, (progress - recipe.warmup_epochs) / length) if length > 0 else 0.0
        return peak * CURVES[recipe.lr_schedule](done)
    passed = sum(1 for epoch in recipe.lr_step_epochs if progress >= epoch)
    return peak * recipe.lr_factor**passed


def val_resize(image_size: int) -> int:
    """Return the shorter side in pixels before the centre crop: 256 for 224."""
    return round(image_size * 256 / 224)


Box = tuple[int, int, int, int]  # left, top, width, height in pixels


def random_crop_box(
    rng: random.Random, width: int, height: int, augmentation: Augmentation = Augmentation()
) -> Box:
    """Return a random crop, or the centre after ten failures.

    Area and aspect come from `augmentation`, the aspect uniformly in its logarithm (Szegedy et al.
    2014, arXiv:1409.4842, section 6; the fallback is torchvision's).
    """
    low, high = augmentation.aspect
    for _ in range(10):
        area = width * height * rng.uniform(*augmentation.area)
        aspect = math.exp(rng.uniform(math.log(low), math.log(high)))
        crop_width, crop_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = rng.randint(0, width - crop_width)
            top = rng.randint(0, height - crop_height)
            return left, top, crop_width, crop_height
    crop_width = min(width, max(1, round(height * high)))
    crop_height = min(height, max(1, round(width / low)))
    return (width - crop_width) // 2, (height - crop_height) // 2, crop_width, crop_height


def augment(
    seed: int, width: int, height: int, augmentation: Augmentation = Augmentation()
) -> tuple[Box, bool]:
    """Return the crop of a `width` x `height` training image and whether to mirror it."""
    rng = random.Random(seed)
    box = random_crop_box(rng, width, height, augmentation)
    return box, rng.random() < augmentation.flip


def center_crop_box(width: int, height: int, image_size: int, resize: int) -> Box:
    """Return the part of the original image that "resize, then crop the centre" keeps.

    Cropping first decodes less. `resize` is the shorter side after resizing, at least `image_size`.
    """
    side = min(width, height) * image_size / resize
    side_px = max(1, min(round(side), width, height))
    return (width - side_px) // 2, (height - side_px) // 2, side_px, side_px

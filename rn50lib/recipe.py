"""The published ResNet-50 v1.5 recipe as numbers, and recipes for large batches.

Everything that decides accuracy stands here once; pipelines and backends read it, so that no loader
or framework can train by slightly different rules.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

MEAN = tuple(255 * x for x in (0.485, 0.456, 0.406))  # of RGB values 0..255
STD = tuple(255 * x for x in (0.229, 0.224, 0.225))

BN_MOMENTUM = 0.9  # share of the old running average that is kept (torch calls 0.1 the same thing)
BN_EPS = 1e-5
OPTIMIZERS = ("sgd", "lars")
SCHEDULES = ("step", "cosine", "poly")
POLY_POWER = 2


@dataclass(frozen=True)
class Augmentation:
    """What happens to a training image before it becomes `size` x `size` pixels.

    `area` is the share of the image's area that a crop may have, `aspect` its width / height,
    `flip` the probability of a mirror image, `upside_down` that of one turned over, and `rotate`
    the degrees by which it is turned at most, to either side. The recipe uses neither of the last
    two.
    """

    area: tuple[float, float] = (0.05, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    upside_down: float = 0.0
    rotate: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """A training recipe: what the run does, apart from the machine that it runs on.

    `lr` is the learning rate at a global batch of `lr_batch`; epochs are counted from 0. With the
    schedule `step` each epoch of `lr_step_epochs` multiplies the rate by `lr_factor` from then on;
    `cosine` and `poly` fall to 0 over all `epochs`. `global_batch` is what the recipe was published
    with, where its rate is known to be right for that one.
    """

    name: str
    source: str
    epochs: int
    lr: float
    batch_size: int  # per worker
    image_size: int
    warmup_epochs: float
    lr_step_epochs: tuple[float, ...]
    lr_batch: int = 256
    lr_factor: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    zero_gamma: bool = False  # start each block as its shortcut: Goyal et al. 2017, section 5.1
    bn_decay: bool = True  # weight decay on batch norm and bias too, not on weights alone
    label_smoothing: float = 0.0  # Szegedy et al. 2015, arXiv:1512.00567, section 7
    lr_schedule: str = "step"
    optimizer: str = "sgd"
    global_batch: int | None = None
    augmentation: Augmentation = Augmentation()
    expected: str = ""  # accuracy to expect, with its spread and where it was measured


REFERENCE = Recipe(
    name="reference",
    source="ResNet50 v1.5 for MXNet, NVIDIA, 18.12; Goyal et al. 2017, arXiv:1706.02677",
    epochs=90,
    lr=0.1,
    batch_size=208,
    image_size=224,
    warmup_epochs=5,
    lr_step_epochs=(30, 60, 80),
    expected="top-1 76.49 (FP16) and 76.67 (FP32) on ImageNet, 8 x V100, published",
)


def shortened(recipe: Recipe, epochs: int) -> Recipe:
    """The same schedule over other `epochs`: warm-up 1/18 of them, decay at 1/3, 2/3, 8/9."""
    steps = tuple(round(epochs * part, 6) for part in (1 / 3, 2 / 3, 8 / 9))
    return replace(recipe, epochs=epochs, warmup_epochs=epochs / 18, lr_step_epochs=steps)


# The built-in data: the reference's schedule, 90 epochs shrunk to 9.
ROADSIGNS = shortened(
    replace(
        REFERENCE,
        name="roadsigns",
        source="the reference's schedule, shortened; learning rate from a sweep on this data set",
        lr=0.4,  # after 4 of 12 epochs: 67.7 % top-1 with 0.1, 77.8 % with 0.2, 84.3 % with 0.4
        batch_size=32,
        image_size=64,
        zero_gamma=True,
        # a sign fills a quarter of its picture: most crops of 5 % would show none of it
        augmentation=Augmentation(area=(0.35, 1.0)),
        expected="top-1 84.6 to 87.8 (bfloat16) and 86.8 to 87.5 (float32), 3 seeds each",
    ),
    epochs=9,
)

GOYAL = replace(
    REFERENCE,
    name="goyal2017",
    source="Goyal et al. 2017, arXiv:1706.02677, sections 5.1 and 5.2",
    batch_size=32,
    zero_gamma=True,
    bn_decay=False,
    augmentation=Augmentation(area=(0.08, 1.0)),
    global_batch=8192,
    expected="top-1 76.26 ± 0.09 (76.40 ± 0.12 at a global batch of 256) on ImageNet, 5 trainings,"
    " 256 x P100, published",
)

NVIDIA_COSINE = replace(
    REFERENCE,
    name="nvidia_cosine",
    source="ResNet50 v1.5 for PyTorch, NVIDIA DeepLearningExamples, 20.12, 90 epochs",
    lr=0.256,
    batch_size=256,
    momentum=0.875,
    weight_decay=2**-15,
    warmup_epochs=8,
    lr_step_epochs=(),
    lr_schedule="cosine",
    label_smoothing=0.1,
    bn_decay=False,
    augmentation=Augmentation(area=(0.08, 1.0)),
    global_batch=2048,
    expected="top-1 77.12 ± 0.11 (mixed) and 76.95 ± 0.18 (TF32) on ImageNet, 8 x A100, published",
)

# MLPerf trains until 75.9 % are reached. Its rates end at 1e-4 and not at 0, and its last layer
# starts from smaller weights; the rate does not grow in proportion to the batch.
MLPERF_LARS_8K = replace(
    REFERENCE,
    name="mlperf_lars_8k",
    source="reference convergence points of MLPerf Training 4.0, ResNet, batch 8192",
    epochs=44,
    lr=17 * 256 / 8192,
    batch_size=64,
    weight_decay=2e-4,
    warmup_epochs=5,
    lr_step_epochs=(),
    lr_schedule="poly",
    label_smoothing=0.1,
    bn_decay=False,
    optimizer="lars",
    global_batch=8192,
    expected="top-1 75.9 after 41 to 44 epochs on ImageNet, 10 trainings, TPU v4, published",
)
MLPERF_LARS_64K = replace(
    MLPERF_LARS_8K,
    name="mlperf_lars_64k",
    source="reference convergence points of MLPerf Training 4.0, ResNet, batch 65536",
    epochs=89,
    lr=24.699 * 256 / 65536,
    batch_size=128,
    momentum=0.951807,
    weight_decay=1e-4,
    warmup_epochs=31,
    global_batch=65536,
    expected="top-1 75.9 after 83 to 86 epochs on ImageNet, 10 trainings, TPU v3, published",
)

LARGE_BATCH = (GOYAL, NVIDIA_COSINE, MLPERF_LARS_8K, MLPERF_LARS_64K)
RECIPES = {recipe.name: recipe for recipe in (REFERENCE, ROADSIGNS, *LARGE_BATCH)}


def learning_rate(progress: float, global_batch: int, recipe: Recipe = REFERENCE) -> float:
    """The learning rate after `progress` epochs (fractions count: the warm-up is per step).

    Linear scaling with the global batch, a linear warm-up from zero to the scaled rate over
    `warmup_epochs`, and a factor of `lr_factor` at each of `lr_step_epochs`
    (Goyal et al. 2017, sections 2.1 and 2.2), or another schedule's `descent`.
    """
    peak = recipe.lr * global_batch / recipe.lr_batch
    if progress < recipe.warmup_epochs:
        return peak * progress / recipe.warmup_epochs
    if recipe.lr_schedule != "step":
        return peak * descent(progress, recipe)
    passed = sum(1 for epoch in recipe.lr_step_epochs if progress >= epoch)
    return peak * recipe.lr_factor**passed


def descent(progress: float, recipe: Recipe) -> float:
    """The share of the peak that is left after `progress` epochs, from 1 after the warm-up to 0.

    Half a cosine (Loshchilov and Hutter 2016, arXiv:1608.03983; with the warm-up left out of its
    length, He et al. 2018, arXiv:1812.01187), or the square of what is left of the way (You et al.
    2017, arXiv:1708.03888).
    """
    from math import cos, pi

    length = recipe.epochs - recipe.warmup_epochs
    way = min(1.0, (progress - recipe.warmup_epochs) / length) if length > 0 else 0.0
    return (1 + cos(pi * way)) / 2 if recipe.lr_schedule == "cosine" else (1 - way) ** POLY_POWER


def val_resize(image_size: int) -> int:
    """A validation image's shorter side in pixels before the centre crop: 256 for 224."""
    return round(image_size * 256 / 224)


Box = tuple[int, int, int, int]  # left, top, width, height in pixels


def random_crop_box(
    rng: random.Random, width: int, height: int, augmentation: Augmentation = Augmentation()
) -> Box:
    """A random crop: its area and aspect drawn from `augmentation`, ten tries, then the centre.

    The aspect ratio is drawn uniformly in its logarithm, so that 3/4 is as likely as 4/3
    (Szegedy et al. 2014, arXiv:1409.4842, section 6; the fallback is torchvision's).
    """
    from math import exp, log, sqrt

    low, high = augmentation.aspect
    for _ in range(10):
        area = width * height * rng.uniform(*augmentation.area)
        aspect = exp(rng.uniform(log(low), log(high)))
        crop_width, crop_height = round(sqrt(area * aspect)), round(sqrt(area / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = rng.randint(0, width - crop_width)
            top = rng.randint(0, height - crop_height)
            return left, top, crop_width, crop_height
    crop_width, crop_height = width, height
    if width < low * height:
        crop_height = max(1, round(width / low))
    elif width > high * height:
        crop_width = max(1, round(height * high))
    return (width - crop_width) // 2, (height - crop_height) // 2, crop_width, crop_height


def augment(
    seed: int, width: int, height: int, augmentation: Augmentation = Augmentation()
) -> tuple[Box, bool]:
    """The training crop of a `width` x `height` image and whether to mirror it, by `seed`."""
    rng = random.Random(seed)
    box = random_crop_box(rng, width, height, augmentation)
    return box, rng.random() < augmentation.flip


def turn(seed: int, augmentation: Augmentation = Augmentation()) -> tuple[bool, float]:
    """Whether a training crop is turned upside down, and by how many degrees it is then turned
    counter-clockwise, by the `seed` that `augment` has too.

    It draws from a stream of its own, so that these two change no crop.
    """
    if not (augmentation.upside_down or augmentation.rotate):
        return False, 0.0
    rng = random.Random(~seed)
    upside_down = rng.random() < augmentation.upside_down
    return upside_down, rng.uniform(-augmentation.rotate, augmentation.rotate)


def center_crop_box(width: int, height: int, image_size: int, resize: int | None = None) -> Box:
    """The part of the *original* image that "resize the shorter side, then crop the centre" keeps.

    Cropping first and resizing the crop gives the same picture and decodes less.
    `resize` is the shorter side after resizing, `val_resize(image_size)` unless given.
    """
    side = min(width, height) * image_size / (resize or val_resize(image_size))
    side_px = max(1, min(round(side), width, height))
    return (width - side_px) // 2, (height - side_px) // 2, side_px, side_px

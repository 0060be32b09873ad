"""Checks of ex02: the stride, the schedule, a profile, and a valley to be crossed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rn50lib.recipe import REFERENCE, Recipe
from workshop.checks import compare
from workshop.checks.compare import wrong

# --- ex02.stride ----------------------------------------------------------------------------------

Strides = tuple[int | None, ...]
BLOCKS = [(stage, index) for stage, count in enumerate((3, 4, 6, 3)) for index in range(count)]


def v15(stage: int, index: int) -> Strides:
    """Return the strides in the published tables: three convolutions and the shortcut."""
    if index:
        return 1, 1, 1, None
    return (1, 1, 1, 1) if stage == 0 else (1, 2, 1, 2)


def reason(stage: int, index: int) -> str:
    if index:
        return (
            "Only the first block of a stage, index 0, has a projection and, from stage 1 on,"
            " halves its image."
        )
    if stage:
        return (
            "The 3×3 and the projection halve the image, so that both branches have the same size"
            " when they are added."
        )
    return (
        "The max-pooling before stage 0 has halved the image; the projection is there because"
        " 64 channels come in and 256 go out."
    )


def stride(answer: Callable[[int, int], Sequence[int | None]]) -> str:
    compare.examine(answer, BLOCKS, v15, why=reason)
    return f"all {len(BLOCKS)} blocks of ResNet-50 are v1.5."


# --- ex02.work ------------------------------------------------------------------------------------

V1_MACS = 3_857_973_248  # ResNet-50 v1 at 224 pixels: convolutions and the fully-connected layer


def extra_percent() -> float:
    """Return what moving the stride adds, in per cent of v1's multiplications."""
    added = 0
    for channels, width, small in ((256, 128, 28), (512, 256, 14), (1024, 512, 7)):
        added += channels * width * ((2 * small) ** 2 - small**2)
    return 100 * added / V1_MACS


def work(answer: Any) -> str:
    value, right = compare.number(answer), extra_percent()
    if abs(value - right / (1 + right / 100)) < 0.06:
        wrong("this is the share of v1.5's multiplications.", "Divide by the 3,858 million of v1.")
    if abs(value - right) > 0.5:
        compare.known(value, WORK_MISTAKES, lambda x, y: math.isclose(x, y, rel_tol=0.04))
        which = "high" if value > right else "low"
        wrong(f"{value:g}% is too {which}.", "Only three convolutions change: count what they add.")
    return f"you said {value:g}%, and counting gives {right:.2f}%."


WORK_MISTAKES: tuple[compare.Mistake, ...] = (
    (0, "the parameters stay the same, but the work does not.",
     "Count how many pixels the same weights are used at."),
    (extra_percent() / 100, "this is the share as a fraction.", "Multiply by 100 to get percent."),
    (extra_percent() * V1_MACS / 1e8, "these are millions of multiplications.",
     "Divide by the 3,858 million of v1, and multiply by 100."),
    (extra_percent() * 4 / 3, "this is all the work of the three convolutions.",
     "They did a quarter of it before: count only the three quarters that are added."),
    (extra_percent() / 3, "this is a third of it: either one block is counted instead of three, or"
     " the pixels are only doubled.", "Three blocks change. In each, the output of the first 1×1 is"
     " twice as high *and* twice as wide: 4 times the pixels."),
)  # fmt: skip


# --- ex02.schedule --------------------------------------------------------------------------------

OTHER = replace(
    REFERENCE, name="lr 0.4 at 128, warm-up 0.5, half at 3 and 6", lr=0.4, lr_batch=128,
    warmup_epochs=0.5, lr_step_epochs=(3.0, 6.0), lr_factor=0.5,
)  # fmt: skip
FIELDS = "lr", "lr_batch", "warmup_epochs", "lr_step_epochs", "lr_factor"
COLD = replace(REFERENCE, name="reference without warm-up", warmup_epochs=0.0)
SCALED = (
    "Between the warm-up and the first decay, the rate is proportional to the global batch, and"
    " recipe.lr at one of recipe.lr_batch."
)
WARM = (
    "The rate rises in a straight line, also within an epoch, from 0 to the full rate at epoch"
    " recipe.warmup_epochs."
)
DECAY = (
    "Each epoch of recipe.lr_step_epochs that is reached (>=), counted from the start of the"
    " training, multiplies by recipe.lr_factor once."
)
RATES = {  # (progress, global batch, recipe): rate, worked out by hand, and the rule behind it
    (10.0, 256, REFERENCE): (0.1, SCALED),
    (10.0, 1664, REFERENCE): (0.65, SCALED),
    (2.0, 64, OTHER): (0.2, SCALED),
    (0.0, 256, REFERENCE): (0.0, WARM),
    (2.5, 256, REFERENCE): (0.05, WARM),
    (2.75, 256, REFERENCE): (0.055, WARM),
    (1.0, 1664, REFERENCE): (0.13, WARM),
    (0.25, 64, OTHER): (0.1, WARM),
    (5.0, 256, REFERENCE): (0.1, WARM),
    (0.0, 512, COLD): (0.2, "Without warm-up, the rate is full from the first step."),
    (29.99, 256, REFERENCE): (0.1, DECAY),
    (30.0, 256, REFERENCE): (0.01, DECAY),
    (32.0, 256, REFERENCE): (0.01, DECAY),
    (60.0, 256, REFERENCE): (0.001, DECAY),
    (3.0, 64, OTHER): (0.1, DECAY),
    (7.0, 64, OTHER): (0.05, DECAY),
}


def values_of(progress: float, batch: int, recipe: Recipe) -> str:
    """Return the rule for a rate, and the values of its recipe."""
    values = ", ".join(f"{name} {getattr(recipe, name)}" for name in FIELDS)
    return f"{RATES[progress, batch, recipe][1]} The recipe: {values}."


def schedule(answer: Callable[[float, int, Recipe], float]) -> str:
    try:
        compare.call(answer, 0.0, 512, COLD)
    except ZeroDivisionError:
        answer(0.0, 512, replace(COLD, warmup_epochs=5.0))  # if it divides by something else
        wrong(
            "a recipe without warm-up makes it divide by zero.",
            "Divide by recipe.warmup_epochs only if progress < recipe.warmup_epochs.",
        )
    compare.examine(answer, list(RATES), lambda *case: RATES[case][0], why=values_of)
    return f"{len(RATES)} points of three recipes, worked out by hand."


# --- ex02.profile ---------------------------------------------------------------------------------


class Photos(compare.Clock):
    """A data set with its own clock, which advances by known times in the parts of an item."""

    parts = ("crop", "decode", "normalise")

    def __init__(self, sizes: Sequence[float], own: dict[str, float]) -> None:
        """Take the relative size of each photo, and the seconds inside each function for size 1."""
        self.sizes, self.own, self.size = sizes, own, 0.0

    def __repr__(self) -> str:
        return f"a data set of {len(self)} images"

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> int:
        self.size = self.sizes[i]
        self.decode()
        self.crop()
        for _ in range(3):
            self.normalise()
        return i

    def decode(self) -> None:
        self.now += self.size * self.own["decode"]
        self.huffman()

    def huffman(self) -> None:
        self.now += self.size * self.own["huffman"]

    def crop(self) -> None:
        self.now += self.size * self.own["crop"]

    def normalise(self) -> None:
        self.now += self.size * self.own["normalise"]

    def times(self) -> dict[str, float]:
        """Return the milliseconds per image of each part."""
        own, ms = self.own, 1000 * float(np.mean(self.sizes))
        totals = own["crop"], own["decode"] + own["huffman"], 3 * own["normalise"]
        return {name: ms * seconds for name, seconds in zip(self.parts, totals, strict=True)}


PHOTOS = (
    Photos([1.0] * 8, {"decode": 0.001, "huffman": 0.004, "crop": 0.002, "normalise": 0.0005}),
    Photos([1.0, 2, 3, 6], {"decode": 0.0, "huffman": 0.003, "crop": 0.1, "normalise": 0.002}),
    Photos([2.0, 1, 1], {"decode": 0.001, "huffman": 0.001, "crop": 0.001, "normalise": 0.02}),
)
TOTALS = (
    "Read every image once; they differ in size. Divide the total seconds of a name by the number"
    " of images, in milliseconds: decode calls a helper, so take `total`, not `own`; normalise runs"
    " three times per image."
)


def profile(answer: Callable[[Photos, Callable[[], float]], dict[str, float]]) -> str:
    @functools.wraps(answer)
    def measured(dataset: Photos) -> Any:
        found = compare.call(answer, dataset, dataset.clock)
        dataset.need_readings()
        more = [n for n in found if n not in dataset.parts] if isinstance(found, dict) else []
        if more:
            wrong(f"{more[0]!r} is not in dataset.parts.",
                  "Return only the names in dataset.parts.")  # fmt: skip
        return found

    cases = [(photos,) for photos in PHOTOS]
    compare.examine(measured, cases, Photos.times, why=lambda case: TOTALS, rel_tol=1e-3)
    return "three data sets, with helpers, and parts that are called more than once."


# --- ex02.tune ------------------------------------------------------------------------------------

CURVATURES = (1.0, 100.0)
STEPS, TARGET = 60, 1e-3


def valley(lr: float, momentum: float) -> np.ndarray:
    """Return the distance of SGD from the bottom after each step, as an array (STEPS + 1, 2).

    The columns are the shallow and the steep direction; both begin at a distance of 1.
    """
    curve, place, velocity = np.array(CURVATURES), np.ones(2), np.zeros(2)
    path = [place]
    for _ in range(STEPS):
        velocity = momentum * velocity + curve * place
        place = place - lr * velocity
        path.append(place)
    return np.abs(np.array(path))


def tune(answer: Any) -> str:
    lr, momentum = compare.like(answer, (0.0, 0.0), "(learning rate, momentum)")
    with np.errstate(all="ignore"):
        shallow, steep = valley(lr, momentum)[-1]
    far = max(shallow, steep)
    limit = 2 * (1 + momentum)
    compare.refuse(
        (momentum < 0.2 < lr < 1,
         "a rate above 0.2 and hardly any momentum: are the two swapped?",
         "Write (learning rate, momentum)."),
        (not 0 <= momentum < 1, f"a momentum of {momentum:g} never gets there.",
         "Choose one from 0 to below 1."),
        (lr * CURVATURES[1] >= limit, f"the steep direction blows up: lr × 100 = {100 * lr:.3g} is"
         f" not below 2 (1 + momentum) = {limit:.3g}.", "Use a smaller learning rate."),
        (far > TARGET and momentum >= 0.8, f"after {STEPS} steps the distance is still {far:.1e}:"
         f" with momentum {momentum:g} the steps overshoot, and oscillate for too long.",
         "Use less momentum."),
        (far > TARGET and shallow >= steep, f"along the shallow direction {shallow:.1e} of the way"
         " is left.", "Use a larger learning rate, or more momentum."),
        (far > TARGET, f"along the steep direction the distance is still {steep:.1e}.",
         "The learning rate is close to its limit: reduce it slightly."),
    )  # fmt: skip
    return f"after {STEPS} steps the distance is {far:.1e}, below {TARGET:g}."

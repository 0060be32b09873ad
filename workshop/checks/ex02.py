"""Checks of ex02: the stride, the schedule, a profile, and a valley to be crossed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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


def stride(answer: Callable[[int, int], Sequence[int | None]]) -> str:
    why = "Index 0 has a projection; from stage 1 on, it and the 3×3 halve the image."
    compare.examine(answer, BLOCKS, v15, why=lambda *case: why)
    return f"all {len(BLOCKS)} blocks of ResNet-50 are v1.5."


# --- ex02.work ------------------------------------------------------------------------------------

V1_MACS = 3_857_973_248  # ResNet-50 v1 at 224 pixels: convolutions and the fully-connected layer


EXTRA = 100 * 3 * 3 * 256 * 128 * 28**2 / V1_MACS  # what moving the stride adds, in per cent


def work(answer: Any) -> str:
    value = compare.number(answer)
    if abs(value - EXTRA / (1 + EXTRA / 100)) < 0.06:
        wrong("this is the share of v1.5's multiplications.", "Divide by the 3,858 million of v1.")
    if abs(value - EXTRA) > 0.2:
        compare.known(value, WORK_MISTAKES, lambda x, y: math.isclose(x, y, rel_tol=0.04))
        which = "high" if value > EXTRA else "low"
        wrong(f"{value:g}% is too {which}.", "Only three convolutions change: count what they add.")
    return f"you said {value:g}%, and counting gives {EXTRA:.2f}%."


WORK_MISTAKES: tuple[compare.Mistake, ...] = (
    (0, "the parameters stay the same, but the work does not.",
     "Count how many pixels the same weights are used at."),
    (EXTRA * 4 / 3, "this is all the work of the three convolutions.",
     "They did a quarter of it before: count only the three quarters that are added."),
    (EXTRA / 3, "this is a third of it.",
     "Three blocks change. Each first 1×1 then has twice the height *and* width."),
    (EXTRA / 100, "this is a fraction.", "Multiply by 100: the answer is in percent."),
    (EXTRA * 2, "this is twice the answer.",
     "Don't count additions: the 3,858 million of v1 are multiplications only."),
    (EXTRA * V1_MACS / 1e8, "these are the millions that are added.",
     "Divide by the 3,858 million of v1, and multiply by 100."),
)  # fmt: skip


# --- ex02.schedule --------------------------------------------------------------------------------

OTHER = replace(
    REFERENCE, name="lr 0.4 at 128, warm-up 0.5, half at 3 and 6", lr=0.4, lr_batch=128,
    warmup_epochs=0.5, lr_step_epochs=(3.0, 6.0), lr_factor=0.5,
)  # fmt: skip
COLD = replace(REFERENCE, name="reference without warm-up", warmup_epochs=0.0)
RATES = {  # (progress, global batch, recipe): rate, worked out by hand
    (10.0, 256, REFERENCE): 0.1,
    (10.0, 1664, REFERENCE): 0.65,
    (2.0, 64, OTHER): 0.2,
    (0.0, 256, REFERENCE): 0.0,
    (2.75, 256, REFERENCE): 0.055,
    (1.0, 1664, REFERENCE): 0.13,
    (0.25, 64, OTHER): 0.1,
    (5.0, 256, REFERENCE): 0.1,
    (0.0, 512, COLD): 0.2,
    (29.99, 256, REFERENCE): 0.1,
    (30.0, 256, REFERENCE): 0.01,
    (32.0, 256, REFERENCE): 0.01,
    (60.0, 256, REFERENCE): 0.001,
    (3.0, 64, OTHER): 0.1,
    (7.0, 64, OTHER): 0.05,
}


def rule(progress: float, batch: int, recipe: Recipe) -> str:
    return (
        f"The rate is proportional to the global batch, {recipe.lr} at {recipe.lr_batch}; it rises"
        f" in a straight line up to epoch {recipe.warmup_epochs}, and is multiplied by"
        f" {recipe.lr_factor} at each epoch of {recipe.lr_step_epochs} that is reached (>=)."
    )


def schedule(answer: Callable[[float, int, Recipe], float]) -> str:
    compare.examine(answer, list(RATES), lambda *case: RATES[case], why=rule)
    return f"{len(RATES)} points of three recipes, worked out by hand."


# --- ex02.profile ---------------------------------------------------------------------------------


@dataclass
class Photos(compare.Clock):
    """A data set with its own clock, which advances by known times in the parts of an item.

    `sizes` are relative sizes of the photos, `own` the seconds inside each function for size 1.
    """

    sizes: Sequence[float]
    own: dict[str, float]
    name = "photos"
    parts = ("crop", "decode", "normalise")

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
    "Add up the `total` of each name, which includes its helpers, over all images and calls; divide"
    " by the number of images, in milliseconds."
)


def profile(answer: Callable[[Photos, Callable[[], float]], dict[str, float]]) -> str:
    @functools.wraps(answer)
    def measured(dataset: Photos) -> Any:
        found = dataset.measure(answer, dataset, dataset.clock)
        more = [n for n in found if n not in dataset.parts] if isinstance(found, dict) else []
        if more:
            wrong(f"{more[0]!r} is not in dataset.parts.",
                  "Return only the names in dataset.parts.")  # fmt: skip
        return found

    cases = [(photos,) for photos in PHOTOS]
    one = (lambda photos: {name: ms / len(photos) for name, ms in photos.times().items()},
           "only one image is counted.",
           "Read all images under one profiler, which you create before the loop.")  # fmt: skip
    compare.examine(measured, cases, Photos.times, [one], True, lambda case: TOTALS, rel_tol=1e-3)
    return "three data sets, with helpers, and parts that are called more than once."


# --- ex02.tune ------------------------------------------------------------------------------------

STEPS, TARGET = 60, 1e-3


def valley(lr: float, momentum: float) -> np.ndarray:
    """Return the distances of SGD from the bottom, along the valley and across it."""
    curve, place, velocity = np.array([1.0, 100.0]), np.ones(2), np.zeros(2)
    for _ in range(STEPS):
        velocity = momentum * velocity + curve * place
        place = place - lr * velocity
    return np.abs(place)


def tune(answer: Any) -> str:
    lr, momentum = compare.like(answer, (0.0, 0.0), "(learning rate, momentum)")
    with np.errstate(all="ignore"):
        along, across = valley(lr, momentum)
    remedy = (
        "Use less momentum: above about 0.8, only a few narrow ranges of rates get there in 60"
        " steps."
        if momentum > 0.79
        else "If the first is larger, use a larger rate or more momentum; if the second, a smaller"
        " rate or less momentum."
    )
    far, limit = max(along, across), 2 * (1 + momentum)
    compare.refuse(
        (100 * lr >= limit, f"SGD does not settle across the valley: lr × 100 = {100 * lr:.3g} is"
         f" not below 2 (1 + momentum) = {limit:.3g}.", "Use a smaller learning rate."),
        (not far <= TARGET, f"after {STEPS} steps the distance is {along:.1e} along the valley"
         f" and {across:.1e} across it.", remedy),
    )  # fmt: skip
    return f"after {STEPS} steps the distance is {far:.1e}, below {TARGET:g}."

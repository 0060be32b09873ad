"""Checks of ex02: the stride, the schedule, a profile, and a valley to be crossed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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


def instead(
    strides: Strides,
    blocks: Callable[[int, int], bool] = lambda stage, index: stage > 0 and index == 0,
) -> Callable[[int, int], Strides]:
    """Return a rule that is right but for some blocks, by default those that halve the image."""
    return lambda stage, index: strides if blocks(stage, index) else v15(stage, index)


def stride(answer: Callable[[int, int], Sequence[int | None]]) -> str:
    compare.examine(answer, BLOCKS, v15, STRIDE_MISTAKES, one_case=True)
    return f"all {len(BLOCKS)} blocks of ResNet-50 are v1.5."


CANNOT_ADD = ("the shortcut of a block that halves its image keeps the size: the two cannot be"
              " added.", "Give its projection the stride too.")  # fmt: skip
STRIDE_MISTAKES: tuple[compare.Mistake, ...] = (
    (instead((2, 1, 1, 2)), "this is v1: the first 1×1 has the stride.",
     "Move it to the 3×3, as in v1.5."),
    (instead((2, 2, 1, 2)), "the image is halved twice in a block.",
     "Move the stride to the 3×3: the 1×1 goes back to 1."),
    (instead((1, 2, 1, 1)), *CANNOT_ADD),
    (instead((1, 2, 1, None)), *CANNOT_ADD),
    (instead((1, 2, 1, 2), lambda stage, index: index == 0), "the first stage halves its image.",
     "Give it stride 1: the max-pooling before it has halved the image."),
    (instead((1, 1, 1, None), lambda stage, index: stage == index == 0),
     "the very first block has no projection.",
     "Give it one with stride 1: 64 channels come in and 256 go out."),
    (instead((1, 1, 1, 1), lambda stage, index: index > 0), "every block has a projection.",
     "Only the first of a stage needs one: the others keep the number of channels."),
    (instead((1, 2, 1, None), lambda stage, index: stage > 0 and index > 0),
     "every block of a stage halves its image.", "Give the stride to the first one only, index 0."),
)  # fmt: skip


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
    (extra_percent() * 4 / 3, "this is all the work of the three convolutions.",
     "They did a quarter of it before: count only the three quarters that are added."),
    (extra_percent() * V1_MACS / 1e8, "these are millions of multiplications.",
     "Divide by the 3,858 million of v1, and multiply by 100."),
    (extra_percent() / 3, "this is a third of it: either one block is counted instead of three, or"
     " the pixels are only doubled.", "Three blocks change. In each, the output of the first 1×1 is"
     " twice as high *and* twice as wide: 4 times the pixels."),
)  # fmt: skip


# --- ex02.schedule --------------------------------------------------------------------------------

OTHER = replace(
    REFERENCE, name="lr 0.4 at 128, warm-up 0.5, half at 3 and 6", lr=0.4, lr_batch=128,
    warmup_epochs=0.5, lr_step_epochs=(3.0, 6.0), lr_factor=0.5,
)  # fmt: skip
COLD = replace(REFERENCE, name="reference without warm-up", warmup_epochs=0.0)
RATES = {  # (progress, global batch, recipe): rate, worked out by hand
    (0.0, 256, REFERENCE): 0.0,
    (2.5, 256, REFERENCE): 0.05,
    (2.75, 256, REFERENCE): 0.055,
    (5.0, 256, REFERENCE): 0.1,
    (29.99, 256, REFERENCE): 0.1,
    (30.0, 256, REFERENCE): 0.01,
    (32.0, 256, REFERENCE): 0.01,
    (60.0, 256, REFERENCE): 0.001,
    (1.0, 1664, REFERENCE): 0.13,
    (10.0, 1664, REFERENCE): 0.65,
    (0.25, 64, OTHER): 0.1,
    (2.0, 64, OTHER): 0.2,
    (3.0, 64, OTHER): 0.1,
    (7.0, 64, OTHER): 0.05,
    (0.0, 512, COLD): 0.2,
}


def rate(
    progress: float, batch: int, recipe: Recipe,
    scaled: Callable[[int, int], float] = operator.truediv,
    warm: bool = True, stairs: bool = False, after: bool = False, late: bool = False,
    tenth: bool = False, once: bool = False,
) -> float:  # fmt: skip
    """Return the right rate, or one with one of the usual mistakes."""
    peak = recipe.lr * scaled(batch, recipe.lr_batch)
    if warm and progress < recipe.warmup_epochs:
        return peak * (math.floor(progress) if stairs else progress) / recipe.warmup_epochs
    steps = [step + late * recipe.warmup_epochs for step in recipe.lr_step_epochs]
    reached = sum(progress > step if after else progress >= step for step in steps)
    if once:
        reached = min(reached, 1)
    return float(peak * (0.1 if tenth else recipe.lr_factor) ** reached)


SCHEDULE_MISTAKES: tuple[compare.Mistake, ...] = (
    (partial(rate, warm=False), "the rate is full from the first step: the warm-up is missing.",
     "Return a straight line from 0 below recipe.warmup_epochs."),
    (partial(rate, scaled=lambda batch, lr_batch: 1),
     "the rate does not depend on the global batch.",
     "Multiply by global_batch / recipe.lr_batch."),
    (partial(rate, scaled=lambda batch, lr_batch: batch),
     "the rate is multiplied by the whole batch.",
     "Divide by recipe.lr_batch: recipe.lr belongs to that batch."),
    (partial(rate, scaled=lambda batch, lr_batch: batch / 256),
     "the rate is right only for a recipe whose lr_batch is 256.", "Divide by recipe.lr_batch."),
    (partial(rate, scaled=lambda batch, lr_batch: lr_batch / batch),
     "the rate falls as the global batch grows.", "Multiply by global_batch / recipe.lr_batch."),
    (partial(rate, once=True), "only the first decay is applied.",
     "Multiply by recipe.lr_factor for each epoch in recipe.lr_step_epochs that is reached."),
    (partial(rate, tenth=True), "the rate is right only for a recipe whose lr_factor is 0.1.",
     "Multiply by recipe.lr_factor at each decay."),
    (partial(rate, stairs=True), "the warm-up rises only once per epoch.",
     "Use progress as it is, with its fraction."),
    (partial(rate, after=True), "the rate at epoch 30 itself has not decayed yet.",
     "Use >=: the decay applies from that epoch on."),
    (partial(rate, late=True), "each decay comes late, by as many epochs as the warm-up has.",
     "Count the epochs from the start of training, as progress does."),
)  # fmt: skip


def schedule(answer: Callable[[float, int, Recipe], float]) -> str:
    try:
        compare.call(answer, 0.0, 512, COLD)
    except ZeroDivisionError:
        answer(0.0, 512, replace(COLD, warmup_epochs=5.0))  # if it divides by something else
        wrong(
            "a recipe without warm-up makes it divide by zero.",
            "Divide by recipe.warmup_epochs only if progress < recipe.warmup_epochs.",
        )
    compare.examine(answer, list(RATES), lambda *case: RATES[case], SCHEDULE_MISTAKES)
    return f"{len(RATES)} points of three recipes, worked out by hand."


# --- ex02.profile ---------------------------------------------------------------------------------


class Photos:
    """A data set with its own clock, which advances by known times in the parts of an item."""

    parts = ("decode", "crop", "normalise")

    def __init__(self, sizes: Sequence[float], own: dict[str, float]) -> None:
        """Take the relative size of each photo, and the seconds inside each function for size 1."""
        self.sizes, self.own, self.now, self.size = sizes, own, 0.0, 0.0
        self.readings = 0

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> int:
        self.size = self.sizes[i]
        self.decode()
        self.crop()
        for _ in range(3):
            self.normalise()
        return i

    def clock(self) -> float:
        self.readings += 1
        return self.now

    def decode(self) -> None:
        self.now += self.size * self.own["decode"]
        self.huffman()

    def huffman(self) -> None:
        self.now += self.size * self.own["huffman"]

    def crop(self) -> None:
        self.now += self.size * self.own["crop"]

    def normalise(self) -> None:
        self.now += self.size * self.own["normalise"]

    def times(self, called: int = 3, helper: bool = True, count: int | None = None) -> np.ndarray:
        """Return the milliseconds per image of each part; other arguments are a mistake's."""
        own, photos = self.own, np.mean(self.sizes[:count])
        parts = [own["decode"] + helper * own["huffman"], own["crop"], called * own["normalise"]]
        return np.array(parts) * photos * 1000


def photos() -> tuple[Photos, ...]:
    return (
        Photos([1.0] * 8, {"decode": 0.001, "huffman": 0.004, "crop": 0.002, "normalise": 0.0005}),
        Photos([1.0, 2, 3, 6], {"decode": 0.0, "huffman": 0.003, "crop": 0.1, "normalise": 0.002}),
        Photos([2.0, 1, 1], {"decode": 0.001, "huffman": 0.001, "crop": 0.001, "normalise": 0.02}),
    )


def profile(answer: Callable[[Photos, Callable[[], float]], dict[str, float]]) -> str:
    for dataset in photos():
        got = compare.call(answer, dataset, dataset.clock)
        remedy = "Divide the total seconds of each name by the number of images, in milliseconds."
        if not dataset.readings:
            remedy = "Your profiler has not read `clock`: pass it, as in cProfile.Profile(clock)."
        right = dict(zip(dataset.parts, map(float, dataset.times()), strict=True))
        rows = [(m(dataset, dataset.clock), *text) for m, *text in PROFILE_MISTAKES]
        compare.predicted(got, right, rows, remedy, rel_tol=1e-3)
        if more := [name for name in got if name not in right]:
            wrong(f"{more[0]!r} is not in dataset.parts.",
                  "Return only the names in dataset.parts.")  # fmt: skip
    return "three data sets, with helpers, and parts that are called more than once."


def named(compute: Callable[[Photos], np.ndarray]) -> Callable[[Photos, Any], dict[str, float]]:
    """Return an answer that computes its times from the data set's own."""
    return lambda dataset, clock: dict(
        zip(dataset.parts, map(float, compute(dataset)), strict=True)
    )


PROFILE_MISTAKES: tuple[compare.Mistake, ...] = (
    (named(lambda d: d.times() / 1000), "these are seconds.", "Multiply by 1,000."),
    (named(lambda d: d.times() * len(d)), "these are milliseconds for all images.",
     "Divide by len(dataset)."),
    (named(lambda d: d.times(helper=False)), "`decode` is too fast: its own time does not include"
     " the functions that it calls.", "Take the fourth number, total, instead of the third, own."),
    (named(lambda d: d.times(called=1)), "`normalise` runs three times per image, and only one"
     " call is counted.", "Divide the total by the number of images, not by the number of calls."),
    (named(lambda d: d.times(count=1) / len(d)), "only the first image was read.",
     "Read every item, as the others count, too."),
    (named(lambda d: d.times(count=1)), "only the first image was read.",
     "Read every item: the images differ in size."),
    (named(lambda d: d.times(count=-1)), "the last image was not read.",
     "Read every item, from 0 to len(dataset) - 1."),
)  # fmt: skip


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

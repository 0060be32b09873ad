"""Checks of ex02: the stride, the schedule, weight decay, and a valley to be crossed."""

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

Strides = tuple[int, int, int, int | None]


def v15(stage: int, index: int) -> Strides:
    """As the published tables have it: stages of 3, 4, 6 and 3 blocks."""
    if index:
        return 1, 1, 1, None
    return (1, 1, 1, 1) if stage == 0 else (1, 2, 1, 2)


def stride(answer: Callable[[int, int], Sequence[int | None]]) -> str:
    blocks = [(s, i) for s, count in enumerate((3, 4, 6, 3)) for i in range(count)]
    got = {place: tuple(compare.call(answer, *place)) for place in blocks}
    if any(len(values) != 4 for values in got.values()):
        wrong(
            f"block {blocks[0]} gives {got[blocks[0]]}.",
            "Give four values: the strides of the three convolutions and of the shortcut.",
        )
    down = got[1, 0]
    signs = (
        (down[:3] == (2, 1, 1), "this is v1: the first 1×1 has the stride.",
         "In v1.5 the 3×3 has it."),
        (down[:3] == (2, 2, 1), "the picture is halved twice in a block.",
         "The stride moves: 1×1 goes back to 1."),
        (down[3] in (1, None), "the shortcut of a block that halves its picture keeps the size: the"
         " two cannot be added.", "Give its projection the stride too."),
        (got[0, 0][1] == 2, "the first stage halves its picture.",
         "The max-pooling before it has done that."),
        (got[0, 0][3] is None, "the very first block has no projection.",
         "It needs one, with stride 1: 64 channels come in and 256 go out."),
        (got[1, 1][1] == 2, "every block of a stage halves its picture.",
         "Only the first block, index 0, does."),
        (got[1, 1][3] is not None, "a block after the first has a projection.",
         "Its shortcut is the picture itself."),
    )  # fmt: skip
    compare.known(True, signs)
    for place, values in got.items():
        if values != v15(*place):
            wrong(f"block {place} gives {values}.", f"Right is {v15(*place)}.")
    return f"all {len(blocks)} blocks of ResNet-50 are v1.5."


# --- ex02.work ------------------------------------------------------------------------------------

V1_MACS = 3_857_973_248  # ResNet-50 v1 at 224 pixels: convolutions and the fully-connected layer


def extra_percent() -> float:
    """What moving the stride adds, in per cent of v1's multiplications, from the three blocks."""
    added = 0
    for channels, width, small in ((256, 128, 28), (512, 256, 14), (1024, 512, 7)):
        added += channels * width * ((2 * small) ** 2 - small**2)
    return 100 * added / V1_MACS


def work(answer: Any) -> str:
    value, right = compare.number(answer), extra_percent()
    if abs(value - right) <= 0.5:
        return f"you said {value:g} %, and counting gives {right:.2f} %."
    mistakes = (
        (0, "the parameters stay the same, but the work does not.",
         "The same weights are used at more pixels."),
        (1 + right / 100, f"{value:g} is the factor.",
         "Asked for is how many per cent are added."),
        (right / 100, f"{value:g} is the share as a fraction.", "Give per cent, 100 times that."),
        (right * 4 / 3, f"{value:g} % counts all the work of the three convolutions.",
         "They did a quarter of it before: added are three quarters."),
        (right / 3, f"{value:g} % is a third of it.",
         "There are three such blocks, and 4 − 1 = 3."),
    )  # fmt: skip
    compare.known(value, mistakes, functools.partial(math.isclose, rel_tol=0.04, abs_tol=0.006))
    which = "more" if value > right else "less"
    wrong(f"{value:g} % is {which} than it is.", "Only three convolutions change at all.")


# --- ex02.schedule --------------------------------------------------------------------------------

OTHER = replace(
    REFERENCE, lr=0.4, lr_batch=128, warmup_epochs=0.5, lr_step_epochs=(3.0, 6.0), lr_factor=0.5
)
COLD = replace(REFERENCE, warmup_epochs=0.0)
RATES = (  # progress, global batch, recipe, rate: worked out by hand
    (0.0, 256, REFERENCE, 0.0),
    (2.5, 256, REFERENCE, 0.05),
    (2.75, 256, REFERENCE, 0.055),
    (5.0, 256, REFERENCE, 0.1),
    (29.99, 256, REFERENCE, 0.1),
    (30.0, 256, REFERENCE, 0.01),
    (33.0, 256, REFERENCE, 0.01),
    (60.0, 256, REFERENCE, 0.001),
    (85.0, 256, REFERENCE, 0.0001),
    (1.0, 1664, REFERENCE, 0.13),
    (10.0, 1664, REFERENCE, 0.65),
    (0.25, 64, OTHER, 0.1),
    (2.0, 64, OTHER, 0.2),
    (3.0, 64, OTHER, 0.1),
    (7.0, 64, OTHER, 0.05),
    (0.0, 512, COLD, 0.2),
)


def _schedule(
    scaled: Callable[[int, int], float] = lambda batch, lr_batch: batch / lr_batch,
    warm: bool = True,
    stairs: bool = False,
    after: bool = False,
    once: bool = False,
    late: bool = False,
) -> Callable[[float, int, Recipe], float]:
    """The right schedule, or one with one of the usual mistakes."""

    def rate(progress: float, batch: int, recipe: Recipe) -> float:
        peak = recipe.lr * scaled(batch, recipe.lr_batch)
        if warm and progress < recipe.warmup_epochs:
            return peak * (math.floor(progress) if stairs else progress) / recipe.warmup_epochs
        at = progress - recipe.warmup_epochs if late else progress
        reached = sum(at > epoch if after else at >= epoch for epoch in recipe.lr_step_epochs)
        return peak * recipe.lr_factor ** (min(1, reached) if once else reached)

    return rate


SCHEDULES = (
    (_schedule(warm=False), "the rate is full from the first step: there is no warm-up.",
     "Below recipe.warmup_epochs it is a straight line from 0."),
    (_schedule(lambda batch, lr_batch: 1), "the rate does not depend on the global batch.",
     "Multiply by global_batch / recipe.lr_batch."),
    (_schedule(lambda batch, lr_batch: batch), "the rate is multiplied by the whole batch.",
     "recipe.lr belongs to a batch of recipe.lr_batch: divide by that."),
    (_schedule(stairs=True), "the warm-up climbs once an epoch.",
     "It climbs with every step: use progress as it is, with its fraction."),
    (_schedule(after=True), "at progress 30 exactly the rate has not fallen yet.",
     "The decay holds from the epoch on: >=."),
    (_schedule(late=True), "the epochs of the decay are counted from the end of the warm-up.",
     "All epochs are counted from the start: progress >= epoch."),
    (_schedule(once=True), "the rate falls only once.",
     "Each epoch of lr_step_epochs that was reached multiplies it again."),
)  # fmt: skip


def schedule(answer: Callable[[float, int, Recipe], float]) -> str:
    close = functools.partial(np.allclose, rtol=1e-6, atol=1e-12)
    cases, right = [case[:3] for case in RATES], [case[3] for case in RATES]
    try:
        compare.call(answer, *cases[-1])
    except ZeroDivisionError:
        answer(*cases[-1][:2], replace(COLD, warmup_epochs=5.0))  # it may divide by something else
        wrong(
            "a recipe without warm-up makes it divide by zero.",
            "Divide by recipe.warmup_epochs only if progress < recipe.warmup_epochs.",
        )
    got = [compare.number(compare.call(answer, *case), "a rate") for case in cases]
    if close(got, right):
        return f"{len(RATES)} points of three recipes, worked out by hand."
    compare.known(got, SCHEDULES, close, cases)
    off = next(i for i, value in enumerate(got) if not close(value, right[i]))
    progress, batch, recipe = cases[off]
    wrong(
        f"after {progress:g} epochs, with a batch of {batch}, the rate is {got[off]:.4g}.",
        f"With warm-up {recipe.warmup_epochs:g}, steps {recipe.lr_step_epochs} and lr "
        f"{recipe.lr:g} at {recipe.lr_batch} it should be {right[off]:.4g}.",
    )


# --- ex02.decay -----------------------------------------------------------------------------------

NAMES = (
    "conv1.weight", "bn1.gamma", "bn1.beta", "layer1.0.conv1.weight", "layer1.0.bn1.gamma",
    "layer1.0.bn1.beta", "layer1.0.downsample.weight", "layer1.0.downsample_bn.gamma",
    "layer1.0.downsample_bn.beta", "fc.weight", "fc.bias",
)  # fmt: skip
MORE = ("head.bias", "stem.norm.gamma", "stem.norm.beta", "subnet.conv.weight")
KINDS_IN_LAYERS = (  # a layer's name may hold any word: only the last part says what it is
    "gamma.weight", "beta_branch.conv.weight", "debiased.weight", "weighting.bn.gamma",
    "weighting.bn.beta", "weighted.bias",
)  # fmt: skip


def decay(answer: Callable[[list[str]], tuple[Sequence[str], Sequence[str]]]) -> str:
    for names in (NAMES, MORE, NAMES[::-1], KINDS_IN_LAYERS, ()):
        halves = compare.call(answer, list(names))
        if not hasattr(halves, "__len__") or len(halves) != 2:
            wrong("what comes back is no pair.", "Return two lists: with decay, and without.")
        decayed, plain = (list(half) for half in halves)
        right = [name for name in names if name.endswith(".weight")]
        rest = [name for name in names if not name.endswith(".weight")]
        if (decayed, plain) == (right, rest):
            continue
        if (decayed, plain) == (rest, right):
            wrong("the two lists are exchanged.", "First those with weight decay.")
        if len(decayed + plain) > len(names):
            wrong("a name stands in both lists.", "Each parameter belongs to one.")
        if lost := [name for name in names if name not in decayed + plain]:
            wrong(f"{lost[0]} is in neither list: it would not be trained.", "Keep all names.")
        for name in names:
            if (name in decayed) != (name in right):
                which = "decayed" if name in decayed else "not decayed"
                wrong(
                    f"{name} is {which}.",
                    "Go by what stands behind the last dot: weights decay; gamma, beta and biases"
                    " do not.",
                )
        wrong("the order of the names has changed.", "Keep it, so that all ranks agree.")
    return "three networks, names in another order, and none at all."


# --- ex02.tune ------------------------------------------------------------------------------------

CURVATURES = (1.0, 100.0)
STEPS, TARGET = 60, 1e-3


def valley(lr: float, momentum: float, steps: int = STEPS) -> np.ndarray:
    """How far SGD is from the bottom after each step, (steps + 1, 2): along the shallow and the
    steep direction. It starts at a distance of 1 in both."""
    curve, place, velocity = np.array(CURVATURES), np.ones(2), np.zeros(2)
    path = [place]
    for _ in range(steps):
        velocity = momentum * velocity + curve * place
        place = place - lr * velocity
        path.append(place)
    return np.abs(np.array(path))


def tune(answer: Any) -> str:
    if not isinstance(answer, Sequence | np.ndarray) or len(answer) != 2:
        wrong("the answer is no pair of numbers.", "Write (learning rate, momentum).")
    lr, momentum = (
        compare.number(value, what)
        for value, what in zip(answer, ("the learning rate", "the momentum"), strict=True)
    )
    if momentum < 0.2 < lr < 1:
        wrong("a rate above 0.2 and hardly any momentum: are the two exchanged?",
              "Write (learning rate, momentum).")  # fmt: skip
    if momentum < 0:
        wrong(f"a momentum of {momentum:g} turns back at every step.",
              "Take one from 0 to below 1.")  # fmt: skip
    if momentum >= 1:
        wrong(f"a momentum of {momentum:g} forgets nothing.", "Take one from 0 to below 1.")
    if not lr > 0:
        wrong(f"with a learning rate of {lr:g} nothing is learned.", "Take one above 0.")
    with np.errstate(over="ignore", invalid="ignore"):
        shallow, steep = valley(lr, momentum)[-1]
    if lr * CURVATURES[1] >= 2 * (1 + momentum):
        wrong(
            f"the steep direction blows up: lr × 100 = {100 * lr:.3g} is not below 2 (1 + momentum)"
            f" = {2 * (1 + momentum):.3g}.",
            "Take a smaller learning rate.",
        )
    far = max(shallow, steep)
    if far <= TARGET:
        return f"after {STEPS} steps the distance is {far:.1e}, below {TARGET:g}."
    if momentum >= 0.8:
        wrong(
            f"after {STEPS} steps the distance is still {far:.1e}: with momentum {momentum:g} the"
            " steps overshoot, and swing for too long.",
            "Take less momentum.",
        )
    if shallow >= steep:
        wrong(
            f"along the shallow direction {shallow:.1e} of the way is left.",
            "A larger learning rate, or more momentum.",
        )
    wrong(
        f"along the steep direction the distance is still {steep:.1e}.",
        "The learning rate is close to its limit: take a little less.",
    )

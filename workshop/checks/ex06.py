"""Checks of ex06: memory in two precisions, the loss scale, a broken step, where numbers lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workshop.checks import compare, ex06_step
from workshop.checks.compare import wrong

# --- ex06.memory ----------------------------------------------------------------------------------

PARAMETERS, ACTIVATIONS, BATCHES = 25.6, 21.5, (1, 96)  # millions of numbers, the latter per image
FORMATS = ("float32", "float16")
Bytes = tuple[tuple[int, int], tuple[int, int]]
NEEDED: Bytes = ((12, 4), (14, 2))  # bytes a parameter and an activation, in each of FORMATS


def megabytes(needed: Bytes, batches: Sequence[int] = BATCHES) -> list[list[float]]:
    """[format][batch], from the bytes that a parameter and an activation take."""
    return [[each * PARAMETERS + act * ACTIVATIONS * n for n in batches] for each, act in needed]


MEMORY_MISTAKES = (
    (megabytes(((12, 4), (6, 2))), "in float16 everything is halved.",
     "Only activations are: master weights, gradients and momentum stay in float32."),
    (megabytes(((12, 4), (12, 2))), "in float16 a parameter takes 12 bytes, as in float32.",
     "Beside the three arrays in float32 there is the copy of the weights in 16 bits."),
    (megabytes(((12, 4), (10, 2))), "in float16 the weights are there in 16 bits only.",
     "The master weights stay in float32, and the copy comes on top."),
    (megabytes(((8, 4), (10, 2))), "one of gradients and momentum is missing.",
     "In float32 a parameter takes 3 × 4 bytes: weight, gradient, momentum."),
    (megabytes(((4, 4), (6, 2))), "only the weights are counted, and the activations.",
     "Training keeps a gradient and a momentum for each weight too."),
    (megabytes(((12, 4), (14, 4))), "the activations of float16 take 4 bytes.", "They take 2."),
    ([[row[0], 96 * row[0]] for row in megabytes(NEEDED)], "96 images take 96 times as much.",
     "Weights, gradients and momentum are there once, whatever the batch."),
    (megabytes(NEEDED, (1, 1)), "96 images take as much as one.",
     "Activations are kept for every image of the batch."),
    ([[x / 1000 for x in row] for row in megabytes(NEEDED)], "these are GB.", "Give MB."),
    ([[x / 2**20 * 1e6 for x in row] for row in megabytes(NEEDED)], "these are MiB, of 2^20 bytes.",
     "MB have a million."),
    (megabytes(((3, 1), (4, 1))), "these are millions of numbers.", "Multiply by their bytes."),
)  # fmt: skip


def memory(answer: Any) -> str:
    given = compare.dictionary(answer, '{"float32": [.., ..], "float16": [.., ..]}')
    if missing := [name for name in FORMATS if name not in given]:
        wrong(f"there is no prediction for {missing[0]}.", f"Give one for each: {FORMATS}.")
    rows = [compare.numbers(given[name], name).ravel() for name in FORMATS]
    if any(len(row) != len(BATCHES) for row in rows):
        wrong("two numbers are asked for in each format.", "A list: [batch 1, batch 96].")
    got = np.array(rows, float)
    right = np.array(megabytes(NEEDED))
    if np.allclose(got, right, rtol=0.02):
        return "one image takes a little more in float16 than in float32, and 96 take half."
    for values, what, remedy in MEMORY_MISTAKES:
        if np.allclose(got, values, rtol=0.01):
            wrong(what, remedy)
    if np.allclose(got[:, ::-1], right, rtol=0.02):
        wrong("the batches are exchanged.", "First the MB for a batch of 1, then for one of 96.")
    if np.allclose(got[::-1], right, rtol=0.02):
        wrong("the two are exchanged.", "float32 is the one with 4 bytes a number.")
    row, column = (int(i) for i in np.argwhere(~np.isclose(got, right, rtol=0.02))[0])
    which = "more" if got[row, column] > right[row, column] else "less"
    wrong(
        f"{FORMATS[row]}, batch {BATCHES[column]}: {got[row, column]:g} MB is {which} than it is.",
        "Add up weights, gradients and momentum first: they do not depend on the batch.",
    )


# --- ex06.scaler ----------------------------------------------------------------------------------

Rule = Callable[[float, int, bool, int], tuple[float, int]]
TOP = 2.0**24
RULES = (  # scale, good steps, finite, growth steps, then scale and good steps: worked out by hand
    (1024.0, 0, True, 3, 1024.0, 1),
    (1024.0, 1, True, 3, 1024.0, 2),
    (1024.0, 2, True, 3, 2048.0, 0),
    (1024.0, 0, False, 3, 512.0, 0),
    (1024.0, 2, False, 3, 512.0, 0),
    (65536.0, 1998, True, 2000, 65536.0, 1999),
    (65536.0, 1999, True, 2000, 131072.0, 0),
    (8.0, 0, True, 1, 16.0, 0),
    (2.0, 7, False, 10, 1.0, 0),
    (1.0, 7, False, 10, 1.0, 0),
    (TOP / 2, 2, True, 3, TOP, 0),
    (TOP, 2, True, 3, TOP, 0),
    (3.0, 1, False, 3, 1.5, 0),
)


def _rule(
    back: float = 0.5, grow: float = 2.0, late: int = 0, low: float = 1.0, high: float = TOP,
    after_bad: str = "zero", after_growth: str = "zero", turned: bool = False,
    at_top: str = "",
) -> Rule:  # fmt: skip
    """The rule with one of the usual mistakes."""
    count = {"zero": lambda good: 0, "kept": lambda good: good, "on": lambda good: good + 1}

    def rule(scale: float, good: int, finite: bool, growth: int) -> tuple[float, int]:
        if finite == turned:
            return max(scale * back, low), count[after_bad](good)
        if good + 1 < growth + late:
            return scale, good + 1
        full = at_top and scale * grow > high
        return min(scale * grow, high), count[at_top if full else after_growth](good)

    return rule


AT_TOP = "at 2^24 the good steps do not begin at 0 again, though there are growth_steps of them."
RULE_MISTAKES = (
    (_rule(turned=True), "finite means that all is well, and there the scale is halved.",
     "Halve it when a gradient was not finite."),
    (_rule(back=1), "after an overflow the scale stays: the next step will overflow too.",
     "Halve it."),
    (_rule(back=0.25), "an overflow quarters the scale.", "Halve it."),
    (_rule(after_bad="kept"), "an overflow does not end the row of good steps.",
     "Return 0 good steps after it."),
    (_rule(after_bad="on"), "a skipped step is counted as a good one.",
     "Return 0 good steps after it."),
    (_rule(after_growth="on"), "the count goes on after doubling: from then on every step doubles.",
     "Begin to count at 0 again."),
    (_rule(after_growth="kept"), "the count stands still after doubling: from then on every step "
     "doubles.", "Begin to count at 0 again."),
    (_rule(late=1), "the scale doubles one step late.",
     "This step is a good one too: compare good_steps + 1."),
    (_rule(late=-1), "the scale doubles one step early.",
     "growth_steps good steps in a row, with this one."),
    (_rule(late=1, low=0.0, high=np.inf), "the scale doubles one step late.",
     "This step is a good one too: compare good_steps + 1."),
    (_rule(grow=1, low=0.0, after_growth="on"), "the scale never grows.",
     "Double it after growth_steps good steps in a row."),
    (_rule(grow=1, after_growth="on"), "the scale never grows.",
     "Double it after growth_steps good steps in a row."),
    (_rule(grow=1), "the scale never grows.", "Double it after growth_steps good steps in a row."),
    (_rule(late=-(10**9)), "every good step doubles the scale.", "Wait for growth_steps of them."),
    (_rule(at_top="on"), AT_TOP, "Return 0 good steps there too."),
    (_rule(at_top="kept"), AT_TOP, "Return 0 good steps there too."),
    (_rule(low=0.0), "the scale falls below 1.", "Hold it with max(…, 1)."),
    (_rule(high=np.inf), "the scale grows beyond 2^24.", "Hold it with min(…, 2**24)."),
    (_rule(low=0.0, high=np.inf), "the scale leaves the range from 1 to 2^24.",
     "Hold it with max(…, 1) where it falls and min(…, 2**24) where it grows."),
)  # fmt: skip


def scaler(answer: Rule) -> str:
    found = [compare.call(answer, *case[:4]) for case in RULES]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in found):
        wrong(f"what comes back is {found[0]!r}.", "Return two: the scale and the good steps.")
    got = [
        (compare.number(scale, "the scale"), compare.number(good, "the number of good steps"))
        for scale, good in found
    ]
    right = [(float(case[4]), float(case[5])) for case in RULES]
    if [(good, scale) for scale, good in got] == right:
        wrong("the two are exchanged.", "First the scale, then the good steps.")
    if _same(got, right):
        return f"{len(RULES)} steps: good ones, overflows, and both ends of the range."
    in_a_row = _good_steps(answer)
    for rule, what, remedy in RULE_MISTAKES:
        if _same(got, [rule(*case[:4]) for case in RULES]) and in_a_row == _good_steps(rule):
            wrong(what, remedy)
    at = next(i for i in range(len(RULES)) if not _same(got[i : i + 1], right[i : i + 1]))
    scale, good, finite, growth = RULES[at][:4]
    wrong(
        f"loss_scale_update({scale:g}, {good}, {finite}, {growth}) gives"
        f" ({got[at][0]:.10g}, {got[at][1]:g}).",
        f"It should be ({right[at][0]:.10g}, {right[at][1]:g}).",
    )


def _good_steps(rule: Rule) -> list[float]:
    """The scales of ten good steps in a row, three of which are enough to grow."""
    state, scales = (1024.0, 0), []
    for _ in range(10):
        state = rule(*state, True, 3)
        scales.append(float(state[0]))
    return scales


def _same(got: Sequence[tuple[float, float]], right: Sequence[tuple[float, float]]) -> bool:
    return list(got) == list(right)


# --- ex06.step ------------------------------------------------------------------------------------


def step(answer: ex06_step.Step) -> str:
    for name, case in ex06_step.CASES.items():
        moved, right = ex06_step.moves(answer, case), ex06_step.expected(case)
        if not np.isfinite(moved.weights).all() and name != "overflow":
            wrong(
                f"{name}: the weights are {ex06_step.text(moved.weights)} now.",
                "No gradient of this batch is infinite: look for 0/0 in your own step.",
            )
        if not np.isfinite(moved.weights).all():
            wrong(
                "the gradients were infinite, and so are the weights now.",
                "scaler.step(optimizer) skips such a step; nothing else may take one.",
            )
        if not ex06_step.alike(moved.weights, right):
            for what, remedy, values in ex06_step.mistakes(case):
                if ex06_step.alike(moved.weights, values):
                    wrong(what, remedy)
            wrong(
                f"{name}: the weights are {ex06_step.text(moved.weights)}.",
                f"They should be {ex06_step.text(right)}.",
            )
        if name == "overflow" and moved.scale == case.scale:
            wrong("after an overflow the scale is what it was.", "Call scaler.update() at the end.")
        if case.times == 2 and moved.scale != 2 * case.scale:
            wrong(
                f"after two good steps, which are enough to double it, the scale {case.scale:g} is"
                f" {moved.scale:g}.",
                "scaler.update() once in each step, and nothing else changes the scale.",
            )
    return "small and large gradients, an overflow, and two steps: every step is taken once."


# --- ex06.layout ----------------------------------------------------------------------------------

Strides = Callable[[tuple[int, int, int, int], str, int], Sequence[int]]
SHAPES = (  # (n, c, h, w), the order in memory, channels are made a multiple of
    ((2, 3, 4, 5), "NCHW", 1),
    ((2, 3, 4, 5), "NHWC", 1),
    ((8, 256, 14, 14), "NHWC", 8),
    ((8, 256, 14, 28), "NCHW", 8),
    ((4, 3, 224, 224), "NHWC", 4),
    ((4, 3, 32, 64), "NCHW", 8),
    ((1, 43, 7, 5), "NHWC", 8),
)


def placed(shape: tuple[int, int, int, int], order: str, multiple: int) -> tuple[int, ...]:
    """How far apart neighbours lie along n, c, h and w, as NumPy lays an array out."""
    n, c, h, w = shape
    c = next(k for k in range(c, c + multiple) if k % multiple == 0)
    size = dict(zip("NCHW", (n, c, h, w), strict=True))
    array = np.empty([size[axis] for axis in order], np.uint8)
    return array.transpose([order.index(axis) for axis in "NCHW"]).strides


def _padded(pad: Callable[[int, int], int]) -> Callable[..., tuple[int, ...]]:
    def strides(shape: tuple[int, int, int, int], order: str, multiple: int) -> tuple[int, ...]:
        n, c, h, w = shape
        return placed((n, pad(c, multiple), h, w), order, 1)

    return strides


def _padded_in(only: str) -> Callable[..., tuple[int, ...]]:
    return lambda shape, order, multiple: placed(shape, order, multiple if order == only else 1)


def _in_memory(shape: tuple[int, int, int, int], order: str, multiple: int) -> tuple[int, ...]:
    found = placed(shape, order, multiple)
    return tuple(found["NCHW".index(axis)] for axis in order)


def _other(shape: tuple[int, int, int, int], order: str, multiple: int) -> tuple[int, ...]:
    return placed(shape, {"NCHW": "NHWC", "NHWC": "NCHW"}[order], multiple)


def _square(shape: tuple[int, int, int, int], order: str, multiple: int) -> tuple[int, ...]:
    n, c, h, w = shape
    row = {"NCHW": h, "NHWC": h * placed(shape, order, multiple)[3]}[order]
    return (*placed(shape, order, multiple)[:2], row, placed(shape, order, multiple)[3])


LAYOUT_MISTAKES = (
    (_in_memory, "the strides come in the order of the memory.",
     "Whatever the order, return them for n, c, h, w: PyTorch does too."),
    (_other, "the two orders are exchanged.",
     "The last letter is the one whose neighbours lie side by side: stride 1."),
    (_padded(lambda c, m: c), "the channels are not padded.",
     "A stride that steps over all channels steps over the padded ones too."),
    (_padded_in("NHWC"), "in NCHW the channels are not padded.",
     "A picture then has more planes: pad before you look at the order."),
    (_padded_in("NCHW"), "in NHWC the channels are not padded.",
     "A pixel then takes more room: pad before you look at the order."),
    (_padded(lambda c, m: c // m * m + m), "256 channels, a multiple of 8 already, are padded too.",
     "Round up: -(-c // multiple) * multiple."),
    (_padded(lambda c, m: max(1, c // m * m)), "the number of channels is rounded down.",
     "None may get lost: round up."),
    (_padded(lambda c, m: c + c % m), "what is added to the channels is the rest of the division.",
     "What is missing to the next multiple is added: round up."),
    (_square, "a row is as long as a picture is high.", "To the next row, step over w pixels."),
)  # fmt: skip


def _four(found: Any) -> tuple[int, ...]:
    if not hasattr(found, "__iter__"):
        wrong(f"what comes back is {found!r}.", "Return four numbers: for n, c, h and w.")
    return tuple(compare.whole(x, "a stride") for x in found)


def layout(answer: Strides) -> str:
    got = [_four(compare.call(answer, *case)) for case in SHAPES]
    right = [placed(*case) for case in SHAPES]
    if got == right:
        return f"{len(SHAPES)} arrays lie where NumPy puts them."
    if any(len(strides) != 4 for strides in got):
        wrong(f"what comes back is {got[0]}.", "Return four numbers: for n, c, h and w.")
    for each in (2, 4):
        if got == [tuple(each * x for x in strides) for strides in right]:
            wrong("these are bytes.", "Count numbers, as PyTorch does; NumPy counts bytes.")
    at = next(i for i in range(len(SHAPES)) if got[i] != right[i])
    for mistake, what, remedy in LAYOUT_MISTAKES:
        if got[: at + 1] == [mistake(*case) for case in SHAPES[: at + 1]]:
            wrong(what, remedy)
    wrong(f"strides{SHAPES[at]} gives {got[at]}.", f"It should be {right[at]}.")

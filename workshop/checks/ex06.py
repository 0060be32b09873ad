"""Checks of ex06: memory in two precisions, the loss scale, a broken step, where numbers lie."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workshop import output
from workshop.checks import compare, table
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
    (megabytes(((12, 4), (14, 4))), "the activations of float16 take 4 bytes.", "They take 2."),
    ([[row[0], 96 * row[0]] for row in megabytes(NEEDED)], "96 images take 96 times as much.",
     "Weights, gradients and momentum are there once, whatever the batch."),
    (megabytes(NEEDED, (1, 1)), "96 images take as much as one.",
     "Activations are kept for every image of the batch."),
    (megabytes(NEEDED, (96, 1)), "the batches are exchanged.",
     "First the MB for a batch of 1, then for one of 96."),
    ([[x / 1000 for x in row] for row in megabytes(NEEDED)], "these are GB.", "Give MB."),
    ([[x / 2**20 * 1e6 for x in row] for row in megabytes(NEEDED)], "these are MiB, of 2^20 bytes.",
     "MB have a million."),
)  # fmt: skip


def memory(answer: Any) -> str:
    given = compare.dictionary(answer, '{"float32": [.., ..], "float16": [.., ..]}')
    if missing := [name for name in FORMATS if name not in given]:
        wrong(f"there is no prediction for {missing[0]}.", f"Give one for each: {FORMATS}.")
    rows = [compare.numbers(given[name], name).ravel() for name in FORMATS]
    if any(len(row) != len(BATCHES) for row in rows):
        wrong("two numbers are asked for in each format.", "A list: [batch 1, batch 96].")
    got, right = np.array(rows), np.array(megabytes(NEEDED))
    fine = np.isclose(got, right, rtol=0.02)
    if fine.all():
        return "one image takes a little more in float16 than in float32, and 96 take half."
    compare.known(got, MEMORY_MISTAKES, functools.partial(np.allclose, rtol=0.01))
    row, column = np.argwhere(~fine)[0]
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


def updated(scale: float, good: int, finite: bool, growth: int) -> tuple[float, int]:
    """The rule, to put mistakes into; RULES say whether an answer is right."""
    if not finite:
        return max(scale / 2, 1.0), 0
    if good + 1 < growth:
        return scale, good + 1
    return min(scale * 2, TOP), 0


RULE_MISTAKES: tuple[tuple[Rule, str, str], ...] = (
    (lambda scale, good, finite, n: updated(scale, good, not finite, n),
     "finite means that all is well, and there the scale is halved.",
     "Halve it when a gradient was not finite."),
    (lambda scale, good, finite, n: updated(scale, good, finite, n) if finite else (scale, 0),
     "after an overflow the scale stays: the next step will overflow too.", "Halve it."),
    (lambda scale, good, finite, n: updated(scale, good, finite, n) if finite
     else (max(scale / 2, 1.0), good),
     "an overflow does not end the row of good steps.", "Return 0 good steps after it."),
    (lambda scale, good, finite, n: (updated(scale, good, finite, n)[0], good + 1 if finite else 0),
     "the count goes on after doubling: from then on every step doubles.",
     "Begin to count at 0 again."),
    (lambda scale, good, finite, n: updated(scale, good, finite, n + 1),
     "after growth_steps good steps the scale has not grown: it doubles one step late, or never.",
     "This step is a good one too: compare good_steps + 1, and double."),
    (lambda scale, good, finite, n: updated(scale, good, finite, 1),
     "every good step doubles the scale.", "Wait for growth_steps of them."),
    (lambda scale, good, finite, n: updated(scale, good, finite, n) if finite else (scale / 2, 0),
     "the scale falls below 1.", "Hold it with max(…, 1)."),
    (lambda scale, good, finite, n: (2 * scale, 0) if finite and good + 1 >= n
     else updated(scale, good, finite, n),
     "the scale grows beyond 2^24.", "Hold it with min(…, 2**24)."),
    (lambda scale, good, finite, n: (scale, good + 1) if finite and scale == TOP
     else updated(scale, good, finite, n),
     "at 2^24 the good steps do not begin at 0 again, though there are growth_steps of them.",
     "Return 0 good steps there too."),
)  # fmt: skip


def scaler(answer: Rule) -> str:
    cases, right = [case[:4] for case in RULES], [case[4:] for case in RULES]
    found = [compare.call(answer, *case) for case in cases]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in found):
        wrong(f"what comes back is {found[0]!r}.", "Return two: the scale and the good steps.")
    got = [
        (compare.number(scale, "the scale"), compare.number(good, "the number of good steps"))
        for scale, good in found
    ]
    if got == right:
        return f"{len(RULES)} steps: good ones, overflows, and both ends of the range."
    if got == [(good, scale) for scale, good in right]:
        wrong("the two are exchanged.", "First the scale, then the good steps.")
    compare.known(got, RULE_MISTAKES, cases=cases)
    at = next(i for i in range(len(RULES)) if got[i] != right[i])
    scale, good, finite, growth = cases[at]
    wrong(
        f"loss_scale_update({scale:g}, {good}, {finite}, {growth}) gives"
        f" ({got[at][0]:.10g}, {got[at][1]:g}).",
        f"It should be ({right[at][0]:.10g}, {right[at][1]:g}).",
    )


# --- ex06.step ------------------------------------------------------------------------------------

Step = Callable[[Any, Any, Any, Any, Any], Any]
LR, SCALE, CLIP = 0.125, 1024.0, 1.0
START = np.array((0.5, -0.25))  # the two weights of the model


@dataclass(frozen=True)
class Case:
    """One batch, (n, 2) and (n,), and how often it is trained on."""

    images: tuple[tuple[float, float], ...]
    targets: tuple[float, ...]
    times: int = 1
    scale: float = SCALE


CASES = {
    # three pictures, so that a sum over the batch is no step taken twice
    "small gradient": Case(((0.5, 0.25), (-0.25, 0.5), (0.25, -0.25)), (0.5, -0.5, 0.25)),
    "overflow": Case(((1e30, 1e30), (1.0, 1.0)), (0.0, 0.0)),
    "large gradient": Case(((4.0, 2.0), (3.0, -1.0)), (-2.0, 1.0)),
    "two steps": Case(((0.5, 0.25), (-0.25, 0.5)), (0.5, -0.5), 2, scale=2.0),
}


def step(answer: Step) -> str:
    for name, case in CASES.items():
        (weights, scale), right = moves(answer, case), expected(case)
        if not np.isfinite(weights).all() and name != "overflow":
            wrong(
                f"{name}: the weights are {text(weights)} now.",
                "No gradient of this batch is infinite: look for 0/0 in your own step.",
            )
        if not np.isfinite(weights).all():
            wrong(
                "the gradients were infinite, and so are the weights now.",
                "scaler.step(optimizer) skips such a step; nothing else may take one.",
            )
        if not alike(weights, right):
            compare.known(weights, step_mistakes(case), alike)
            wrong(f"{name}: the weights are {text(weights)}.", f"They should be {text(right)}.")
        if name == "overflow" and scale == case.scale:
            wrong("after an overflow the scale is what it was.", "Call scaler.update() at the end.")
        if case.times == 2 and scale != 2 * case.scale:
            wrong(
                f"after two good steps, which are enough to double it, the scale {case.scale:g} is"
                f" {scale:g}.",
                "scaler.update() once in each step, and nothing else changes the scale.",
            )
    return "small and large gradients, an overflow, and two steps: every step is taken once."


@compare.beside
def moves(answer: Step, case: Case) -> tuple[list[float], float]:
    """What the learner's step, with PyTorch's own loss scaler, makes of the two weights and of the
    scale, which doubles after two good steps."""
    import torch

    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(START))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=case.scale, growth_interval=2)
    batch = torch.tensor(case.images), torch.tensor(case.targets)[:, None]

    def unspoiled(*arguments: Any) -> None:  # the batch; model, optimizer and scaler may change
        compare.call(answer, *arguments, may_be_none=True)

    for _ in range(case.times):
        unspoiled(model, *batch, optimizer, scaler)
    return model.weight.detach().double().ravel().tolist(), float(scaler.get_scale())


def gradient(weights: np.ndarray, case: Case) -> np.ndarray:
    """Of the mean over the batch of (images · weights − targets)²."""
    images, targets = np.array(case.images), np.array(case.targets)
    slope: np.ndarray = 2 * (images @ weights - targets) @ images / len(targets)
    return slope


def clipped(g: np.ndarray) -> np.ndarray:
    small: np.ndarray = g * min(1.0, CLIP / np.linalg.norm(g))
    return small


def expected(case: Case) -> np.ndarray:
    """The weights after the steps of a case; where gradients overflow nothing moves."""
    weights = START
    if case is not CASES["overflow"]:
        for _ in range(case.times):
            weights = weights - LR * clipped(gradient(weights, case))
    return weights


def alike(weights: Any, others: Any) -> bool:
    """Whether two ways have moved the weights by as much, up to rounding in float32."""
    return np.allclose(weights - START, others - START, rtol=0.01, atol=1e-6)


def step_mistakes(case: Case) -> list[tuple[np.ndarray, str, str]]:
    """The weights that come of the usual mistakes, what is wrong, and what to do."""
    if case is CASES["overflow"]:
        return []
    g = gradient(START, case)
    if case.times == 2:
        after = START - LR * clipped(g)
        left = clipped(g) / case.scale  # what was unscaled before is so once more
        return [
            (after - LR * clipped(left + gradient(after, case)),
             "the second step uses the gradients of the first one too: they add up.",
             "Call optimizer.zero_grad() once in every step."),
        ]  # fmt: skip
    ways = (  # how far the weights go
        (2 * clipped(g), "a step moves the weights twice as far as it should: it is taken twice.",
         "scaler.step(optimizer) calls optimizer.step() itself, unless a gradient is infinite."),
        (clipped(SCALE * g) / SCALE,
         f"the weights hardly move: what is clipped is still {SCALE:g} times too large.",
         "First scaler.unscale_(optimizer), then clip."),
        (2 * clipped(SCALE * g) / SCALE, "the weights hardly move, and twice: gradients are clipped"
         " while they are still scaled, and two steps are taken.",
         "First scaler.unscale_(optimizer), then clip; and one of the two step() must go."),
        (SCALE * g, f"a step is {SCALE:g} times too long: the scale is never undone.",
         "scaler.unscale_(optimizer) divides the gradients by it."),
        (clipped(SCALE * g), "small gradients give a step as long as large ones: what is clipped is"
         " still scaled, and it is not undone afterwards.",
         "First scaler.unscale_(optimizer), then clip, then scaler.step(optimizer)."),
        (clipped(g / SCALE),
         f"a step is {SCALE:g} times too short: the scale is undone, but the loss had none.",
         "Call scaler.scale(loss).backward()."),
        (g, "large gradients are not clipped.",
         "Call clip_grad_norm_(model.parameters(), 1.0) between unscale_ and step."),
        (clipped(len(case.targets) * g), "the loss is a sum over the batch: gradients are as many"
         " times too large as it has pictures.",
         'Take the mean, as mse_loss does by itself: no reduction="sum".'),
        (clipped(g / 2), "a step is half as long as it should be.",
         "The loss is the mean of the squares, as mse_loss has it, without a factor of 1/2."),
        (0 * g, "the weights do not move.", "Empty the gradients before the backward pass or at the"
         " very end, and call scaler.step."),
    )  # fmt: skip
    return [(START - LR * far, said, then) for far, said, then in ways]


def text(weights: Any) -> str:
    return ", ".join(f"{value:.5g}" for value in weights)


def show_steps(answer: Step) -> None:
    """A table: what a step makes of the two weights, and what it should make of them."""
    if lacks := table.find("ex06.step").lacks:
        print(f"Not run: it needs {lacks}.")
        return
    rows = []
    for name, case in CASES.items():
        weights, scale = moves(answer, case)
        rows.append([name, text(weights), text(expected(case)), f"{case.scale:g}", f"{scale:g}"])
    columns = ["batch", "weights are", "should be", "loss scale before", "and after"]
    output.table(rows, columns, f"The weights before: {text(START)}")


# --- ex06.layout ----------------------------------------------------------------------------------

Shape = tuple[int, int, int, int]
SHAPES: tuple[
    tuple[Shape, str, int], ...
] = (  # (n, c, h, w), the order in memory, channels are made a multiple of
    ((2, 3, 4, 5), "NCHW", 1),
    ((2, 3, 4, 5), "NHWC", 1),
    ((8, 256, 14, 14), "NHWC", 8),
    ((8, 256, 14, 28), "NCHW", 8),
    ((4, 3, 224, 224), "NHWC", 4),
    ((4, 3, 32, 64), "NCHW", 8),
    ((1, 43, 7, 5), "NHWC", 8),
)


def placed(shape: Shape, order: str, multiple: int) -> tuple[int, ...]:
    """How far apart neighbours lie along n, c, h and w, as NumPy lays an array out."""
    channels = range(shape[1], shape[1] + multiple)
    return with_channels(shape, next(c for c in channels if c % multiple == 0), order)


def with_channels(shape: Shape, channels: int, order: str) -> tuple[int, ...]:
    size = dict(zip("NCHW", (shape[0], channels, *shape[2:]), strict=True))
    array = np.empty([size[axis] for axis in order], np.uint8)
    return array.transpose([order.index(axis) for axis in "NCHW"]).strides


LAYOUT_MISTAKES: tuple[tuple[Callable[[Shape, str, int], Any], str, str], ...] = (
    (lambda shape, order, m: tuple(placed(shape, order, m)["NCHW".index(a)] for a in order),
     "the strides come in the order of the memory.",
     "Whatever the order, return them for n, c, h, w: PyTorch does too."),
    (lambda shape, order, m: placed(shape, {"NCHW": "NHWC", "NHWC": "NCHW"}[order], m),
     "the two orders are exchanged.",
     "The last letter is the one whose neighbours lie side by side: stride 1."),
    (lambda shape, order, m: placed(shape, order, 1), "the channels are not padded.",
     "A stride that steps over all channels steps over the padded ones too."),
    (lambda shape, order, m: placed(shape, order, m if order == "NHWC" else 1),
     "in NCHW the channels are not padded.",
     "A picture then has more planes: pad before you look at the order."),
    (lambda shape, order, m: with_channels(shape, shape[1] // m * m + m, order),
     "256 channels, a multiple of 8 already, are padded too.",
     "Round up: -(-c // multiple) * multiple."),
    (lambda shape, order, m: with_channels(shape, max(1, shape[1] // m * m), order),
     "the number of channels is rounded down.", "None may get lost: round up."),
    (lambda shape, order, m: with_channels(shape, shape[1] + shape[1] % m, order),
     "what is added to the channels is the rest of the division.",
     "What is missing to the next multiple is added: round up."),
    (lambda shape, order, m: [2 * x for x in placed(shape, order, m)],
     "these are bytes.", "Count numbers, as PyTorch does; NumPy counts bytes."),
    (lambda shape, order, m: [4 * x for x in placed(shape, order, m)],
     "these are bytes.", "Count numbers, as PyTorch does; NumPy counts bytes."),
)  # fmt: skip


def layout(answer: Callable[[Shape, str, int], Sequence[int]]) -> str:
    got = [_four(compare.call(answer, *case)) for case in SHAPES]
    right = [placed(*case) for case in SHAPES]
    if got == right:
        return f"{len(SHAPES)} arrays lie where NumPy puts them."
    at = next(i for i in range(len(SHAPES)) if got[i] != right[i])
    compare.known(got[: at + 1], LAYOUT_MISTAKES, np.array_equal, SHAPES[: at + 1])
    wrong(f"strides{SHAPES[at]} gives {got[at]}.", f"It should be {right[at]}.")


def _four(found: Any) -> tuple[int, ...]:
    if not hasattr(found, "__iter__") or len(found) != 4:
        wrong(f"what comes back is {found!r}.", "Return four numbers: for n, c, h and w.")
    return tuple(compare.whole(x, "a stride") for x in found)

"""Checks of ex06: memory in two precisions, conversions, a broken step, strides."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workshop import output, session
from workshop.checks import compare
from workshop.checks.compare import refuse, wrong

# --- ex06.memory ----------------------------------------------------------------------------------

PARAMETERS, ACTIVATIONS, BATCHES = 25.6, 21.5, (1, 96)  # millions of numbers, the latter per image


def mb(each: int, activation: int) -> tuple[float, ...]:
    """Return MB for each batch, from the bytes of a parameter and of an activation."""
    return tuple(each * PARAMETERS + activation * ACTIVATIONS * n for n in BATCHES)


MEGABYTES = {"float32": mb(12, 4), "float16": mb(14, 2)}


MEMORY_MISTAKES: tuple[compare.Mistake, ...] = (
    ({"float32": mb(4, 4), "float16": mb(6, 2)},
     "weight, gradient and momentum are counted as one.", "Count 4 bytes for each of the three."),
    ({"float16": mb(6, 2)}, "everything is halved in float16.",
     "Halve only the activations: master weights, gradients and momentum stay in float32."),
    ({"float16": mb(12, 2)}, "the float16 copy of the weights is missing.",
     "Add 2 bytes for each parameter: the step computes with a copy."),
    ({"float16": mb(10, 2)}, "in float16, the copy replaces the weights.",
     "Count both: the weights stay in float32, and each step makes a copy."),
    ({name: (one, 96 * one) for name, (one, _) in MEGABYTES.items()},
     "96 images take 96 times as much.",
     "Count weights, gradients and momentum once, whatever the batch."),
)  # fmt: skip


def memory(answer: Any) -> str:
    compare.predicted(
        answer, MEGABYTES, MEMORY_MISTAKES,
        "Take each row of the table times its number: 25.6 million parameters, whatever the batch,"
        " and 21.5 million activations per image.",
    )  # fmt: skip
    return "one image takes a little more in float16 than in float32, and 96 take about half."


# --- ex06.casts -----------------------------------------------------------------------------------

Casts = Callable[[Callable[[], Any]], int]


@dataclass
class Work:
    """A piece of work and its number of conversions, counted by hand."""

    title: str
    do: Callable[[], Any]
    right: int

    def __repr__(self) -> str:
        return self.title


def works() -> list[Work]:
    import torch

    x, layer = torch.ones(4, 4), torch.nn.Linear(4, 4)

    def autocast(times: int = 1, passes: int = 1) -> None:
        for _ in range(times):
            with torch.autocast("cpu", torch.bfloat16):
                y = x
                for _ in range(passes):
                    y = layer(y)

    return [
        Work("three calls of x.half()", lambda: [x.half() for _ in range(3)], 3),
        Work("x.float() of a float32 tensor, then x.bfloat16()",
             lambda: (x.float(), x.bfloat16()), 1),
        Work("x.clone() and y.copy_(x)", lambda: (x.clone(), torch.empty(4, 4).copy_(x)), 0),
        # weight, bias and the first input; the second input has 16 bits
        Work("two layers with the same weights in one autocast", lambda: autocast(passes=2), 3),
        Work("the same layer in two autocasts", lambda: autocast(times=2), 6),
    ]  # fmt: skip


def casts(answer: Casts) -> str:
    @functools.wraps(answer)
    def count(work: Work) -> Any:
        calls = []
        found = answer(lambda: calls.append(work.do()))
        refuse(
            (not calls, "`work` is never called.", "Call work() inside the `with` block."),
            (len(calls) > 1, f"`work` is called {len(calls)} times.", "Call it once."),
        )
        return found

    cases = [(work,) for work in works()]
    why = (
        "Choose the operator of the table that runs for conversions only, and add up its `count`;"
        " without an entry, it is 0."
    )
    nothing = (
        lambda work: 0, "your function counts no conversion at all.",
        "Call work() inside the `with` block, read key_averages() after it; keys begin with aten::",
    )  # fmt: skip
    right = operator.attrgetter("right")
    compare.examine(count, cases, right, [nothing], why=lambda case: why)
    return f"{len(cases)} pieces of work, with copies that convert nothing, and with autocast."


# --- ex06.step ------------------------------------------------------------------------------------

Step = Callable[[Any, Any, Any, Any, Any], Any]
LR, SCALE, CLIP = 0.125, 1024.0, 1.0
START = np.array((0.5, -0.25))  # the two weights of the model


class Case(NamedTuple):
    """One batch, (n, 2) and (n,), how often it is trained on, and what it tests."""

    why: str
    images: tuple[tuple[float, float], ...]
    targets: tuple[float, ...]
    times: int = 1
    scale: float = SCALE


# the scaled gradients are infinite; the loss is finite, so checking it does not help
OVERFLOW = Case(
    "An infinite gradient changes only the scale: scaler.step(optimizer) skips the update.",
    ((1.5e18, 1.5e18), (1.0, 1.0)), (0.0, 0.0),
)  # fmt: skip
CASES = {
    "small gradient": Case(
        "A small gradient is used unchanged, in one update.",
        # three images, so that a sum over the batch differs from a step taken twice
        ((0.5, 0.25), (-0.25, 0.5), (0.25, -0.25)), (0.5, -0.5, 0.25),
    ),
    "overflow": OVERFLOW,
    "large gradient": Case(
        "It is clipped to a norm of 1, between unscale_ and step.",
        ((4.0, 2.0), (3.0, -1.0)), (-2.0, 1.0),
    ),
    "two steps": Case(
        "The second step uses its own gradients only: the first ones are cleared.",
        ((0.5, 0.25), (-0.25, 0.5)), (0.5, -0.5), 2, scale=2.0,
    ),
}  # fmt: skip


def step(answer: Step) -> str:
    for name, case in CASES.items():
        (weights, scale), right = moves(answer, case), expected(case)
        if name == "small gradient":
            refuse_size(np.array(weights) - START, right - START)
        if not alike(weights, right):
            wrong(f"{name}: the weights are {text(weights)}; before, they were {text(START)}.",
                  f"They should be {text(right)}. {case.why}")  # fmt: skip
        refuse(
            (name == "overflow" and scale == case.scale,
             "after an overflow the scale has not changed.",
             "Scale the loss with scaler.scale(loss), and call scaler.update() at the end."),
            (case.times == 2 and scale != 2 * case.scale, "after two good steps, which are enough"
             f" to double it, the scale {case.scale:g} is {scale:g}.",
             "Call scaler.update() once per step, and change the scale nowhere else."),
        )  # fmt: skip
    return "small and large gradients, an overflow, and two steps: every step is taken once."


def refuse_size(moved: np.ndarray, asked: np.ndarray) -> None:
    """Raise Wrong for an update by a small gradient whose size shows the mistake."""
    times = float(moved @ asked / (asked @ asked))
    at = f"small gradient: the update is {times:.3g} times as large as it should be."
    refuse(
        (times == 0, "small gradient: the weights have not moved.",
         "Clear the gradients before the backward pass, and call scaler.step(optimizer)."),
        (0 < times < 0.1, at, "The gradients are clipped before they are unscaled, or unscaled"
         " twice. The order is: unscale_, clip, step, update."),
        (math.isclose(times, 2, rel_tol=0.01), at,
         "scaler.step(optimizer) already calls optimizer.step()."),
        (times > 10, at, "The optimizer uses gradients that are still multiplied by the scale."),
    )  # fmt: skip


def moves(answer: Step, case: Case) -> tuple[list[float], float]:
    """Return the two weights and the scale after the learner's steps.

    The loss scaler is PyTorch's own; the scale doubles after two good steps.
    """
    import torch

    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(START))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=case.scale, growth_interval=2)
    images, targets = torch.tensor(case.images), torch.tensor(case.targets)[:, None]
    for _ in range(case.times):
        try:
            compare.call(answer, model, images, targets, optimizer, scaler, may_be_none=True)
        except AssertionError as error:
            if "No inf checks" in str(error):
                wrong("there are no gradients when scaler.step is called.",
                      "Clear them before the backward pass, or at the very end.")  # fmt: skip
            raise
    return model.weight.detach().double().ravel().tolist(), float(scaler.get_scale())


def gradient(weights: np.ndarray, case: Case) -> np.ndarray:
    """Return the gradient of the mean over the batch of (images · weights − targets)²."""
    images, targets = np.array(case.images), np.array(case.targets)
    return np.asarray(2 * (images @ weights - targets) @ images / len(targets))


def clipped(g: np.ndarray) -> np.ndarray:
    """Return a gradient with a norm of at most CLIP."""
    return np.asarray(g * min(1.0, CLIP / np.linalg.norm(g)))


def expected(case: Case) -> np.ndarray:
    """Return the right weights; if gradients overflow they do not move."""
    weights = START
    for _ in range(0 if case is OVERFLOW else case.times):
        weights = weights - LR * clipped(gradient(weights, case))
    return weights


def alike(weights: Any, others: Any) -> bool:
    """Return True if the weights have moved by the same amount, up to rounding in float32."""
    return np.allclose(weights - START, others - START, rtol=0.01, atol=1e-6)


def text(weights: Any) -> str:
    return ", ".join(f"{value:.5g}" for value in weights)


def show_steps(answer: Step) -> None:
    """Show a table of the two weights after a step, and of what they should be."""
    if not session.has("torch"):
        return
    rows = []
    for name, case in CASES.items():
        weights, scale = moves(answer, case)
        rows.append([name, text(weights), text(expected(case)), f"{case.scale:g}", f"{scale:g}"])
    columns = ["batch", "weights are", "should be", "loss scale before", "and after"]
    output.table(rows, columns, f"The weights before: {text(START)}")


# --- ex06.layout ----------------------------------------------------------------------------------

Shape = tuple[int, int, int, int]
SHAPES: tuple[tuple[Shape, str, int], ...] = (
    # (n, c, h, w), the order in memory, what the channels are padded to a multiple of
    ((2, 3, 4, 5), "NCHW", 1),
    ((2, 3, 4, 5), "NHWC", 1),
    ((8, 20, 14, 28), "NCHW", 8),
    ((1, 43, 7, 5), "NHWC", 8),
)


def padded(channels: int, multiple: int) -> int:
    return next(c for c in range(channels, channels + multiple) if c % multiple == 0)


def placed(shape: Shape, order: str, multiple: int) -> tuple[int, ...]:
    """Return the strides along n, c, h and w, from NumPy's own array."""
    size = dict(zip("NCHW", shape, strict=True))
    size["C"] = padded(size["C"], multiple)
    array = np.empty([size[axis] for axis in order], np.uint8)
    return array.transpose([order.index(axis) for axis in "NCHW"]).strides


def sizes(shape: Shape, order: str, multiple: int) -> str:
    _, c, h, w = shape
    channels = f"{padded(c, multiple)} channels with the padding"
    others = f"{w} columns, then {h} rows"
    inner = f"{channels}, then {others}" if order == "NHWC" else f"{others}, then {channels}"
    return f"Fastest in memory are {inner}. Count elements; return them for n, c, h, w."


def layout(answer: Callable[[Shape, str, int], Sequence[int]]) -> str:
    compare.examine(answer, SHAPES, placed, why=sizes)
    return f"{len(SHAPES)} arrays have NumPy's strides."

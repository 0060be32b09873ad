"""Trying a learner's training step with PyTorch's own loss scaler, on a model of two weights.

What should come out is worked out with NumPy: the gradient of a mean square is a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workshop import output
from workshop.checks import compare, table
from workshop.checks.compare import beside

Step = Callable[[Any, Any, Any, Any, Any], Any]
LR, SCALE, CLIP = 0.125, 1024.0, 1.0
START = (0.5, -0.25)


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


@dataclass(frozen=True)
class Moved:
    """The two weights and the scale after the steps of a case."""

    weights: np.ndarray
    scale: float


@beside
def moves(step: Step, case: Case) -> Moved:
    """What the learner's step makes of a case; the scale doubles after two good steps."""
    from workshop.checks import two_weights

    def unspoiled(*arguments: Any) -> None:  # the batch; model, optimizer and scaler may change
        compare.call(step, *arguments, may_be_none=True)

    weights, scale = two_weights.train(
        unspoiled, START, LR, case.scale, case.images, case.targets, case.times
    )
    return Moved(np.array(weights), scale)


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
    weights = np.array(START)
    if np.abs(case.images).max() > 1e20:
        return weights
    for _ in range(case.times):
        weights = weights - LR * clipped(gradient(weights, case))
    return weights


def alike(weights: np.ndarray, others: np.ndarray) -> bool:
    """Whether two ways have moved the weights by as much, up to rounding in float32."""
    return np.allclose(weights - START, others - START, rtol=0.01, atol=1e-6)


def mistakes(case: Case) -> list[tuple[str, str, np.ndarray]]:
    """What is wrong, what to do, and the weights that come of it."""
    start = np.array(START)
    if np.abs(case.images).max() > 1e20:
        return []
    g = gradient(start, case)
    ways = {
        "two": start - LR * 2 * clipped(g),
        "scaled": start - LR * clipped(SCALE * g) / SCALE,
        "scaled twice": start - 2 * LR * clipped(SCALE * g) / SCALE,
        "not undone": start - LR * SCALE * g,
        "clipped only": start - LR * clipped(SCALE * g),
        "not scaled": start - LR * clipped(g / SCALE),
        "not clipped": start - LR * g,
        "summed": start - LR * clipped(len(case.targets) * g),
        "halved": start - LR * clipped(g / 2),
        "still": start,
    }
    if case.times == 2:
        after = start - LR * clipped(g)
        left = clipped(g) / case.scale  # what was unscaled before is so once more
        together = after - LR * clipped(left + gradient(after, case))
        return [(*SAID["kept"], together)]
    return [
        (*SAID[name], values) for name, values in ways.items() if not alike(values, expected(case))
    ]


SAID = {
    "two": (
        "a step moves the weights twice as far as it should: it is taken twice.",
        "scaler.step(optimizer) calls optimizer.step() itself, unless a gradient is infinite.",
    ),
    "scaled": (
        f"the weights hardly move: gradients that are still {SCALE:g} times too large are clipped.",
        "First scaler.unscale_(optimizer), then clip.",
    ),
    "scaled twice": (
        "the weights hardly move, and twice: gradients are clipped while they are still scaled, and"
        " two steps are taken.",
        "First scaler.unscale_(optimizer), then clip; and one of the two step() must go.",
    ),
    "not undone": (
        f"a step is {SCALE:g} times as long as it should be: the scale is never undone.",
        "scaler.unscale_(optimizer) divides the gradients by it.",
    ),
    "clipped only": (
        "small gradients give a step as long as large ones: what is clipped is still scaled, and it"
        " is not undone afterwards.",
        "First scaler.unscale_(optimizer), then clip, then scaler.step(optimizer).",
    ),
    "not scaled": (
        f"a step is {SCALE:g} times too short: the scale is undone, but the loss had none.",
        "Call scaler.scale(loss).backward().",
    ),
    "not clipped": (
        "large gradients are not clipped.",
        "Call clip_grad_norm_(model.parameters(), 1.0) between unscale_ and step.",
    ),
    "summed": (
        "the loss is a sum over the batch: gradients are as many times too large as it has"
        " pictures.",
        'Take the mean, as mse_loss does by itself: no reduction="sum".',
    ),
    "halved": (
        "a step is half as long as it should be.",
        "The loss is the mean of the squares, as mse_loss has it, without a factor of 1/2.",
    ),
    "still": (
        "the weights do not move.",
        "Empty the gradients before the backward pass or at the very end, and call scaler.step.",
    ),
    "kept": (
        "the second step uses the gradients of the first one too: they add up.",
        "Call optimizer.zero_grad() once in every step.",
    ),
}


def text(weights: np.ndarray) -> str:
    return ", ".join(f"{value:.5g}" for value in weights)


def show(step: Step) -> None:
    """A table: what the step makes of the two weights, and what it should make of them."""
    if lacks := table.find("ex06.step").lacks:
        print(f"Not run: it needs {lacks}.")
        return
    rows = []
    for name, case in CASES.items():
        moved = moves(step, case)
        weights = text(moved.weights), text(expected(case))
        rows.append([name, *weights, f"{case.scale:g}", f"{moved.scale:g}"])
    columns = ["batch", "weights are", "should be", "loss scale before", "and after"]
    caption = f"The weights before: {text(np.array(START))}"
    output.table(rows, columns, caption)

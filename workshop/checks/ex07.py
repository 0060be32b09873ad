"""Checks of ex07: percentiles, the temperature of probabilities, the likeliest classes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workshop import session
from workshop.checks import compare, use
from workshop.checks.compare import refuse, wrong

# --- ex07.percentile ------------------------------------------------------------------------------

LATENCIES = (  # seconds, as they were measured
    [0.02, 0.05, 0.01, 0.04, 0.03],
    [0.3, 0.1, 0.2, 0.4],
    [0.5],
    [(37 * i % 100 + 1) / 1000 for i in range(100)],
    [0.9, 0.2, 0.9, 0.9, 5.0],
    [(7 * i % 20 + 1) / 100 for i in range(20)],
)
# no case is decided by rounding: 7 / 100 * 100 is more than 7, and NumPy computes it so
ASKED = (50, 90, 95, 99, 100, 1, 0, 33)


def percentile(answer: Callable[[list[float], float], float]) -> str:
    cases = [(values, per_cent) for values in LATENCIES for per_cent in ASKED]
    compare.examine(answer, cases, counted, why=rank)
    return f"{len(LATENCIES)} lists, from p0 to p100, some with equal values."


def rank(values: list[float], per_cent: float) -> str:
    share = len(values) * per_cent / 100
    take = f"take number {max(1, math.ceil(share))} of the sorted values"
    return f"{per_cent}% of {len(values)} values is {share:g}: {take}."


def counted(values: list[float], per_cent: float) -> float:
    """Return the smallest value that at least `per_cent` of all do not exceed, by counting."""
    return min(
        value
        for value in values
        if 100 * sum(other <= value for other in values) >= per_cent * len(values)
    )


# --- ex07.temperature -----------------------------------------------------------------------------

# by what the right logits are multiplied, the classes, and what is added to those of class 0
TRUE = ((2.5, 10, 0), (0.6, 4, 0), (1.0, 12, 0), (2, 6, 2))
IMAGES = 500


def drawn(factor: float, classes: int, bias: float) -> tuple[np.ndarray, np.ndarray]:
    """Return logits that are wrong by a factor and a bias, and labels drawn from the right ones."""
    draw = np.random.default_rng(classes)
    logits = draw.normal(0, 2, (IMAGES, classes))
    labels = (logits + draw.gumbel(size=logits.shape)).argmax(1)
    logits[:, 0] += bias
    return factor * logits, labels


def best_temperature(logits: Any, labels: Any, twice: bool = False) -> float:
    """Return the T of the smallest cross-entropy, by two grids; `twice` passes it probabilities."""
    from torch.nn.functional import cross_entropy

    def loss(t: float) -> float:
        scaled = logits / t
        return float(cross_entropy(scaled.softmax(1) if twice else scaled, labels))

    coarse = min(np.geomspace(0.05, 20, 60), key=loss)
    return float(min(coarse * np.geomspace(0.9, 1.1, 100), key=loss))


def temperature(answer: Callable[[Any, Any], float]) -> str:
    """Check the temperature of logits that are too large, too small, and right."""
    import torch

    for factor, classes, bias in TRUE:
        logits, labels = map(torch.tensor, drawn(factor, classes, bias))
        got = compare.call(answer, logits, labels)
        refuse((isinstance(got, float) and math.isnan(got), "T is nan.",
                "Clear the gradients before each backward pass, also in a closure:"
                " optimizer.zero_grad()."))  # fmt: skip
        got = compare.number(got, "the result")
        right = best_temperature(logits, labels)
        if math.isclose(got, right, rel_tol=0.02):
            continue
        refuse((got <= 0, f"T = {got:.4g} is not above 0.",
                "Optimise log T and return its exp(), or search a grid."))  # fmt: skip
        if not 1 / 1.1 < got / right < 1.1:
            rows = [(mistake(logits, labels), *text) for mistake, *text in TEMPERATURE_MISTAKES]
            compare.known(got, rows, functools.partial(math.isclose, rel_tol=0.02))
        which = (
            "right logits" if factor == 1 else f"logits that are {factor:g} times the right ones"
        )
        wrong(
            f"T = {got:.4g} instead of {right:.4g} for {which}"
            f"{' and too large for class 0' if bias else ''}.",
            "Minimise cross_entropy(logits / T, labels), to 2% of T: with a finer grid from 0.05 to"
            " 20, or more steps, each with optimizer.zero_grad().",
        )
    return "four kinds of logits, too large, too small and biased: the smallest cross-entropy."


TEMPERATURE_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda logits, labels: 1 / best_temperature(logits, labels), "this is 1 / T.",
     "The logits are *divided* by T: large logits need a T above 1."),
    (lambda logits, labels: math.log(best_temperature(logits, labels)), "this is log T.",
     "Return its exp()."),
    (lambda logits, labels: best_temperature(logits, labels, twice=True),
     "softmax is computed twice.",
     "Pass logits / T to cross_entropy, which does its own softmax."),
)  # fmt: skip


def checkpoint_of_notebook(here: session.Session) -> tuple[Path, int]:
    """Return the checkpoint of notebook 07, or of a short training, as prefix and epoch."""
    from rn50lib import checkpoint

    own, small = here.runs / "lesson-07" / "model", here.folder / "small"
    for prefix in (own, small):
        if found := checkpoint.epochs(prefix):
            return prefix, found[-1]
    session.ensure_data(here.data_root, here.profile)
    epochs = 2 if here.profile == "ci" else 24
    use.train(  # on few images, so that it becomes overconfident
        "ex07", model_prefix=str(small), num_epochs=epochs, num_examples=160, image_shape=64,
        crop_area=1.0, lr=0.8, no_val=True,
    )  # fmt: skip
    return small, checkpoint.epochs(small)[-1]


# --- ex07.likeliest -------------------------------------------------------------------------------


LOGITS = (  # [image][class], and k; the first is short to show, softmax of the last overflows
    (np.array([[1.0, 3.0, 0.0, 2.0], [0.0, 6.0, 1.0, 0.5], [2.0, 0.0, 1.0, 4.0]]), 2),
    (np.random.default_rng(7).normal(0, 3, (5, 12)), 3),
    (np.random.default_rng(8).normal(0, 3, (1, 12)), 5),
    (np.random.default_rng(9).normal(0, 3, (4, 4)), 4),
    (np.random.default_rng(10).normal(0, 3, (3, 12)), 1),
    (np.array([[1000.0, 990.0, -1000.0], [0.0, 1.0, 2.0]]), 2),
)
Likeliest = tuple[list[list[int]], list[list[float]]]


def likeliest(answer: Callable[[Any, int], Any]) -> str:
    import torch

    @functools.wraps(answer)
    def checked(logits: Any, k: int) -> Any:
        found = answer(logits, k)
        if isinstance(found, list | tuple) and len(found) == 2:
            classes, probabilities = map(torch.as_tensor, found)
            refuse(
                (classes.is_floating_point(), "the classes are not whole numbers.",
                 "Return classes first: torch.topk returns the values before their indices."),
                (probabilities.isnan().any(), "a probability is nan: exp(1000) is infinite, and"
                 " exp(−1000) is 0.", "From each image's logits, subtract its own largest (dim=1,"
                 " not the batch's), or use torch.softmax."),
            )  # fmt: skip
        return found

    cases = [(torch.tensor(logits), k) for logits, k in LOGITS]
    rule = "The most likely class comes first; an image's probabilities, of all classes, sum to 1."
    compare.examine(
        checked, cases, softmax, LIKELIEST_MISTAKES, one_case=True, why=lambda *case: rule
    )
    return "1 to 5 images, 3 to 12 classes, and logits of 1,000."


def softmax(logits: Any, k: int) -> Likeliest:
    """Return the right classes and probabilities."""
    classes = logits.topk(k).indices
    return classes.tolist(), logits.softmax(1).gather(1, classes).tolist()


def over_images(logits: Any, k: int) -> Likeliest:
    """Return the classes with the largest probabilities that add up to 1 over the images."""
    values, classes = logits.softmax(0).topk(k)
    return classes.tolist(), values.tolist()


def ascending(logits: Any, k: int) -> Likeliest:
    """Return the right classes and probabilities, the most likely last."""
    classes, values = softmax(logits, k)
    return [row[::-1] for row in classes], [row[::-1] for row in values]


def among_k(logits: Any, k: int) -> Likeliest:
    """Return the right classes with probabilities that add up to 1."""
    values, classes = logits.topk(k)
    return classes.tolist(), values.softmax(1).tolist()


LIKELIEST_MISTAKES: tuple[compare.Mistake, ...] = (
    (over_images, "the answer depends on the other images of the batch: the sum over the images is"
     " 1, not the sum over the classes.", "Sum over the classes: dim=1, and keepdim=True."),
    (ascending, "the most likely class comes last.",
     "argsort sorts in ascending order: pass descending=True, or use torch.topk."),
    (among_k, "the k probabilities add up to 1.", "Sum over all classes, not over k."),
)  # fmt: skip

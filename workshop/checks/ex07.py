"""Checks of ex07: percentiles, a batch norm inside its convolution, the likeliest classes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from workshop.checks import compare
from workshop.checks.compare import refuse, wrong

# --- ex07.percentile ------------------------------------------------------------------------------

LATENCIES = (  # seconds, as they were measured
    [0.02, 0.05, 0.01, 0.04, 0.03],
    [0.3, 0.1, 0.2, 0.4],
    [0.5],
    [(37 * i % 100 + 1) / 1000 for i in range(100)],
    [0.2, 0.2, 0.9, 0.2],
    [(7 * i % 20 + 1) / 100 for i in range(20)],
)
# no case is decided by rounding: 7 / 100 * 100 is more than 7, and NumPy computes it so
ASKED = (50, 90, 95, 99, 100, 1, 0, 33)


def percentile(answer: Callable[[list[float], float], float]) -> str:
    """Check every percentile of ASKED for each list."""
    cases = [(values, per_cent) for values in LATENCIES for per_cent in ASKED]
    try:
        compare.examine(answer, cases, counted, PERCENTILE_MISTAKES)
    except IndexError:
        wrong("an index is out of range.",
              "Subtract 1: indices start at 0, and the last of 100 values has 99.")  # fmt: skip
    return f"{len(LATENCIES)} lists, from p0 to p100, some with equal values."


def counted(values: list[float], per_cent: float) -> float:
    """Return the smallest value that at least `per_cent` of all do not exceed, by counting."""
    return min(
        value
        for value in values
        if 100 * sum(other <= value for other in values) >= per_cent * len(values)
    )


def _rank(values: list[float], per_cent: float) -> int:
    return max(0, math.ceil(len(values) * per_cent / 100) - 1)


PERCENTILE_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda v, p: v[_rank(v, p)], "the values are not sorted.",
     "Sort them first."),
    (lambda v, p: sorted(v)[min(len(v) - 1, int(len(v) * p / 100))], "it is one rank too high.",
     "Subtract 1: the value before it is enough."),
    (lambda v, p: sorted(v)[max(0, int(len(v) * p / 100) - 1)],
     "the rank is rounded down, so too few values are at or below the result.", "Round it up."),
    (lambda v, p: float(np.percentile(v, p)), "the result is not a measured value.",
     "Do not interpolate: return one of the values."),
)  # fmt: skip


# --- ex07.fold ------------------------------------------------------------------------------------

LAYERS = ((4, 4, 3, 1, 1), (3, 6, 1, 2, 0), (5, 3, 3, 1, 0), (2, 4, 3, 2, 1))  # as in Conv2d
EPS = 1e-2  # large enough to be seen when it is forgotten
ROUNDING = 2e-6  # of the largest output: the rounding of float32


def fold(answer: Callable[[Any, Any], Any]) -> str:
    """Check the folded convolutions of LAYERS by their outputs."""
    import torch

    worst = 0.0
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for into, out, side, stride, padding in LAYERS:
            conv = torch.nn.Conv2d(into, out, side, stride, padding, bias=False).double().eval()
            bn = torch.nn.BatchNorm2d(out, eps=EPS).double().eval()
            bn.weight.normal_(1, 0.5)[0] = -0.7
            bn.bias.normal_()
            bn.running_mean.normal_()
            bn.running_var.uniform_(0.1, 4)
            image = torch.randn(1, into, 9, 8, dtype=torch.float64)
            worst = max(worst, _fold_error(answer, conv, bn, image))
    return f"{len(LAYERS)} layers: folding changes the outputs by {worst:.0e} at most."


def _fold_error(answer: Callable[[Any, Any], Any], conv: Any, bn: Any, image: Any) -> float:
    """Return by how much the folded layer's output differs. Raises Wrong if it is too much."""
    right = bn(conv(image)).numpy()
    used = {"conv": conv.state_dict(), "bn": bn.state_dict()}
    before = compare.snapshot(used)
    layer = compare.call(answer, conv, bn)
    refuse(
        *((compare.snapshot(used[name]) != before[name],
           f"your function changes `{name}`, but its caller still needs the old values.",
           "Create a new torch.nn.Conv2d, and copy the weights into it.") for name in used),
        (not isinstance(layer, type(conv)), f"the result is a {type(layer).__name__}.",
         "Return a torch.nn.Conv2d."),
    )  # fmt: skip
    if layer.bias is None:
        wrong("the new convolution has no bias.", "torch.nn.Conv2d(…, bias=True) has one.")
    weight, _ = (
        compare.numbers(getattr(layer.double(), n), f"the {n}") for n in ("weight", "bias")
    )
    got = layer(image).numpy()
    if got.shape != right.shape:
        wrong(f"an image of {tuple(image.shape[1:])} becomes {got.shape[1:]} instead of"
              f" {right.shape[1:]}.",
              "Keep stride, padding, dilation and groups of the old convolution.")  # fmt: skip
    difference = float(np.abs(got - right).max())
    if difference > ROUNDING * np.abs(right).max():
        std = (bn.running_var + EPS).sqrt()
        given = [part.numpy() for part in (conv.weight, bn.weight, std)]
        if np.allclose(weight, scaled(*given)):
            wrong(f"the bias is wrong: outputs differ by up to {difference:.2g}.",
                  "Compute beta − gamma · mean / std.")  # fmt: skip
        rows = [(mistake(*given), what, remedy) for mistake, what, remedy in FOLD_MISTAKES]
        compare.known(weight, rows, np.allclose)
        off = np.abs(weight / scaled(*given) - 1).max()
        wrong(f"the weight is off by up to {100 * off:.0f}%.", "Multiply W by gamma / std.")
    return difference


def scaled(w: np.ndarray, gamma: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return the right weight."""
    return w * (gamma / std).reshape(-1, 1, 1, 1)


FOLD_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda w, gamma, std: w, "the weight has not changed.",
     "Multiply it by the factor gamma / std."),
    (lambda w, gamma, std: scaled(w, gamma, np.sqrt(std**2 - EPS)), "eps is missing.",
     "Use sqrt(running_var + eps), as in the batch norm."),
    (lambda w, gamma, std: w * np.resize(gamma / std, w.shape[1]).reshape(1, -1, 1, 1),
     "the factor is applied to the input channels.",
     "Use factor.view(-1, 1, 1, 1): the weight has the shape (out, in, height, width)."),
)  # fmt: skip


# --- ex07.likeliest -------------------------------------------------------------------------------


LOGITS = (  # [image][class], and k; softmax of the last one overflows in float64
    (np.random.default_rng(7).normal(0, 3, (5, 12)), 3),
    (np.random.default_rng(8).normal(0, 3, (1, 12)), 5),
    (np.random.default_rng(9).normal(0, 3, (4, 4)), 4),
    (np.random.default_rng(10).normal(0, 3, (3, 12)), 1),
    (np.array([[1000.0, 990.0, -1000.0], [0.0, 1.0, 2.0]]), 2),
)
Likeliest = tuple[list[list[int]], list[list[float]]]


def likeliest(answer: Callable[[Any, int], Any]) -> str:
    """Check classes and probabilities of 1 to 5 images."""
    import torch

    @functools.wraps(answer)
    def checked(logits: Any, k: int) -> Any:
        found = answer(logits, k)
        if isinstance(found, list | tuple) and len(found) == 2:
            classes, sure = map(torch.as_tensor, found)
            _finite(classes, sure, logits)
        return found

    cases = [(torch.tensor(logits), k) for logits, k in LOGITS]
    compare.examine(checked, cases, softmax, LIKELIEST_MISTAKES, one_case=True)
    return "1 to 5 images, 3 to 12 classes, and logits of 1,000."


def _finite(classes: Any, sure: Any, logits: Any) -> None:
    """Raise Wrong for classes that are not whole, and for 0/0 and inf/inf in the probabilities."""
    lost = sure.isnan().reshape(len(sure), -1).any(1)
    large = logits.max() > 700
    refuse(
        (classes.is_floating_point(), f"the classes are {classes.dtype}, not whole numbers.",
         "Return classes first: torch.topk returns the values before their indices."),
        (large and lost[0], "with logits of 1000 a probability is not finite.",
         "exp(1000) is infinite: subtract the image's largest logit before exp."),
        (large and lost.any(), "an image's probabilities are 0/0: the largest logit of the whole"
         " batch was subtracted, and next to 1000 in a different image all its exponentials are 0.",
         "Subtract each image's own largest logit: logits.amax(dim=1, keepdim=True)."),
    )  # fmt: skip


def chosen(classes: Any, sure: Any) -> Likeliest:
    """Return tensors of classes and of their probabilities, which are picked, as lists."""
    return classes.tolist(), sure.gather(1, classes).tolist()


def softmax(logits: Any, k: int) -> Likeliest:
    """Return the right classes and probabilities."""
    return chosen(logits.topk(k).indices, logits.softmax(1))


def among_k(logits: Any, k: int) -> Likeliest:
    """Return the right classes with probabilities that add up to 1."""
    values, classes = logits.topk(k)
    return classes.tolist(), values.softmax(1).tolist()


ASCENDING = "Pass descending=True: torch.argsort sorts in ascending order."
OVER_IMAGES = ("the answer depends on the other images of the batch: the sum over the images is 1,"
               " not the sum over the classes.", "Sum over the classes: dim=1, and keepdim=True."
               )  # fmt: skip
LIKELIEST_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda x, k: chosen(x.topk(k).indices.flip(1), x.softmax(1)),
     "the most likely class comes last.", ASCENDING),
    (lambda x, k: chosen(x.argsort(1)[:, :k], x.softmax(1)), "these are the least likely classes.",
     ASCENDING),
    (lambda x, k: chosen(x.topk(k).indices.sort(1).values, x.softmax(1)),
     "the classes are right, but not their order.", "Sort by probability, the most likely first."),
    (lambda x, k: chosen(x.topk(k).indices, x.softmax(0)), *OVER_IMAGES),
    (lambda x, k: chosen(x.softmax(0).topk(k).indices, x.softmax(0)), *OVER_IMAGES),
    (lambda x, k: chosen(x.softmax(0).argsort(1)[:, -k:], x.softmax(0)), *OVER_IMAGES),
    (lambda x, k: chosen(x.topk(k).indices, x), "these are logits.",
     "Convert them to probabilities with softmax."),
    (among_k, "the k probabilities add up to 1.", "Sum over all classes, not over k."),
)  # fmt: skip

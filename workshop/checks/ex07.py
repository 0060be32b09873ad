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
    try:
        compare.examine(
            answer, [(values, per_cent) for values in LATENCIES for per_cent in ASKED], counted,
            PERCENTILE_MISTAKES, functools.partial(compare.number, what="a percentile"),
            functools.partial(math.isclose, rel_tol=1e-6),  # float32 will do
            show=lambda values, per_cent: f"p{per_cent} of {compare.shown(values)}",
        )  # fmt: skip
    except IndexError:
        wrong("an index is out of range.",
              "Indices start at 0: the last of 100 values has index 99.")  # fmt: skip
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
     "The requests are in the order of arrival: sort them first."),
    (lambda v, p: sum(v) / len(v), "this is the mean.", "The mean hides the slow ones."),
    (lambda v, p: sorted(v)[min(len(v) - 1, int(len(v) * p / 100))], "it is one rank too high.",
     "The value before it is enough."),
    (lambda v, p: sorted(v)[max(0, int(len(v) * p / 100) - 1)],
     "the rank is rounded down, so too few values are at or below the result.", "Round it up."),
    (lambda v, p: float(np.percentile(v, p)), "the result was never measured.",
     "Do not interpolate: return one of the values."),
)  # fmt: skip


# --- ex07.fold ------------------------------------------------------------------------------------

Norm = dict[str, np.ndarray]
Folded = tuple[np.ndarray, np.ndarray]
NORM = ("weight", "bias", "running_mean", "running_var")  # gamma, beta and the statistics
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
    before = compare.copied([conv.state_dict(), bn.state_dict()])
    layer = compare.call(answer, conv, bn)
    kind = type(layer).__name__
    refuse(
        *((not compare.unchanged(used.state_dict(), copy),
           f"your function changes `{name}`, but its caller still needs the old values.",
           "Make a new torch.nn.Conv2d, and copy the numbers into it.")
          for name, used, copy in zip(("conv", "bn"), (conv, bn), before, strict=True)),
        (not isinstance(layer, type(conv)), f"the result is a {kind}.",
         "Return a torch.nn.Conv2d."),
    )  # fmt: skip
    refuse(
        (layer.weight.shape != conv.weight.shape, f"the weight is {tuple(layer.weight.shape)}.",
         f"It stays {tuple(conv.weight.shape)}."),
        (layer.bias is None, "the new convolution has no bias.",
         "torch.nn.Conv2d(…, bias=True) has one."),
    )  # fmt: skip
    weight = compare.numbers(layer.double().weight, "the weight")
    bias = compare.numbers(layer.bias, "the bias")
    got = layer(image).numpy()
    if got.shape != right.shape:
        wrong(f"an image of {tuple(image.shape[1:])} becomes {got.shape[1:]} instead of"
              f" {right.shape[1:]}.",
              "Keep stride, padding, dilation and groups of the old convolution.")  # fmt: skip
    difference = float(np.abs(got - right).max())
    if difference > ROUNDING * np.abs(right).max():
        norm = {name: bn.state_dict()[name].numpy() for name in NORM}
        _wrong_fold(weight, bias, conv.weight.numpy(), norm, difference)
    return difference


def _factor(gamma: np.ndarray, var: np.ndarray) -> np.ndarray:
    factor: np.ndarray = gamma / np.sqrt(var + EPS)
    return factor


def folded(
    factor: Callable[..., Any] = _factor,
    bias: Callable[..., Any] = lambda beta, scale, mean: beta - scale * mean,
    axis: int = 0,
) -> Callable[[np.ndarray, Norm], Folded]:
    """Return the right folding, or one with a wrong factor, a wrong bias or a wrong axis."""

    def fold(weight: np.ndarray, norm: Norm) -> Folded:
        gamma, beta, mean, var = (norm[name] for name in NORM)
        by = np.resize(factor(gamma, var), weight.shape[axis])
        by = by.reshape(-1, 1, 1, 1) if axis == 0 else by.reshape(1, -1, 1, 1)
        return weight * by, bias(beta, _factor(gamma, var), mean)

    return fold


FORMULA = "It is beta − gamma · mean / std."
FOLD_MISTAKES: tuple[compare.Mistake, ...] = (
    (folded(lambda gamma, var: np.ones_like(gamma)), "the weight has not changed.",
     "The factor gamma / std belongs to the weight."),
    (folded(lambda gamma, var: gamma / np.sqrt(var)), "eps is missing.",
     "std is sqrt(running_var + eps), as in the batch norm."),
    (folded(axis=1), "the factor is applied to the input channels.",
     "The weight has the shape (out, in, height, width): factor.view(-1, 1, 1, 1)."),
    (folded(bias=lambda beta, scale, mean: beta), "the mean is missing from the bias.", FORMULA),
    (folded(bias=lambda beta, scale, mean: beta - mean),
     "the mean goes into the bias without its factor.", FORMULA),
    (folded(bias=lambda beta, scale, mean: beta + scale * mean), "the mean is added.",
     f"Batch norm subtracts it. {FORMULA}"),
)  # fmt: skip


def _wrong_fold(
    weight: np.ndarray, bias: np.ndarray, plain: np.ndarray, norm: Norm, difference: float
) -> None:
    right = folded()(plain, norm)
    part, got = (1, bias) if np.allclose(weight, right[0]) else (0, weight)
    rows = [(f(plain, norm)[part], diagnosis, remedy) for f, diagnosis, remedy in FOLD_MISTAKES]
    rows = [row for row in rows if not np.allclose(row[0], right[part])]
    compare.known(got, rows, np.allclose)
    if part == 0:
        off = np.abs(weight / right[0] - 1).max()
        wrong(f"the weight is off by up to {100 * off:.0f} %.", "It is gamma / std times W.")
    wrong(f"outputs differ by up to {difference:.2g}.", "Compare your bias with the formula.")


# --- ex07.likeliest -------------------------------------------------------------------------------


def likeliest(answer: Callable[[Any, int], Any]) -> str:
    """Check classes and probabilities of 1 to 5 images."""
    draw = np.random.default_rng(7)
    cases = [
        (draw.normal(0, 3, (5, 12)), 3),
        (draw.normal(0, 3, (1, 12)), 5),
        (draw.normal(0, 3, (4, 4)), 4),
        (draw.normal(0, 3, (3, 12)), 1),
        (np.array([[1000.0, 990.0, -1000.0], [0.0, 1.0, 2.0]]), 2),
    ]
    found = [_asked(answer, logits, k) for logits, k in cases]
    for (classes, sure), (logits, k) in zip(found, cases, strict=True):
        _finite(sure, logits)
        _right_classes(classes, logits, k)
        _right_probabilities(sure, classes, logits)
    return "1 to 5 images, 3 to 12 classes, and logits of 1,000."


def _asked(answer: Callable[[Any, int], Any], logits: np.ndarray, k: int) -> list[np.ndarray]:
    """Return the classes and probabilities for a tensor of logits."""
    import torch

    found = compare.call(answer, torch.tensor(logits), k)
    if not isinstance(found, tuple | list) or len(found) != 2:
        wrong("the result is not a pair.", "Return classes and probabilities.")
    try:
        classes, sure = [torch.as_tensor(part).detach().numpy() for part in found]
    except (TypeError, ValueError, RuntimeError):
        wrong("the result is not a pair of tensors.", f"Each has {k} numbers in a row.")
    shape = (len(logits), k)
    refuse(
        (classes.shape != shape or sure.shape != shape,
         f"the shapes are {classes.shape} and {sure.shape}.",
         f"For {len(logits)} images and k = {k} both are {shape}."),
        (classes.dtype.kind not in "iu", f"the classes are {classes.dtype}, not whole numbers.",
         "Classes come first: torch.topk returns the values before their indices."),
        (sure.dtype.kind not in "biuf", f"the probabilities are {sure.dtype}.",
         "Return real numbers."),
    )  # fmt: skip
    return [classes, sure]


def _finite(sure: np.ndarray, logits: np.ndarray) -> None:
    """Look at lost probabilities first: the classes of NaN have no order."""
    lost = ~np.isfinite(sure).all(1)
    if lost.any() and np.abs(logits).max() < 700:
        compare.numbers(sure, "the probabilities")
    refuse(
        (lost[logits.max(1).argmax()], "with logits of 1000 a probability is not finite.",
         "exp(1000) is infinite: subtract the image's largest logit before exp."),
        (lost.any(), "an image's probabilities are 0/0: the largest logit of the whole batch was"
         " subtracted, and next to 1000 in a different image all its exponentials are 0.",
         "Each image has its own largest logit: logits.amax(dim=1, keepdim=True)."),
    )  # fmt: skip


def _right_classes(classes: np.ndarray, logits: np.ndarray, k: int) -> None:
    for row, found in zip(logits, classes.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda i: -row[i])
        if found != (right := order[:k]):
            refuse(
                (found == right[::-1], "the most likely class comes last.",
                 "torch.argsort sorts in ascending order: use descending=True."),
                (found == order[::-1][:k], "these are the least likely classes.",
                 "torch.argsort sorts in ascending order: take the end."),
                (sorted(found) == sorted(right), "the classes are right, but not their order.",
                 "The most likely comes first."),
                (True, f"one of {len(logits)} images gets the classes {found} instead of"
                 f" {right}.", "Treat each image separately."),
            )  # fmt: skip


def _right_probabilities(sure: np.ndarray, classes: np.ndarray, logits: np.ndarray) -> None:
    rows = np.arange(len(logits))[:, None]
    power = np.array([[math.exp(x - max(row)) for x in row] for row in logits])
    right = (power / power.sum(1, keepdims=True))[rows, classes]
    if np.allclose(sure, right):
        return
    columns = np.exp(logits - logits.max(0))
    over_batch = (columns / columns.sum(0))[rows, classes]
    off = np.abs(sure - right).argmax()
    refuse(
        (np.allclose(sure, over_batch), "a probability depends on the other images of the batch:"
         " the sum over the images is 1, not the sum over the classes.",
         "Sum over the classes: dim=1, and keepdim=True."),
        (np.allclose(sure, logits[rows, classes]), "these are logits.",
         "Softmax makes probabilities of them."),
        (np.allclose(sure, right / right.sum(1, keepdims=True)),
         "the k probabilities add up to 1.", "The sum is over all classes, not over k."),
        (True, f"a probability is {sure.flat[off]:.3g}, but {right.flat[off]:.3g} is right.",
         "Divide exp of each logit by the sum over that image's logits."),
    )  # fmt: skip


TABLES = {"percentile": PERCENTILE_MISTAKES, "fold": FOLD_MISTAKES}

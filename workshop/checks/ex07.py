"""Checks of ex07: percentiles, a batch norm inside its convolution, the likeliest classes."""

from __future__ import annotations

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

Folded = tuple[np.ndarray, np.ndarray]
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
    found = [compare.numbers(getattr(layer.double(), n), f"the {n}") for n in ("weight", "bias")]
    got = layer(image).numpy()
    if got.shape != right.shape:
        wrong(f"an image of {tuple(image.shape[1:])} becomes {got.shape[1:]} instead of"
              f" {right.shape[1:]}.",
              "Keep stride, padding, dilation and groups of the old convolution.")  # fmt: skip
    difference = float(np.abs(got - right).max())
    if difference > ROUNDING * np.abs(right).max():
        norm = (bn.weight, bn.bias, bn.running_mean, (bn.running_var + EPS).sqrt())
        _wrong_fold(found, [part.numpy() for part in (conv.weight, *norm)], difference)
    return difference


def _wrong_fold(found: list[np.ndarray], layers: list[np.ndarray], difference: float) -> None:
    """Raise Wrong; the weight is judged before the bias."""
    right = folded(*layers)
    part = 1 if np.allclose(found[0], right[0]) else 0
    rows = [(fold(*layers)[part], what, remedy) for fold, what, remedy in FOLD_MISTAKES]
    rows = [row for row in rows if not np.allclose(row[0], right[part])]
    compare.known(found[part], rows, np.allclose)
    if part == 0:
        off = np.abs(found[0] / right[0] - 1).max()
        wrong(f"the weight is off by up to {100 * off:.0f} %.", "Multiply W by gamma / std.")
    wrong(f"outputs differ by up to {difference:.2g}.", f"Look at your bias. {FORMULA}")


def folded(w: np.ndarray, gamma: Any, beta: Any, mean: Any, std: Any) -> Folded:
    """Return the right weight and bias."""
    return w * (gamma / std).reshape(-1, 1, 1, 1), beta - gamma / std * mean


def by_input(w: np.ndarray, gamma: Any, beta: Any, mean: Any, std: Any) -> Folded:
    """Return the weight with the factors of the output channels on the input channels."""
    factor = np.resize(gamma / std, w.shape[1])
    return w * factor.reshape(1, -1, 1, 1), folded(w, gamma, beta, mean, std)[1]


def with_bias(bias: Callable[..., Any]) -> Callable[..., Folded]:
    """Return a folding with a different bias, a function of beta, the mean and gamma / std."""
    return lambda w, gamma, beta, mean, std: (
        folded(w, gamma, beta, mean, std)[0], bias(beta, mean, gamma / std)
    )  # fmt: skip


FORMULA = "Compute beta − gamma · mean / std."
FOLD_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda w, gamma, beta, mean, std: (w, folded(w, gamma, beta, mean, std)[1]),
     "the weight has not changed.", "Multiply it by the factor gamma / std."),
    (lambda w, gamma, beta, mean, std: folded(w, gamma, beta, mean, np.sqrt(std**2 - EPS)),
     "eps is missing.", "std is sqrt(running_var + eps), as in the batch norm."),
    (by_input, "the factor is applied to the input channels.",
     "The weight has the shape (out, in, height, width): use factor.view(-1, 1, 1, 1)."),
    (with_bias(lambda beta, mean, scale: beta), "the mean is missing from the bias.", FORMULA),
    (with_bias(lambda beta, mean, scale: beta - mean),
     "the mean goes into the bias without its factor.", FORMULA),
    (with_bias(lambda beta, mean, scale: beta + scale * mean), "the mean is added.", FORMULA),
)  # fmt: skip


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

"""Checks of ex07: a percentile of latencies, a batch norm inside its convolution, and the likeliest
classes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from workshop.checks import compare
from workshop.checks.compare import wrong

# --- ex07.percentile ------------------------------------------------------------------------------

LATENCIES = (  # seconds, as they were measured
    (0.02, 0.05, 0.01, 0.04, 0.03),
    (0.3, 0.1, 0.2, 0.4),
    (0.5,),
    tuple((37 * i % 100 + 1) / 1000 for i in range(100)),
    (0.2, 0.2, 0.9, 0.2),
    tuple((7 * i % 20 + 1) / 100 for i in range(20)),
)
# none where rounding decides: 7 / 100 * 100 is more than 7, and NumPy computes it so
ASKED = (50, 90, 95, 99, 100, 1, 0, 33)


CASES = [(values, per_cent) for values in LATENCIES for per_cent in ASKED]


def percentile(answer: Callable[[list[float], float], float]) -> str:
    got = [_at(functools.partial(compare.call, answer), *case) for case in CASES]
    right = [counted(*case) for case in CASES]
    close = functools.partial(np.isclose, rtol=1e-6, atol=0, equal_nan=True)  # float32 will do
    if close(got, right).all():
        return f"{len(LATENCIES)} lists, from p0 to p100, also where values are equal."
    off = int(np.argmin(close(got, right)))
    values, per_cent = CASES[off]
    shown = ", ".join(f"{value:g}" for value in values[:5]) + (", …" if len(values) > 5 else "")
    mistakes = (
        (functools.partial(_at, mistake), f"{said} (p{per_cent} of {shown}).", then)
        for mistake, said, then in MISTAKES
    )
    compare.known(got, mistakes, lambda a, b: close(a, b).all(), CASES)
    if math.isnan(got[off]):
        wrong(
            f"p{per_cent} of {shown} asks for a value that is not there.",
            "Places of a list count from 0: of 100 values the last one is number 99.",
        )
    wrong(
        f"p{per_cent} of {shown} is {right[off]:g}, not {got[off]:g}.",
        f"{100 * sum(v <= right[off] for v in values) / len(values):g} % of them do not exceed it.",
    )


def _at(
    answer: Callable[[list[float], float], float], values: tuple[float, ...], per_cent: float
) -> float:
    """What it says; NaN where it asks for a place that the list does not have."""
    try:
        return compare.number(answer(list(values), per_cent), f"p{per_cent}")
    except IndexError:
        return math.nan


def counted(values: tuple[float, ...], per_cent: float) -> float:
    """The smallest value that at least `per_cent` of all do not exceed, found by counting."""
    return min(
        value
        for value in values
        if 100 * sum(other <= value for other in values) >= per_cent * len(values)
    )


def _rank(values: list[float], per_cent: float) -> int:
    return max(0, math.ceil(len(values) * per_cent / 100) - 1)


MISTAKES: tuple[tuple[Callable[[list[float], float], float], str, str], ...] = (
    (lambda v, p: v[_rank(v, p)], "the values are not sorted",
     "The requests are in the order of time: sort them first."),
    (lambda v, p: sorted(v)[::-1][_rank(v, p)], "it counts from the slowest",
     "p99 is near the slow end."),
    (lambda v, p: sum(v) / len(v), "this is the mean", "The mean hides the slow ones."),
    (lambda v, p: sorted(v)[math.ceil(len(v) * p / 100)], "it counts places from 1",
     "Places of a list count from 0: the rank less 1."),
    (lambda v, p: sorted(v)[min(len(v) - 1, int(len(v) * p / 100))], "it is one place too far",
     "The value in front of it is enough."),
    (lambda v, p: sorted(v)[max(0, int(len(v) * p / 100) - 1)],
     "too few of them do not exceed the answer", "Round the number of values up, not down."),
    (lambda v, p: sorted(v)[max(0, round(len(v) * p / 100) - 1)],
     "too few of them do not exceed the answer", "Round the number of values up, not to the next."),
    (lambda v, p: float(np.percentile(v, p)), "the answer was never measured",
     "Do not interpolate: it is one of the values."),
)  # fmt: skip


# --- ex07.fold ------------------------------------------------------------------------------------

Norm = dict[str, np.ndarray]
NORM = ("weight", "bias", "running_mean", "running_var")  # gamma, beta and the statistics
LAYERS = ((4, 4, 3, 1, 1), (6, 3, 1, 2, 0), (3, 5, 3, 1, 0), (4, 2, 3, 2, 1))
EPS = 1e-2  # large enough to be seen when it is forgotten
ROUNDING = 2e-6  # of the largest output: what float32 leaves


def fold(answer: Callable[[Any, Any], Any]) -> str:
    worst = 0.0
    for number, (out, into, side, stride, padding) in enumerate(LAYERS):
        weight, norm, x = layer(number, out, into, side)
        found = folded_layer(answer, weight, norm, x, stride, padding)
        if found["weight"].shape != weight.shape:
            wrong(f"the weight is {found['weight'].shape}.", f"It stays {weight.shape}.")
        if found["bias"] is None:
            wrong("the new convolution has no bias.", "torch.nn.Conv2d(…, bias=True) has one.")
        got_weight = compare.numbers(found["weight"], "the weight")
        got_bias = compare.numbers(found["bias"], "the bias")
        right = normalised(convolved(x, weight, stride, padding), norm)
        if found["output"].shape != right.shape:
            wrong(
                f"a picture of {x.shape[1:]} gives {found['output'].shape[1:]}, and"
                f" {right.shape[1:]} before.",
                "Stride, padding, dilation and groups are those of the convolution that was there.",
            )
        got = convolved(x, got_weight, stride, padding) + got_bias[:, None, None]
        difference = compare.max_difference(got, right)
        if not difference <= ROUNDING * np.abs(right).max():
            if found["half"] and np.allclose(got, right, rtol=0, atol=0.01 * np.abs(right).max()):
                wrong(
                    "weight and bias are right, but rounded to float16.",
                    "Compute in the type of what was given; who wants 16 bits converts afterwards.",
                )
            _wrong_fold(got_weight, got_bias, weight, norm, difference)
        off = compare.max_difference(found["output"], right)
        if not off <= 100 * ROUNDING * np.abs(right).max():
            wrong(f"called with a picture, it is off by up to {off:.2g}.", "Return a plain Conv2d.")
        worst = max(worst, difference)
    return f"{len(LAYERS)} layers, with and without: the outputs differ by {worst:.0e} at most."


@compare.beside
def folded_layer(
    answer: Callable[[Any, Any], Any],
    weight: np.ndarray, norm: Norm, x: np.ndarray, stride: int, padding: int,
) -> dict[str, Any]:  # fmt: skip
    """Weight, bias and output for one picture of the layer that the answer returns."""
    import torch

    out, into, side, _ = weight.shape
    conv = torch.nn.Conv2d(into, out, side, stride, padding, bias=False).double().eval()
    bn = torch.nn.BatchNorm2d(out, eps=EPS).double().eval()
    with torch.no_grad():
        conv.weight.copy_(torch.tensor(weight))
        for name in NORM:
            bn.state_dict()[name].copy_(torch.tensor(norm[name]))
        before = compare.copied([conv.state_dict(), bn.state_dict()])
        layer = answer(conv, bn)
        for name, given, copy in zip(("conv", "bn"), (conv, bn), before, strict=True):
            if not compare.unchanged(given.state_dict(), copy):
                wrong(
                    f"`{name}` is changed by your function, and whoever has called it still needs"
                    " it as it was.",
                    "Make a new torch.nn.Conv2d for the result, and copy numbers into that.",
                )
        if layer is None:
            compare.returns_nothing()
        if not isinstance(layer, torch.nn.Conv2d):
            wrong(f"what comes back is a {type(layer).__name__}.", "Return a torch.nn.Conv2d.")
        half = layer.weight.dtype == torch.float16
        folded = layer.weight.double().numpy()
        bias = None if layer.bias is None else layer.bias.double().numpy()
        output = layer.float()(torch.tensor(x[None]).float())[0].double().numpy()
    return {"weight": folded, "bias": bias, "output": output, "half": half}


def layer(number: int, out: int, into: int, side: int) -> tuple[np.ndarray, Norm, np.ndarray]:
    """A convolution (OIHW), the batch norm behind it, and a picture (C, H, W)."""
    draw = np.random.default_rng(number)
    norm = {
        "weight": draw.normal(1, 0.5, out),
        "bias": draw.normal(0, 1, out),
        "running_mean": draw.normal(0, 1, out),
        "running_var": draw.uniform(0.1, 4, out),
    }
    norm["weight"][0] = -0.7
    return draw.normal(0, 1, (out, into, side, side)), norm, draw.normal(0, 1, (into, 9, 8))


def convolved(x: np.ndarray, weight: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """A convolution: (C, H, W) -> (O, H', W')."""
    side = weight.shape[2]
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (side, side), axis=(1, 2))
    windows = windows[:, ::stride, ::stride]
    result: np.ndarray = np.einsum("chwij,ocij->ohw", windows, weight)
    return result


def normalised(x: np.ndarray, norm: Norm) -> np.ndarray:
    """A batch norm as it stands in inference, on (O, H, W)."""
    gamma, beta, mean, var = (norm[name][:, None, None] for name in NORM)
    return gamma * (x - mean) / np.sqrt(var + EPS) + beta


def _wrong_fold(
    weight: np.ndarray, bias: np.ndarray, plain: np.ndarray, norm: Norm, difference: float
) -> None:
    gamma, beta, mean, var = (norm[name] for name in NORM)
    scale = gamma / np.sqrt(var + EPS)

    def scaled(by: np.ndarray) -> np.ndarray:
        result: np.ndarray = plain * by[:, None, None, None]
        return result

    if not np.allclose(weight, scaled(scale)):
        compare.known(weight, (
            (plain, "the weight is as it was.", "The factor gamma / std belongs to the weight."),
            (scaled(gamma / np.sqrt(var)), "eps is forgotten.",
             "std is sqrt(running_var + eps), as in the batch norm."),
            (scaled(gamma / (np.sqrt(var) + EPS)), "eps is added to the root.",
             "It stands inside: sqrt(running_var + eps)."),
            (scaled(gamma / (var + EPS)), "it divides by the variance.", "Divide by its root."),
            (scaled(np.abs(scale)), "the sign of gamma is lost.",
             "A gamma below 0 turns its channel round."),
            (scaled(1 / np.sqrt(var + EPS)), "gamma is forgotten.", "The factor is gamma / std."),
            (plain * np.resize(scale, plain.shape[1])[:, None, None],
             "the factor is put on the channels in.",
             "The weight has the shape (out, in, height, width): factor.view(-1, 1, 1, 1)."),
        ), np.allclose)  # fmt: skip
        off = np.abs(weight / scaled(scale) - 1).max()
        wrong(f"the weight is off by up to {100 * off:.0f} %.", "It is gamma / std times W.")
    compare.known(bias, (
        (beta, "the mean is forgotten in the bias.", "It is beta − gamma · mean / std."),
        (beta - mean, "the mean goes into the bias without its factor.",
         "It is beta − gamma · mean / std."),
        (beta + scale * mean, "the mean is added.",
         "Batch norm subtracts it: beta − gamma · mean / std."),
        (scale * (beta - mean), "beta is multiplied too.", "Batch norm adds beta last."),
    ), np.allclose)  # fmt: skip
    wrong(f"outputs differ by up to {difference:.2g}.", "Compare your bias with the formula.")


# --- ex07.likeliest -------------------------------------------------------------------------------


def likeliest(answer: Callable[[Any, int], Any]) -> str:
    draw = np.random.default_rng(7)
    cases = [
        (draw.normal(0, 3, (5, 12)), 3),
        (draw.normal(0, 3, (1, 12)), 5),
        (draw.normal(0, 3, (4, 4)), 4),
        (draw.normal(0, 3, (3, 12)), 1),
        (np.array([[1000.0, 990.0, -1000.0], [0.0, 1.0, 2.0]]), 2),
    ]
    answers = []
    for logits, k in cases:
        classes, sure = asked(answer, logits, k)
        if classes.shape != (len(logits), k) or sure.shape != (len(logits), k):
            wrong(
                f"the shapes are {classes.shape} and {sure.shape}.",
                f"For {len(logits)} pictures and k = {k} both are {(len(logits), k)}.",
            )
        if classes.dtype.kind not in "iu":
            wrong(
                f"the classes are {classes.dtype}, which number nothing.",
                "Classes come first: torch.topk returns the values before their places.",
            )
        if sure.dtype.kind not in "biuf":
            compare.numbers(sure, "the probabilities")
        answers.append((classes, sure))
    for (classes, sure), (logits, k) in zip(answers, cases, strict=True):
        _finite(sure, logits)
        _right_classes(classes, logits, k)
        _right_probabilities(sure, classes, logits)
    return "1 to 5 pictures, 3 to 12 classes, and logits of a thousand."


@compare.beside
def asked(answer: Callable[[Any, int], Any], logits: np.ndarray, k: int) -> list[np.ndarray]:
    """Classes and probabilities that the answer gives for a tensor of logits."""
    import torch

    found = compare.call(answer, torch.tensor(logits), k)
    if not isinstance(found, tuple | list) or len(found) != 2:
        wrong("what comes back is no pair.", "Return classes and probabilities.")
    try:
        return [torch.as_tensor(part).detach().numpy() for part in found]
    except (TypeError, ValueError, RuntimeError):
        wrong("what comes back is not of two tensors.", f"Each is one of numbers, {k} in a row.")


def _finite(sure: np.ndarray, logits: np.ndarray) -> None:
    """Look at lost probabilities first: the classes of NaN are in no order."""
    lost = ~np.isfinite(sure).all(1)
    if lost.any() and np.abs(logits).max() < 700:
        compare.numbers(sure, "the probabilities")
    if lost[logits.max(1).argmax()]:
        wrong(
            "with logits of 1000 a probability is no number.",
            "exp(1000) is infinite: subtract the picture's largest logit before exp.",
        )
    if lost.any():
        wrong(
            "a picture's probabilities are 0/0: the largest logit of the whole batch was"
            " subtracted, and beside another picture's 1000 all of its own powers are 0.",
            "Each picture has its own largest logit: logits.amax(dim=1, keepdim=True).",
        )


def _right_classes(classes: np.ndarray, logits: np.ndarray, k: int) -> None:
    for row, found in zip(logits, classes.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda i: -row[i])
        if found == (right := order[:k]):
            continue
        compare.known(found, (
            (right[::-1], "the likeliest class comes last.",
             "torch.argsort goes upwards: descending=True turns it round."),
            (order[::-1][:k], "these are the least likely classes.",
             "torch.argsort goes upwards: take the end."),
        ))  # fmt: skip
        if sorted(found) == sorted(right):
            wrong("the classes are right, their order is not.", "The likeliest comes first.")
        wrong(
            f"of {len(logits)} pictures one gets the classes {found}, and should get {right}.",
            "Each picture by itself: what another one shows makes no difference.",
        )


def _right_probabilities(sure: np.ndarray, classes: np.ndarray, logits: np.ndarray) -> None:
    rows = np.arange(len(logits))[:, None]
    power = np.array([[math.exp(x - max(row)) for x in row] for row in logits])
    right = (power / power.sum(1, keepdims=True))[rows, classes]
    if np.allclose(sure, right):
        return
    if sure.dtype == np.float16 and np.allclose(sure, right, rtol=0.02, atol=1e-4):
        wrong(
            "the probabilities are right, but have three digits only: they are float16.",
            "Compute in float32 at least: a sum of many classes loses even more.",
        )
    over_batch = np.exp(logits - logits.max(0))
    compare.known(sure, (
        ((over_batch / over_batch.sum(0))[rows, classes],
         "a probability depends on the other pictures of the batch: those of a class add up to 1,"
         " not those of a picture.", "Sum over the classes: dim=1, and keepdim=True."),
        (logits[rows, classes], "these are logits.", "Softmax makes probabilities of them."),
        (right / right.sum(1, keepdims=True), "the k probabilities add up to 1.",
         "The sum goes over all classes, not over k."),
    ), np.allclose)  # fmt: skip
    off = np.abs(sure - right).argmax()
    wrong(
        f"a probability is {sure.flat[off]:.3g}, where {right.flat[off]:.3g} is right.",
        "exp of each logit over the sum of the picture's.",
    )

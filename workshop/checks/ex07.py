"""Checks of ex07: percentiles, the temperature of probabilities, the likeliest classes."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

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
    try:
        compare.examine(answer, cases, counted, PERCENTILE_MISTAKES, one_case=True)
    except IndexError:
        if takes_fractions(answer):
            wrong("it takes per_cent as a fraction: 95 is 95%, not 9,500%.",
                  "Divide per_cent by 100.")  # fmt: skip
        wrong("an index is out of range.",
              "Of 100 values, equal ones included, the rank is from 1 to 100, and the index one"
              " less.")  # fmt: skip
    return f"{len(LATENCIES)} lists, from p0 to p100, some with equal values."


def counted(values: list[float], per_cent: float) -> float:
    """Return the smallest value that at least `per_cent` of all do not exceed, by counting."""
    return min(
        value
        for value in values
        if 100 * sum(other <= value for other in values) >= per_cent * len(values)
    )


def takes_fractions(answer: Callable[[list[float], float], float]) -> bool:
    """Return True if an answer is right for 0.95 in place of 95."""
    values = LATENCIES[-1]
    try:
        return answer(list(values), 0.95) == counted(values, 95)
    except Exception:
        return False


def _rank(values: list[float], per_cent: float) -> int:
    return max(0, math.ceil(len(values) * per_cent / 100) - 1)


PERCENTILE_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda v, p: v[_rank(v, p)], "the values are not sorted.",
     "Sort them first."),
    (lambda v, p: sorted(v)[min(len(v) - 1, int(len(v) * p / 100))], "it is one rank too"
     " high if the rank is a whole number.", "Round the rank up, then subtract 1, because indices"
     " start at 0."),
    (lambda v, p: sorted(v)[max(0, int(len(v) * p / 100) - 1)],
     "the rank is rounded down, so too few values are at or below the result.", "Round it up."),
    (lambda v, p: float(np.percentile(v, p)), "the result is not a measured value.",
     "Do not interpolate: return one of the values."),
    (lambda v, p: sorted(v)[max(0, round(len(v) * p / 100) - 1)],
     "the rank is rounded to the nearest whole number, so too few values may be at or below the"
     " result.", "Round it up, with math.ceil."),
    (lambda v, p: sorted(v)[math.ceil(len(v) * p / 100) - 1], "p0 gives the largest value: its rank"
     " is 0, and index −1 is the last one.", "Use max(0, rank - 1) as the index."),
    *((lambda v, p, to=to, less=less: sorted(v)[max(0, to((len(v) - 1) * p / 100) - less)],
       "per_cent is applied to the last index, not to the number of values.",
       "The rank is len(seconds) * per_cent / 100, rounded up; the index is one less.")
      for to in (int, round, math.ceil) for less in (0, 1)),
    (lambda v, p: sorted(v, reverse=True)[_rank(v, p)], "the values are sorted from the largest"
     " down.", "Sort in ascending order: p0 is the smallest."),
    (lambda v, p: min(x for x in v if 100 * x >= p * max(v)), "the result is at least per_cent"
     " percent of the *largest value*.",
     "Count values: per_cent percent of them must be at or below the result."),
    (lambda v, p: sorted(v)[min(len(v) - 1, _rank(v, p) + 1)], "the index is one too high.",
     "Ranks start at 1, indices at 0: subtract 1."),
    (lambda v, p: counted(sorted(set(v)), p), "equal values are counted once.",
     "Count every request: sort the list, not a set."),
    *((lambda v, p, more=more: _rank(v, p) + more, "this is a rank or an index, not a latency.",
       "Return the value there: sorted(seconds)[index].") for more in (0, 1)),
)  # fmt: skip


# --- ex07.temperature -----------------------------------------------------------------------------

# by what the right logits are multiplied, the classes, and what is added to those of class 0
TRUE = ((2.5, 10, 0), (0.6, 4, 0), (1.0, 12, 0), (2, 6, 2))
IMAGES = 1000


def drawn(factor: float, classes: int, bias: float) -> tuple[np.ndarray, np.ndarray]:
    """Return logits that are wrong by a factor and a bias, and labels drawn from the right ones."""
    draw = np.random.default_rng(classes)
    logits = draw.normal(0, 2, (IMAGES, classes))
    labels = (logits + draw.gumbel(size=logits.shape)).argmax(1)
    logits[:, 0] += bias
    return factor * logits, labels


def best_temperature(logits: Any, labels: Any, twice: bool = False) -> float:
    """Return the temperature of the smallest cross-entropy, by a search on two grids.

    `twice` passes probabilities to a cross-entropy that takes logits.
    """
    from torch.nn.functional import cross_entropy

    def loss(t: float) -> float:
        scaled = logits / t
        return float(cross_entropy(scaled.softmax(1) if twice else scaled, labels))

    coarse = min(np.geomspace(0.05, 20, 60), key=loss)
    return float(min(coarse * np.geomspace(0.9, 1.1, 100), key=loss))


def honest_temperature(logits: Any, labels: Any) -> float:
    """Return the temperature at which the mean probability of the answers is the accuracy."""
    right = float((logits.argmax(1) == labels).double().mean())
    grid = np.geomspace(0.05, 20, 1000)
    return float(
        min(grid, key=lambda t: abs(float((logits / t).softmax(1).amax(1).mean()) - right))
    )


def cross_entropies(logits: Any, labels: Any) -> Callable[[float], float]:
    """Return a function from T to the cross-entropy."""
    from torch.nn.functional import cross_entropy

    return lambda t: float(cross_entropy(logits / t, labels)) if t else math.inf


def search_ended(got: float, right: float, at: Callable[[float], float]) -> tuple[str, str]:
    """Return why a search may have ended at `got`, and what to do."""
    if got <= 0:
        return "T must be positive.", "Search from 0.05 to 20, or fit log T."
    if max(got / right, right / got) < 1.25:
        return "that is close, but only 2% are accepted.", (
            "Use a finer grid or more steps, and with an optimizer clear the gradients in each."
        )
    if min(1.0, right) < got < max(1.0, right):
        return (
            "a search that starts at 1 has not arrived, or the grid ends there.",
            "Take more or larger steps, or a wider grid: 0.05 to 20.",
        )
    if at(got) > at(1.0):
        return (
            "T = 1 would be better.",
            "Take the smallest loss, of cross_entropy(logits / T, labels). (Accuracy, for example,"
            " is the same for every T.)",
        )
    return (
        "the search went too far.",
        "Minimise cross_entropy(logits / T, labels), and clear the gradients in every step.",
    )


def temperature(answer: Callable[[Any, Any], float]) -> str:
    """Check the temperature of logits that are too large, too small, and right."""
    import torch

    for factor, classes, bias in TRUE:
        logits, labels = map(torch.tensor, drawn(factor, classes, bias))
        found = compare.call(answer, logits, labels)
        refuse((isinstance(found, float) and math.isnan(found), "T is NaN: the fit has diverged.",
                "With an optimizer, clear the gradients in each step."))  # fmt: skip
        got = compare.number(found, "the result")
        right = best_temperature(logits, labels)
        near = functools.partial(math.isclose, rel_tol=0.02)
        if near(got, right):
            continue
        if not 1 / 1.1 < got / right < 1.1:
            rows = [(mistake(logits, labels), *text) for mistake, *text in TEMPERATURE_MISTAKES]
            compare.known(got, rows, near)
        refuse((bias and near(got, honest_temperature(logits, labels)),
                "the mean probability equals the accuracy, but the cross-entropy is not smallest.",
                "Minimise cross_entropy(logits / T, labels)."))  # fmt: skip
        side, at = "high" if got > right else "low", cross_entropies(logits, labels)
        why, remedy = search_ended(got, right, at)
        wrong(
            f"T = {got:.4g} is too {side} for logits that are {factor:g} times the right ones"
            f"{' and too large for class 0' if bias else ''} (the"
            f" cross-entropy is {at(got):.5g}, and {at(right):.5g} at {right:.3g}): {why}",
            remedy,
        )
    return "four kinds of logits, too large, too small and biased: the smallest cross-entropy."


TEMPERATURE_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda logits, labels: 1 / best_temperature(logits, labels), "this is 1 / T.",
     "The logits are *divided* by T: large logits need a T above 1."),
    (lambda logits, labels: max(1.0, best_temperature(logits, labels)),
     "these logits are too small, but T is 1.",
     "Try values of T below 1, too."),
    (lambda logits, labels: 1.0, "T = 1 changes nothing.",
     "An optimizer moves T only in its `step`. Minimise the cross-entropy: the accuracy is the same"
     " for every T."),
    (lambda logits, labels: math.log(best_temperature(logits, labels)),
     "this is the logarithm of T.",
     "If you fit log T, return its exponential."),
    (lambda logits, labels: float(logits.std()), "this is the spread of the logits.",
     "Compare with the labels: try values of T, and take the one with the smallest cross-entropy."),
    (lambda logits, labels: best_temperature(logits, labels) ** 2, "this is the square of T.",
     "Divide the logits by T once."),
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
    use.train("ex07", model_prefix=str(small), num_epochs=4)
    return small, checkpoint.epochs(small)[-1]


NEW_SEED, NEW_SIGNS = 4711, 4  # the built-in data set is drawn from seed 0


def draw_signs(folder: Path, classes: Sequence[str]) -> list[Path]:
    """Draw JPEG files that are not in the data set into a new folder, and return their paths.

    These are NEW_SIGNS signs, named after their classes, then road.jpg and noise.jpg without one.
    """
    from data_prep.signs.assets import make_assets
    from data_prep.signs.compose import draw_jpeg
    from data_prep.signs.light import choose_light
    from data_prep.signs.scene import draw_scene

    folder.mkdir(parents=True, exist_ok=True)
    assets = make_assets(NEW_SEED)
    files = {}
    for label in range(0, len(classes), len(classes) // NEW_SIGNS):
        files[classes[label]] = draw_jpeg(assets, NEW_SEED, "val", label)
    rng = np.random.default_rng(NEW_SEED)
    without_sign = {
        "road": draw_scene(rng, assets, choose_light(rng), 500, 375),
        "noise": Image.fromarray(rng.integers(0, 256, (375, 500, 3), np.uint8)),
    }
    for name, image in without_sign.items():
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=90)
        files[name] = buffer.getvalue()
    for name, content in files.items():
        (folder / f"{name}.jpg").write_bytes(content)
    return [folder / f"{name}.jpg" for name in files]


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
            classes, sure = map(torch.as_tensor, found)
            _finite(classes, sure, logits)
            shape = len(logits), k
            refuse(
                (
                    classes.shape != shape,
                    f"the classes have the shape {tuple(classes.shape)}, not {shape}.",
                    "Return k classes of each image: [:, :k] selects columns.",
                )
            )
        return found

    cases = [(torch.tensor(logits), k) for logits, k in LOGITS]
    for some in (cases[:-1], cases):  # an overflow is the last of several mistakes
        compare.examine(checked, some, softmax, LIKELIEST_MISTAKES, one_case=True)
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
    (lambda x, k: chosen(x.argsort(1, descending=True)[:, -k:], x.softmax(1)),
     "these are the least likely classes.", "After a descending sort, take the first k: [:, :k]."),
    (lambda x, k: chosen(x.topk(k).indices, x.flatten().softmax(0).view_as(x)),
     "all probabilities of the batch add up to 1, so the answer depends on the other images.",
     "Sum over the classes of one image: dim=1, and keepdim=True."),
    (lambda x, k: (x.topk(k).indices.tolist(), x.softmax(1)[:, :k].tolist()),
     "the probabilities are those of the classes 0 to k − 1.",
     "Pick those of your classes: probabilities.gather(1, classes)."),
    (lambda x, k: chosen(x.topk(k).indices, x.log_softmax(1)),
     "these are logarithms of probabilities.", "Use softmax, or apply exp."),
    (lambda x, k: chosen(x.topk(k).indices, x.sigmoid()),
     "an image's probabilities do not add up to 1: sigmoid looks at one class alone.",
     "Use softmax, which divides by the sum over the classes."),
    (lambda x, k: ((x.topk(k).indices + 1).tolist(), x.softmax(1).topk(k).values.tolist()),
     "the classes are counted from 1.", "Return the columns' indices, from 0."),
    (lambda x, k: chosen(x.topk(k).indices, 100 * x.softmax(1)), "these are percentages.",
     "Return probabilities from 0 to 1."),
)  # fmt: skip

"""Checks of ex03: shards, the common start, sums against means of means, a trace, recipe 1."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from workshop import paths
from workshop.checks import compare, process_ranks, recipes
from workshop.checks.compare import wrong

# --- ex03.shard -----------------------------------------------------------------------------------

Shard = Callable[[np.ndarray, int, int, int], np.ndarray]
GROUPS = (  # images, ranks, batch; the last one has too few images for a step
    (11, 2, 3), (48, 2, 4), (50, 3, 4), (7, 1, 2), (23, 4, 5), (40, 8, 2), (7, 2, 4),
)  # fmt: skip


def shard(answer: Shard) -> str:
    cases = []
    for images, size, batch in GROUPS:
        order = np.array(random.Random(images).sample(range(images), images))
        cases += [(order, rank, size, batch) for rank in range(size)]
    kind = compare.numbers(compare.call(answer, *cases[0]), "the result")
    if kind.size and np.asarray(answer(*cases[0])).dtype.kind not in "iu":
        wrong("the numbers of the images are not integers, so they cannot select anything.",
              "Create new arrays with dtype=int.")  # fmt: skip
    if kind.ndim != 2:
        wrong(f"the result has the shape {kind.shape}.",
              "Return an array of shape (steps, batch), with a row for each step.")  # fmt: skip
    compare.examine(answer, cases, rows, SHARD_MISTAKES, one_case=True)
    return f"{len(GROUPS)} groups of 1 to 8 ranks: no image twice, and equal steps for all."


def rows(order: np.ndarray, rank: int, size: int, batch: int) -> list[list[int]]:
    """Return the images of a rank, a row for each step."""
    steps = [order[at : at + size * batch] for at in range(0, len(order), size * batch)]
    own = [step[rank * batch : (rank + 1) * batch].tolist() for step in steps]
    return own[: len(order) // (size * batch)]


def cut(images: np.ndarray, batch: int, steps: int | None = None) -> list[list[int]]:
    """Return images in `steps` rows of `batch`, in order; by default in all full rows."""
    steps = len(images) // batch if steps is None else steps
    return [images[batch * step :][:batch].tolist() for step in range(steps)]


SHARD_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda order, rank, size, batch: rows(order, 0, size, batch),
     "every rank reads the same images.", "Use the rank as the offset within a step."),
    (lambda order, rank, size, batch: cut(order, batch),
     "each rank takes as many steps as one rank alone.",
     "Divide by size · batch, the number of images in a step of all ranks."),
    (lambda order, rank, size, batch: cut(order[rank::size], batch, len(order) // (size * batch)),
     "every image is read once, but within a step the ranks take the images in turn.",
     "Give rank r the r-th block of `batch` consecutive images, so that N ranks see the same global"
     " batches as one rank."),
    (lambda order, rank, size, batch: cut(order[rank::size], batch),
     "the ranks do not take the same number of steps: one that takes an extra step waits for the"
     " others' gradients forever.", "Drop the images that do not fill a step of all ranks."),
    (lambda order, rank, size, batch: cut(
        order[rank * (len(order) // (size * batch)) * batch :], batch,
        len(order) // (size * batch)),
     "every image is read once, but a step does not take consecutive images of the order.",
     "Cut the order into steps first, and each step into ranks: 2 × 16 images are then the same"
     " training as 1 × 32."),
    (lambda order, rank, size, batch: cut(
        order[rank * batch :], batch, len(order) // (size * batch)),
     "images are read twice in an epoch.",
     "Begin step s at s · size · batch, and rank r at r · batch after that."),
)  # fmt: skip


# --- ex03.start -----------------------------------------------------------------------------------


def start(answer: Callable[[Any], Any]) -> str:
    sizes = (2, 3)
    cases = process_ranks.together(answer, "alike", [{"size": size} for size in sizes])
    for size, found in zip(sizes, cases, strict=True):
        for rank, tensors in enumerate(process_ranks.results_of(found)):
            _like_first(tensors, rank, size)
    return "2 and 3 ranks, weights and running statistics: all have rank 0's."


def _like_first(tensors: dict[str, Any], rank: int, size: int) -> None:
    """Raise Wrong unless all tensors of a rank's model are full of rank 0's values."""
    got = np.array([[np.min(values), np.max(values)] for values in tensors.values()])
    before = np.array([process_ranks.own(number) for number in range(size)])[:, :, None]
    off = ~np.isclose(got, before[0]).all(1)
    if not off.any():
        return
    name = list(tensors)[off.argmax()]
    keeps = rank and np.allclose(got[off], before[rank][off])
    compare.refuse(
        (keeps and off.all(), f"rank {rank} keeps its own weights.",
         "Overwrite each tensor in place, with dist.broadcast(tensor, src=0)."),
        (keeps, f"{name} was not sent: rank {rank} keeps its own.",
         "Send all of model.state_dict(): running statistics belong to the model too, and"
         " model.parameters() has none of them."),
        (np.allclose(got[off], before.mean(0)[off]), "all ranks get the average of their weights,"
         " with too small a spread.", "Send rank 0's weights to all."),
        (True, f"{name} on rank {rank} of {size} is neither rank 0's nor its own.",
         "Send it, and change nothing else."),
    )  # fmt: skip


# --- ex03.sums ------------------------------------------------------------------------------------

VALIDATIONS = (  # of each rank: summed loss, first guesses right, among five right, images
    ((64.0, 24, 30, 32), (16.0, 2, 6, 8)),
    ((30.0, 10, 15, 20), (30.0, 10, 15, 20)),
    ((50.0, 9, 20, 25), (0.0, 0, 0, 0), (8.0, 3, 4, 4)),
    ((2.0, 1, 1, 1),),
)
NO_IMAGES = ((0.0, 0, 0, 0), (0.0, 0, 0, 0))


def sums(answer: Callable[[Any], Mapping[str, float | None]]) -> str:
    """Check the metrics of VALIDATIONS, and of one without any image."""
    given = [{"size": len(case), "sums": case} for case in (*VALIDATIONS, NO_IMAGES)]
    *found, nothing = process_ranks.together(answer, "metrics", given)
    for case, entries in zip(VALIDATIONS, found, strict=True):
        ranks = process_ranks.results_of(entries)
        total = np.sum(case, axis=0)
        right = means(*total)
        good = [all(compare.same(v.get(n), x) for n, x in right.items()) for v in ranks]
        if good[0] and not all(good) and not any(None in v.values() for v in ranks):
            wrong("rank 0 has the right metrics, the others do not.",
                  "dist.reduce gives the sum to one rank; dist.all_reduce to all.")  # fmt: skip
        for rank, values in enumerate(ranks):
            if None in values.values():
                wrong(f"rank {rank} gets None, although there are images.",
                      "Return None only if no rank has an image.")  # fmt: skip
            compare.predicted(
                values, right, sums_mistakes(case, total, rank),
                "Divide the sums by the number of images on all ranks.", rel_tol=1e-5,
            )  # fmt: skip
    try:
        empty = process_ranks.results_of(nothing)
    except compare.Failed as error:
        if "ZeroDivision" not in error.text:
            raise
        wrong("a validation without images makes it divide by zero.", "Return None for all three.")
    if any(value is not None for values in empty for value in values.values()):
        wrong("without any image it still gives a number.",
              "Return None: 0% would look like a result, and NaN like a bug.")  # fmt: skip
    return f"{len(VALIDATIONS)} validations, with a rank that has no images, and without images."


def means(loss: float, top1: float, top5: float, images: float) -> dict[str, float]:
    """Return the metrics from sums; zeros without images."""
    many = max(images, 1)
    return {"loss": loss / many, "top1": 100 * top1 / many, "top5": 100 * top5 / many}


def sums_mistakes(case: Sequence[Sequence[float]], total: Any, rank: int) -> list[compare.Mistake]:
    """Return the usual mistakes, as the metrics of a rank."""
    each = [means(*one) for one in case if one[3]]
    return [
        ({name: np.mean([one[name] for one in each]) for name in each[0]},
         "this is the mean of the ranks' means, as if all ranks had as many images.",
         "Add up over all ranks first, then divide once, by the number of all images."),
        (means(*case[rank]), "each rank reports its own images only.",
         "Add up over all ranks with dist.all_reduce."),
        ({"loss": total[0] / max(case[rank][3], 1)},
         "the sum of all is divided by one rank's images.", "Sum the numbers of images too."),
        ({"loss": 100 * total[0] / total[3]}, "the loss is multiplied by 100.",
         "Only top1 and top5 are in percent."),
        ({"top1": total[1] / total[3]}, "top1 is a fraction.",
         "Multiply by 100: the report is in percent."),
    ]  # fmt: skip


# --- ex03.exposed ---------------------------------------------------------------------------------

Events = list[dict[str, Any]]


def events_of(*rows: tuple[str, int, int]) -> Events:
    """Return events of a trace from rows of name, begin and end in microseconds."""
    return [{"name": name, "ts": begin, "dur": end - begin} for name, begin, end in rows]


CONV, BN, NCCL, GLOO = "sm90_fprop", "bn_bw_1C11", "ncclDevKernel_AllReduce_Sum", "gloo:all_reduce"
C10D = "_c10d_functional::all_reduce"
EXCHANGE = NCCL, GLOO, C10D
TRACES = (
    events_of((NCCL, 0, 5000), (NCCL, 3000, 8000), (CONV, 2000, 6000)),
    # hidden but for its end, in any order; the second message starts inside the first
    events_of((NCCL, 5000, 6500), (CONV, 0, 6000), (BN, 6000, 7500), (NCCL, 4000, 9000)),
    # a gap in the middle is exposed, and nothing after the last message
    events_of((GLOO, 1000, 6000), (CONV, 0, 2500), (CONV, 4000, 5500), (BN, 5500, 9000)),
    # all exposed, twice; all hidden, below two operators at a time
    events_of((CONV, 0, 1000), (GLOO, 1000, 2200), (CONV, 2200, 3000), (GLOO, 3000, 3700)),
    events_of((CONV, 0, 5000), (BN, 1000, 4000), (NCCL, 1500, 4500)),
    # the operator that starts a message hides nothing of it
    events_of((CONV, 0, 1000), (C10D, 1000, 1500), (GLOO, 1200, 2500), (CONV, 2000, 4000)),
    events_of((CONV, 0, 1000)),
)


def exposed(answer: Callable[[Events], Sequence[float]]) -> str:
    cases = [(events,) for events in TRACES]
    try:
        compare.examine(answer, cases, exposed_ms, EXPOSED_MISTAKES, one_case=True)
    except compare.Wrong:
        orders = map(deepcopy, permutations(TRACES[0]))
        first, *more = (compare.like(compare.call(answer, [*e]), (0.0, 0.0)) for e in orders)
        if not all(compare.same(first, other) for other in more):
            wrong("the result depends on the order of the events.",
                  "The events may be in any order: sort what you loop over by time.")  # fmt: skip
        raise
    return f"{len(TRACES)} traces: hidden, exposed, with gaps, and messages that overlap."


def busy(events: Events, exchange: bool, names: Sequence[str] = EXCHANGE) -> np.ndarray:
    """Return for each microsecond how many events of a kind run; fewer `names` are a mistake."""
    running = np.zeros(10_000, int)
    for event in events:
        if (event["name"] in names) == exchange:
            running[event["ts"] : event["ts"] + event["dur"]] += 1
    return running


def exposed_ms(events: Events, names: Sequence[str] = EXCHANGE) -> tuple[float, float]:
    """Return the right milliseconds, counted microsecond by microsecond."""
    sends, computes = busy(events, True, names) > 0, busy(events, False, names) > 0
    return float(sends.sum() / 1000), float((sends & ~computes).sum() / 1000)


def after_the_last(events: Events) -> float:
    """Return the milliseconds of exchange after the last computation."""
    computes = np.flatnonzero(busy(events, False))
    return float((busy(events, True)[computes[-1] + 1 :] > 0).sum() / 1000)


def with_flags(events: Events) -> tuple[float, float]:
    """Return the milliseconds if any end switches off its kind, instead of counting down."""
    on = {sends: np.zeros(10_000, bool) for sends in (True, False)}
    edges = []
    for event in events:
        sends, begin = event["name"] in EXCHANGE, event["ts"]
        edges += [(begin, True, sends), (begin + event["dur"], False, sends)]
    for at, starts, sends in sorted(edges):
        on[sends][at:] = starts
    return float(on[True].sum() / 1000), float((on[True] & ~on[False]).sum() / 1000)


TWICE: tuple[Callable[[Events], float], ...] = (  # the exposed part, if the exchange counts twice
    lambda e: exposed_ms(e)[1],
    lambda e: (busy(e, True) * (busy(e, False) == 0)).sum() / 1000,
    lambda e: (busy(e, True).sum() - ((busy(e, True) > 0) & (busy(e, False) > 0)).sum()) / 1000,
)
EXPOSED_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda e: (float(busy(e, True).sum() / 1000),) * 2, "each event counts on its own, as if none"
     " overlapped.", "Sort all starts and ends by time, in one list, and go through it."),
    (with_flags, "if two events overlap, the end of the first switches both off.",
     "Keep a count instead of a flag: +1 at each start, -1 at each end."),
    (lambda e: tuple(1000 * ms for ms in exposed_ms(e)), "these are microseconds.",
     "Divide by 1,000."),
    (lambda e: exposed_ms(e)[::-1], "the two numbers are swapped.",
     "Return the whole exchange first, then its exposed part."),
    (lambda e: (exposed_ms(e)[0],) * 2, "all of the exchange counts as exposed.",
     "Leave out the time in which a kernel or operator computes."),
    *((lambda e, alone=alone: (busy(e, True).sum() / 1000, alone(e)),
       "two messages at the same time count twice.",
       "Add up how long *at least one* of them runs: the union of their intervals.")
      for alone in TWICE),
    *((lambda e, least=least: (exposed_ms(e)[0], max(
        least, float((busy(e, True) > 0).sum() - (busy(e, False) > 0).sum()) / 1000)),
       "this is exchange minus computation, as if all of the computation ran during the exchange.",
       "Look at each instant: is an exchange running, and no computation?")
      for least in (0.0, -math.inf)),
    (lambda e: (exposed_ms(e)[0], after_the_last(e)),
     "only what comes after the last computation counts.",
     "A gap between two kernels is exposed too, if an exchange runs in it."),
    (lambda e: exposed_ms(e, (NCCL, GLOO)), "the operators of c10d count as computation.",
     "They only start the exchange: look for `c10d` anywhere in the name."),
    (lambda e: exposed_ms(e, (NCCL,)), "Gloo's messages count as computation.",
     "Look for `gloo` in the name, too."),
    (lambda e: (exposed_ms(e)[0], 0.0), "an exchange hides itself.",
     "Only the events that are *not* exchange can hide it."),
)  # fmt: skip


def trace_of_notebook(runs: Path) -> Path:
    """Return the trace of notebook 03, or a recorded one: two DDP processes on a CPU, by Gloo."""
    own = runs / "lesson-03" / "ddp.json"
    return own if own.exists() else paths.need_checkout() / "notebooks/expected/traces/03/ddp.json"


# --- ex03.recipe ----------------------------------------------------------------------------------

recipe = recipes.parallel

"""Checks of ex03: shards, sums against means of means, a trace, recipe 1."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workshop import paths
from workshop.checks import compare, process_ranks, recipes
from workshop.checks.compare import wrong

# --- ex03.shard -----------------------------------------------------------------------------------

Shard = Callable[[np.ndarray, int, int, int], np.ndarray]
# images, ranks, batch
GROUPS = (11, 2, 3), (48, 2, 4), (50, 3, 4), (7, 1, 2), (23, 4, 5), (40, 8, 2)
SHARD_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda order, rank, size, batch: order[rank::size][: len(order) // (size * batch) * batch]
     .reshape(-1, batch).tolist(), "Each rank takes every size-th image of a step.",
     "Rank r takes images r · batch to (r + 1) · batch - 1 of each step's size · batch."),
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
    compare.examine(answer, cases, rows, SHARD_MISTAKES, why=steps_of)
    return f"{len(GROUPS)} groups of 1 to 8 ranks: no image twice, and equal steps for all."


def steps_of(order: np.ndarray, rank: int, size: int, batch: int) -> str:
    each = size * batch
    return (
        f"Of the {each} images of a step, this rank takes those from number {rank * batch} to"
        f" {rank * batch + batch - 1}; {len(order)} images make {len(order) // each} full"
        f" step{'s' * (len(order) // each != 1)}, the same number on every rank."
    )


def rows(order: np.ndarray, rank: int, size: int, batch: int) -> list[list[int]]:
    """Return the images of a rank, a row for each step."""
    steps = [order[at : at + size * batch] for at in range(0, len(order), size * batch)]
    own = [step[rank * batch : (rank + 1) * batch].tolist() for step in steps]
    return own[: len(order) // (size * batch)]


# --- ex03.sums ------------------------------------------------------------------------------------

VALIDATIONS = (  # of each rank: summed loss, first guesses right, among five right, images
    ((64.0, 24, 30, 32), (16.0, 2, 6, 8)),
    ((30.0, 10, 15, 20), (30.0, 10, 15, 20)),
    ((50.0, 9, 20, 25), (0.0, 0, 0, 0), (8.0, 3, 4, 4)),
    ((2.0, 1, 1, 1),),
    ((0.0, 0, 0, 0), (0.0, 0, 0, 0)),
)


@dataclass(frozen=True)
class Validated:
    """The sums of all ranks in a validation, of which one rank gets its own."""

    sums: tuple[tuple[float, int, int, int], ...]
    rank: int

    def __repr__(self) -> str:
        return f"{self.sums[self.rank]} on rank {self.rank} of {len(self.sums)}"


def sums(answer: Callable[[Any], Mapping[str, float | None]]) -> str:
    """Check the metrics of VALIDATIONS, the last without any image."""
    given = [{"size": len(case), "sums": case} for case in VALIDATIONS]
    found = dict(zip(VALIDATIONS, process_ranks.together(answer, "metrics", given), strict=True))

    @functools.wraps(answer)
    def returned(one: Validated) -> Any:
        return process_ranks.results_of(found[one.sums])[one.rank]

    cases = [(Validated(case, rank),) for case in VALIDATIONS for rank in range(len(case))]
    compare.examine(returned, cases, metrics, why=total_of)
    return f"{len(VALIDATIONS)} validations, with a rank that has no images, and without images."


def metrics(one: Validated) -> dict[str, float | None]:
    """Return the right metrics, the same on each rank."""
    loss, top1, top5, images = map(sum, zip(*one.sums, strict=True))
    if not images:
        return {"loss": None, "top1": None, "top5": None}
    return {"loss": loss / images, "top1": 100 * top1 / images, "top5": 100 * top5 / images}


def total_of(one: Validated) -> str:
    loss, *hits, images = map(sum, zip(*one.sums, strict=True))
    if not images:
        return "No rank has an image: 0 would look like a result, and NaN like a bug."
    return (
        f"On every rank: the ranks have {images} images together, a summed loss of {loss:g}, and"
        f" {' and '.join(map(str, hits))} hits."
    )


# --- ex03.exposed ---------------------------------------------------------------------------------

Events = list[dict[str, Any]]


def events_of(*rows: tuple[str, int, int]) -> Events:
    """Return events of a trace from rows of name, begin and end in microseconds."""
    return [{"name": name, "ts": begin, "dur": end - begin} for name, begin, end in rows]


CONV, BN, NCCL, GLOO = "sm90_fprop", "bn_bw_1C11", "ncclDevKernel_AllReduce_Sum", "gloo:all_reduce"
C10D = "_c10d_functional::all_reduce"
TRACES: tuple[Events, ...] = (
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
TRACES += ([event | {"ts": event["ts"] + 3e8 + 0.5} for event in TRACES[1]],)  # like real times


def exposed(answer: Callable[[Events], Sequence[float]]) -> str:
    compare.examine(answer, [(events,) for events in TRACES], exposed_ms, why=intervals)
    return f"{len(TRACES)} traces: hidden, exposed, with gaps, and messages that overlap."


def busy(events: Events, exchange: bool) -> np.ndarray:
    """Return for each microsecond whether an event of a kind runs."""
    running = np.zeros(10_000, bool)
    for event in events:
        if (event["name"] in (NCCL, GLOO, C10D)) == exchange:
            begin = int(event["ts"] % 1e8)
            running[begin : begin + event["dur"]] = True
    return running


def exposed_ms(events: Events) -> tuple[float, float]:
    """Return the right milliseconds, counted microsecond by microsecond."""
    sends, computes = busy(events, True), busy(events, False)
    return float(sends.sum() / 1000), float((sends & ~computes).sum() / 1000)


def intervals(events: Events) -> str:
    """Return when an exchange runs, and when a computation."""

    def times(exchange: bool) -> str:
        edges = np.flatnonzero(np.diff(busy(events, exchange), prepend=False)) / 1000
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return " and ".join(f"from {begin:g} to {end:g} ms" for begin, end in pairs) or "never"

    return f"An exchange runs {times(True)}, a computation {times(False)}."


def trace_of_notebook(runs: Path) -> Path:
    """Return notebook 03's trace of DDP, or a recorded one: two processes on a CPU, by Gloo."""
    own = runs / "lesson-03" / "ddp.json"
    return own if own.exists() else paths.need_checkout() / "notebooks/expected/traces/03/ddp.json"


# --- ex03.recipe ----------------------------------------------------------------------------------

recipe = recipes.parallel

"""Notebook 03: the ring, drawn and checked, and the check of the exposed time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50 import plot
from workshop import output
from workshop.checks import process_ranks
from workshop.checks.compare import Mistake, examine, refuse, wrong
from workshop.checks.engine import unanswered
from workshop.lessons.choice import choose, write_chosen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRADIENTS_MB = 102.2  # of ResNet-50 in float32


def all_reduce(gradients: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of all workers, (workers, elements), after 0, 1, ... 2 (N - 1) steps.

    Worker k sends one chunk to worker k + 1 in every step. In the first N - 1 steps, the
    reduce-scatter, the receiver adds it to its own; in the last N - 1, the all-gather, it keeps it.
    """
    workers, elements = gradients.shape
    chunks = np.array_split(np.arange(elements), workers)  # they may differ by one element
    states = [gradients.copy()]
    for step in range(2 * (workers - 1)):
        before, after = states[-1], states[-1].copy()
        for sender in range(workers):
            receiver = (sender + 1) % workers
            part = chunks[(sender - step) % workers]  # each passes on what it got before
            after[receiver, part] = before[sender, part]
            if step < workers - 1:  # reduce-scatter
                after[receiver, part] += before[receiver, part]
        states.append(after)
    return states


def contributions(workers: int) -> np.ndarray:
    """Return whose gradient is in which chunk: bool, (steps + 1, worker, chunk, whose).

    Worker k's gradient is 2 to the power of k, so that the bits of a sum show what is in it.
    """
    own = np.repeat(2 ** np.arange(workers, dtype=np.int64)[:, None], workers, axis=1)
    bits = np.stack(all_reduce(own))[..., None] >> np.arange(workers)
    return (bits & 1).astype(bool)


def draw_ring(workers: int, step: int) -> tuple[Figure, str]:
    """Draw what every worker holds after `step` steps; a step beyond the last shows the end.

    A frame marks what has just arrived. Return the figure and how much has been sent.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    last = 2 * (workers - 1)
    step = min(step, last)
    held = contributions(workers)
    now, arrived = held[step], (held[step] != held[max(0, step - 1)]).any(axis=2)
    with plot.style():
        figure = Figure(figsize=(9, 1.6 + 0.5 * workers))
        axes = figure.subplots()
        axes.imshow(now.sum(axis=2), cmap="Oranges", vmin=0, vmax=2 * workers, aspect="auto")
        for worker, chunk in np.ndindex(workers, workers):
            whose = "+".join(map(str, np.flatnonzero(now[worker, chunk])))
            text = "sum" if now[worker, chunk].all() else whose
            axes.text(chunk, worker, text, ha="center", va="center")
            if arrived[worker, chunk]:
                corner = (chunk - 0.47, worker - 0.45)
                axes.add_patch(Rectangle(corner, 0.94, 0.9, fill=False, lw=2.4))
        axes.set_yticks(range(workers), [f"worker {w}" for w in range(workers)])
        axes.set_xticks(range(workers), [f"chunk {c}" for c in range(workers)])
        axes.grid(False)
        half = "reduce-scatter" if step < workers else "all-gather"
        share = f"each worker has sent {step / workers:.3g} × the gradients"
        axes.set_title(
            f"Step {step} of {last}, {half}: {share}" if step else "Before the first step"
        )
        axes.set_xlabel("whose gradients are in it; framed: just arrived from the previous worker")
    sent, complete = step * GRADIENTS_MB / workers, int(now.all(axis=2).sum(axis=1).min())
    return figure, (
        f"After {step} of {last} steps each worker has sent {sent:.4g} MB,"
        f" {step / workers:.3g} times the gradients of ResNet-50, and has at least {complete} of"
        f" {workers} chunks complete."
    )


def explore_ring() -> None:
    """Show the ring with controls for the number of workers and the step."""
    import ipywidgets

    workers, step = ipywidgets.IntSlider(4, 2, 8), ipywidgets.IntSlider(3, 0, 6)
    ipywidgets.dlink((workers, "value"), (step, "max"), lambda count: 2 * (count - 1))
    output.explore(
        draw_ring,
        alt=lambda workers, step: f"Chunks of {workers} workers. {draw_ring(workers, step)[1]}",
        workers=workers,
        step=step,
    )


# --- the learner's ring ---------------------------------------------------------------------------

RINGS = ({"size": 3, "elements": 6}, {"size": 3, "elements": 8}, {"size": 2, "elements": 4})
NEIGHBOURS = (
    "In every step, each rank sends to (rank + 1) % size, receives from (rank - 1) % size, starts"
    " both, and waits for both. It sends the chunk that the next rank receives: in step s,"
    " chunk (rank - s) % size. Chunks differ in length, so a different chunk can hang, too."
)


def ring_all_reduce(gradients: Any) -> None:
    """Replace a vector by the sum over all ranks."""
    import torch
    from torch import distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = gradients.tensor_split(size)
    for step in range(2 * (size - 1)):
        mine, next_one = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        received = torch.empty_like(next_one)
        sending = dist.isend(mine, (rank + 1) % size)
        receiving = dist.irecv(received, (rank - 1) % size)
        sending.wait()
        receiving.wait()
        if step < size - 1:
            next_one += received
        else:
            next_one.copy_(received)


def check_ring(answer: Callable[[Any], Any], file: str) -> None:
    """Write a learner's ring to `file` if it is right, else the finished one; print what is wrong.

    It runs on 3 and on 2 ranks and is compared with `dist.all_reduce`.
    """
    judge = functools.partial(judge_ring, answer)
    chosen = choose(answer.__name__, answer, ring_all_reduce, judge, show=True)
    write_chosen(file, chosen, ring_all_reduce, answer.__name__)
    print(f"The version for the next cells is in {file}.")


def judge_ring(answer: Callable[[Any], Any]) -> str:
    if unanswered(answer) and not answer.__code__.co_names:  # it calls nothing
        raise NotImplementedError
    cases = process_ranks.together(answer, "all_reduced", RINGS)
    for case, ranks in zip(RINGS, cases, strict=True):
        if process_ranks.STUCK in ranks:
            wrong("The ranks wait for each other forever.", NEIGHBOURS)
        judge_sums(process_ranks.results_of(ranks), **case)
    return "On 2 and 3 ranks, the sums are those of dist.all_reduce."


def judge_sums(ranks: Sequence[dict[str, Any]], size: int, elements: int) -> None:
    """Raise Wrong unless every rank of a case has the sums, and sent as much as a ring."""
    sums = np.array([rank["sums"] for rank in ranks])
    right = np.array([rank["right"] for rank in ranks])
    sent, least = max(rank["sent"] for rank in ranks), 2 * (size - 1) / size * elements
    if np.array_equal(sums, right):
        refuse((not sent, "The sums are right, but nothing was sent by `dist.isend`.",
                "Call dist.isend and dist.irecv, as the task asks."))  # fmt: skip
        if not 0.99 * least < sent < 1.25 * least:
            wrong(
                f"The sums are right, but with `isend` a rank sends {sent / elements:.2g} times its"
                " gradients.",
                f"A ring sends one chunk per step: {least / elements:.2g} times on {size} ranks.",
            )
        return
    before = 16.0 ** np.arange(size)[:, None] * np.ones(elements)
    refuse((np.array_equal(sums, before) and not sent,
            "The gradients stay as they are, and nothing is sent.",
            "Send and receive chunks with dist.isend and dist.irecv."))  # fmt: skip
    digits = np.isfinite(sums).all() and (sums >= 0).all() and (sums == np.floor(sums)).all()
    # how often the gradient of each rank is in an element: (holder, element, whose)
    counts = sums[..., None].astype(np.int64) >> (4 * np.arange(size)) & 15 if digits else None
    complete = (sums == right).any(axis=1).all()  # each rank has a finished chunk
    rank, element = np.argwhere(sums != right)[0]
    lacks = 0 if counts is None else counts[rank, element].argmin()
    refuse(
        (np.array_equal(sums, before), "The ranks send, but `gradients` has not changed.",
         "Write into it: `chunk += received` changes the tensor; `chunk = chunk + received` makes"
         " a new one."),
        (np.allclose(sums, right / size), "The result is the mean; an all-reduce returns the sum.",
         "Do not divide."),
        ((np.nonzero(sums != right)[1] >= elements // size * size).all(),
         f"Wrong on {size} ranks with {elements} elements, which equal chunks do not cover.",
         "`tensor_split` makes chunks that differ by one element; receive into a tensor of the"
         " chunk's own size."),
        (counts is not None and (counts.sum(axis=2) == 1).all(),
         "Every element holds the gradient of one rank only.",
         "In the first n - 1 steps, add what arrives in place: `chunk += received`, not"
         " `chunk = chunk + received`, which makes a new tensor. Only after that, replace."),
        (counts is not None and ((counts > 0).sum(axis=2) == 1).all(),
         "A chunk was overwritten before it was added: `irecv` writes into the tensor it is given.",
         "Receive into a new one, `torch.empty_like(chunk)`, and add that to the chunk."),
        (counts is not None and complete and counts.max() > 1,
         "Some gradients are in the sum more than once.",
         "After the first n - 1 steps, a chunk that arrives is complete: replace yours, do not"
         " add."),
        (counts is not None and complete,
         "Each rank has one complete chunk, and the others are not complete: the all-gather is"
         " missing, or ends too early.",
         "Take n - 1 more steps, in which each rank passes on the complete chunk that it has."),
        (counts is not None and counts.max() == 1,
         f"On rank {rank}, element {element} lacks the gradient of rank {lacks}.",
         "The first n - 1 steps add what arrives, the next n - 1 replace: look at the step in which"
         " your ring begins to replace, and at the numbers of the chunks."),
        (True, f"On rank {rank}, element {element} is {sums[rank, element]:g} instead of"
         f" {right[rank, element]:g} (rank r begins with 16 ** r).",
         "In step s, rank r sends chunk (r - s) % n and receives chunk (r - s - 1) % n. Wait for"
         " both requests before you use what arrived."),
    )  # fmt: skip


# --- the learner's prediction ---------------------------------------------------------------------

# the seconds when buckets are full, those of their messages, those of the pass, and the senders
BUCKETS = (
    ([0.1, 0.4, 0.7], [0.1, 0.25, 0.4], 0.8, 1),  # the sender is free when a bucket is full
    ([0.1, 0.2, 0.3, 0.7], [0.7, 0.6, 0.5, 0.2], 0.8, 1),  # later ones wait for it
    ([0.1, 0.2, 0.3, 0.7], [0.9, 0.2, 0.8, 0.15], 0.8, 2),  # the last message does not end last
    ([0.1, 0.3], [0.1, 0.2], 0.8, 1),  # everything is hidden
)


def after_the_pass(
    full: Sequence[float], takes: Sequence[float], alone: float, senders: int
) -> float:
    """Return how many seconds after the backward pass the last message has arrived."""
    free = [0.0] * senders  # when each sender has sent what it has
    for at, seconds in zip(full, takes, strict=True):
        sender = free.index(min(free))
        free[sender] = max(free[sender], at) + seconds
    return max(0.0, max(free) - alone)


def before_full(full: Any, takes: Any, alone: float, senders: int) -> float:
    return after_the_pass([0.0] * len(takes), takes, alone, senders)


def never_busy(full: Any, takes: Any, alone: float, senders: int) -> float:
    return after_the_pass(full, takes, alone, len(takes))


def arrival(full: Any, takes: Any, alone: float, senders: int) -> float:
    return after_the_pass(full, takes, 0.0, senders)


def not_clamped(full: Any, takes: Any, alone: float, senders: int) -> float:
    return arrival(full, takes, alone, senders) - alone


def one_sender(full: Any, takes: Any, alone: float, senders: int) -> float:
    return after_the_pass(full, takes, alone, 1)


def in_turns(full: Any, takes: Any, alone: float, senders: int) -> float:
    each = [after_the_pass(full[k::senders], takes[k::senders], alone, 1) for k in range(senders)]
    return max(each)


def last_only(full: Any, takes: Any, alone: float, senders: int) -> float:
    free, end = [0.0] * senders, 0.0
    for at, seconds in zip(full, takes, strict=True):
        sender = free.index(min(free))
        free[sender] = end = max(free[sender], at) + seconds
    return max(0.0, end - alone)


def from_last_bucket(full: Any, takes: Any, alone: float, senders: int) -> float:
    return after_the_pass(full, takes, full[-1], senders)


def all_exposed(full: Any, takes: Any, alone: float, senders: int) -> float:
    return sum(takes)


AFTER_MISTAKES: tuple[Mistake, ...] = (
    (before_full, "A message leaves before its bucket is full.",
     "It starts at the later of two times: the bucket is full, and the sender is free."),
    (never_busy, "A message does not wait until its sender is free.",
     "It starts at the later of two times: the bucket is full, and the sender is free."),
    (arrival, "You return when the last message arrives, counted from the start of the pass.",
     "Exposed is only what comes after the pass: subtract `alone`."),
    (from_last_bucket, "You count from the last full bucket.",
     "The pass ends later: subtract `alone`."),
    (not_clamped, "If everything arrives during the pass, you return a negative time.",
     "Then nothing is exposed: return 0."),
    (one_sender, "You use one sender, whatever `senders` is.",
     "Keep one time per sender, and use the sender that is free first."),
    (in_turns, "The senders take turns, busy or not.",
     "The next message leaves with the sender that is free first."),
    (last_only, "You return the end of the last message, or of one sender: another can end later.",
     "Use the latest of all senders: max(free)."),
    (all_exposed, "You count all of the exchange.",
     "What arrives during the pass is hidden: find when the last message arrives."),
)  # fmt: skip


def check_after_the_pass(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a learner's prediction if it is right, else the finished one; print what is wrong."""
    judge = functools.partial(judge_after_the_pass, answer)
    return choose("after_the_pass", answer, after_the_pass, judge, show=True)


def judge_after_the_pass(answer: Callable[..., Any]) -> str:
    if answer(*deepcopy(BUCKETS[0])) is None:
        raise NotImplementedError
    examine(answer, BUCKETS, after_the_pass, AFTER_MISTAKES, one_case=True)
    return "Four passes: hidden, exposed, a busy sender, two senders."

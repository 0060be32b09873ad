"""The checks of what a learner writes in notebook 03, and the finished versions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workshop.checks import process_ranks
from workshop.checks.compare import Mistake, refuse
from workshop.checks.engine import unanswered
from workshop.lessons.choice import choose, choose_by_cases, write_chosen

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
        ended = [rank for rank in ranks if rank != process_ranks.STUCK]
        refuse(("Wait timeout" in str(ended), "A rank waits for one that does not exist.",
                "After the last rank comes rank 0: (rank + 1) % size."))  # fmt: skip
        process_ranks.results_of(ended)  # an error of one rank, for which the others wait
        refuse((process_ranks.STUCK in ranks, "The ranks wait for each other forever.", NEIGHBOURS))
        judge_sums(process_ranks.results_of(ranks), **case)
    return "On 2 and 3 ranks, the sums are those of dist.all_reduce."


def judge_sums(ranks: Sequence[dict[str, Any]], size: int, elements: int) -> None:
    """Raise Wrong unless every rank of a case has the sums, and sent as much as a ring."""
    sums = np.array([rank["sums"] for rank in ranks])
    right = np.array([rank["right"] for rank in ranks])
    sent, least = max(rank["sent"] for rank in ranks), 2 * (size - 1) / size * elements
    off = sums != right
    before = 16.0 ** np.arange(size)[:, None] * np.ones(elements)
    complete = (~off).any(axis=1).all()  # each rank has a finished chunk
    rank, element = np.argwhere(off)[0] if off.any() else (0, 0)
    refuse(
        (np.array_equal(sums, before), "`gradients` has not changed.",
         "Write into it: `chunk += received` changes the tensor; `chunk = chunk + received` makes"
         " a new one."),
        (np.allclose(sums, right / size), "The result is the mean; an all-reduce returns the sum.",
         "Do not divide."),
        (off.any() and (np.nonzero(off)[1] >= elements // size * size).all(),
         f"Wrong on {size} ranks with {elements} elements, which equal chunks do not cover.",
         "`tensor_split` makes chunks that differ by one element; receive into a tensor of the"
         " chunk's own size."),
        (off.any(), f"On rank {rank}, element {element} is {sums[rank, element]:g} instead of"
         f" {right[rank, element]:g}. Rank r begins with 16 ** r: in hexadecimal,"
         f" {hexadecimal(sums[rank, element])} instead of {hexadecimal(right[rank, element])}, so"
         " that each digit counts how often one rank's gradient is in it.",
         "Each rank has one complete chunk: n - 1 more steps pass the complete chunks on, and"
         " replace what a rank has." if complete else
         "In the first n - 1 steps, receive into a new tensor and add that to your chunk, in place;"
         " in the next n - 1, replace. Wait for both requests before you use what arrived."),
        (not 0.99 * least < sent < 1.25 * least, "The sums are right, but with `isend` a rank sends"
         f" {sent / elements:.2g} times its gradients.",
         f"A ring sends one chunk per step: {least / elements:.2g} times on {size} ranks."),
    )  # fmt: skip


def hexadecimal(value: float) -> str:
    return f"{int(value):x}" if np.isfinite(value) else str(value)


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


def never_busy(full: Any, takes: Any, alone: float, senders: int) -> float:
    return after_the_pass(full, takes, alone, len(takes))


def arrival(full: Any, takes: Any, alone: float, senders: int) -> float:
    return after_the_pass(full, takes, 0.0, senders)


def one_sender(full: Any, takes: Any, alone: float, senders: int) -> float:
    return after_the_pass(full, takes, alone, 1)


def last_only(full: Any, takes: Any, alone: float, senders: int) -> float:
    free, end = [0.0] * senders, 0.0
    for at, seconds in zip(full, takes, strict=True):
        sender = free.index(min(free))
        free[sender] = end = max(free[sender], at) + seconds
    return max(0.0, end - alone)


AFTER_MISTAKES: tuple[Mistake, ...] = (
    (never_busy, "A message does not wait until its sender is free.",
     "It starts at the later of two times: the bucket is full, and the sender is free."),
    (arrival, "You return when the last message arrives, counted from the start of the pass.",
     "Exposed is only what comes after the pass: subtract `alone`."),
    (one_sender, "You use one sender, whatever `senders` is.",
     "Keep one time per sender, and use the sender that is free first."),
    (last_only, "You return the end of the last message, or of one sender: another can end later.",
     "Use the latest of all senders: max(free)."),
)  # fmt: skip


def check_after_the_pass(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a learner's prediction if it is right, else the finished one; print what is wrong."""
    return choose_by_cases(
        "after_the_pass", answer, after_the_pass, BUCKETS, AFTER_MISTAKES,
        "Four passes: hidden, exposed, a busy sender, two senders.", show=True,
    )  # fmt: skip

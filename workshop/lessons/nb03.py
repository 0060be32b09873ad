"""The checks of what a learner writes in notebook 03, and the finished versions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workshop.checks import process_ranks
from workshop.checks.compare import Mistake, known, refuse, same
from workshop.lessons.choice import Function, choose, lesson_check, write_chosen

# --- the learner's ring ---------------------------------------------------------------------------

RINGS = ({"size": 3, "elements": 6}, {"size": 3, "elements": 8}, {"size": 2, "elements": 4})
NEIGHBOURS = (
    "In every step, each rank sends to (rank + 1) % size, receives from (rank - 1) % size, starts"
    " both, and waits for both. It sends the chunk that the next rank receives: in step s,"
    " chunk (rank - s) % size. Chunks differ in length, so a different chunk can hang, too."
)


def all_reduce(gradients: Any) -> None:
    """Replace a vector with its sum over all ranks."""
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


def judge_ring(answer: Callable[[Any], Any]) -> str:
    cases = process_ranks.together(answer, "all_reduced", RINGS)
    for case, ranks in zip(RINGS, cases, strict=True):
        ended = [rank for rank in ranks if rank != process_ranks.STUCK]
        refuse(("Wait timeout" in str(ended), "A rank waits for one that does not exist.",
                "After the last rank comes rank 0: (rank + 1) % size."))  # fmt: skip
        refuse(("item assignment" in str(ended), "A tuple of chunks cannot be assigned to.",
                "Write chunks[i].add_(…) and chunks[i].copy_(…), not chunks[i] += … or ="
                " …."))  # fmt: skip
        process_ranks.results_of(ended)  # an error of one rank, for which the others wait
        refuse((process_ranks.STUCK in ranks, "The ranks wait for each other forever.", NEIGHBOURS))
        judge_sums(process_ranks.results_of(ranks), **case)
    return "On 2 and 3 ranks, the sums are those of dist.all_reduce."


def judge_sums(ranks: Sequence[dict[str, Any]], size: int, elements: int) -> None:
    """Raise Wrong unless every rank of a case has the sums, and sent as much as a ring."""
    sums = np.array([rank["sums"] for rank in ranks])
    right = np.array([rank["right"] for rank in ranks])
    sent, least = max(rank["sent"] for rank in ranks), 2 * (size - 1) / size * elements
    waits = not any(rank["pending"] for rank in ranks)
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
        (off.any() and not waits, "You use what arrives before it has arrived.",
         "Call `wait()` on what `isend` and `irecv` return before you touch a tensor."),
        (off.any(), f"On rank {rank}, element {element} is {sums[rank, element]:g} instead of"
         f" {right[rank, element]:g}. Rank r's gradients are 16 ** r, so each hexadecimal digit"
         " counts how often one rank's were added:"
         f" {hexadecimal(sums[rank, element])} instead of {hexadecimal(right[rank, element])}.",
         "Each rank has one complete chunk: n - 1 more steps pass the complete chunks on, and"
         " replace what a rank has." if complete else
         "In the first n - 1 steps, receive into a new tensor and add that, in place, to your chunk"
         " (rank - s - 1) % size; in the next n - 1, replace it. Wait for `irecv` before you use"
         " what arrived."),
        (not 0.99 * least < sent < 1.25 * least, "The sums are right, but with `isend` a rank sends"
         f" {sent / elements:.2g} times its gradients.",
         f"A ring sends one chunk per step: {least / elements:.2g} times on {size} ranks."),
        (not waits, "The sums are right, but you do not wait for `isend`.",
         "Call `wait()` on what it returns, too: until then, the chunk must not change."),
    )  # fmt: skip


def hexadecimal(value: float) -> str:
    return f"{int(value):x}" if np.isfinite(value) else str(value)


# --- the learner's average ------------------------------------------------------------------------

MEANS = (91.0, 91.0, 91.0, 8.5, 8.5)  # of three ranks that begin with 1, 16 and 256, and of two
AVERAGE_MISTAKES: tuple[Mistake, ...] = (  # what those ranks have
    ([1.0, 16.0, 256.0, 1.0, 16.0], "`gradient` has not changed.",
     "Write into it: `gradient /= n` changes the tensor; `gradient = gradient / n` makes a new"
     " one."),
    ([273.0] * 3 + [17.0] * 2, "The result is the sum, not the mean.",
     "Divide in place: gradient /= dist.get_world_size()."),
    ([136.5] * 3 + [8.5] * 2, "You divide by 2, whatever the number of ranks.",
     "Divide by dist.get_world_size()."),
    ([91.0] * 3 + [17 / 3] * 2, "You divide by 3, whatever the number of ranks.",
     "Divide by dist.get_world_size()."),
    ([91.0] * 3 + [8.0] * 2, "You round the mean down.",
     "`//` divides whole numbers: use `/`."),
    ([1 / 3, 16 / 3, 256 / 3, 1 / 2, 8.0], "Each rank divides its own gradient; none is exchanged.",
     "Add them up: dist.all_reduce(gradient)."),
    ([91 / 3] * 3 + [17 / 4] * 2, "You divide twice.",
     "Divide the sum once, by dist.get_world_size()."),
)  # fmt: skip


def average(gradient: Any) -> None:
    """Replace a rank's gradient with its mean over all ranks."""
    from torch import distributed as dist

    dist.all_reduce(gradient)  # the sum over all ranks
    gradient /= dist.get_world_size()


def judge_average(answer: Callable[[Any], Any]) -> str:
    cases = process_ranks.together(answer, "all_reduced", [RINGS[0], RINGS[2]])
    judge_means([rank["sums"] for ranks in cases for rank in process_ranks.results_of(ranks)])
    return "On 2 and 3 ranks, each has the mean."


def judge_means(got: list[list[float]]) -> None:
    """Raise Wrong unless three ranks, then two, have their mean in every element."""
    known([elements[0] for elements in got], AVERAGE_MISTAKES, same)
    off = [next((value for value in elements if not same(value, mean)), mean)
           for elements, mean in zip(got, MEANS, strict=True)]  # fmt: skip
    for begin, found, mean in (("1, 16 and 256", off[:3], 91.0), ("1 and 16", off[3:], 8.5)):
        refuse((not same(found, [mean] * len(found)), f"Ranks that begin with {begin} have"
                f" {', '.join(f'{value:g}' for value in found)} instead of {mean:g}.",
                "Divide the sum of all ranks by dist.get_world_size(), everywhere."))  # fmt: skip


# --- the learner's prediction ---------------------------------------------------------------------

# the seconds when buckets are full, those of their messages, those of the pass, and the senders
BUCKETS = (
    ([0.1, 0.4, 0.7], [0.1, 0.25, 0.4], 0.8, 1),  # the sender is free when a bucket is full
    ([0.1, 0.2, 0.3, 0.7], [0.7, 0.6, 0.5, 0.2], 0.8, 1),  # later ones wait for it
    ([0.1, 0.2, 0.3, 0.7], [0.9, 0.2, 0.8, 0.15], 0.8, 2),  # the last message does not end last
    ([0.1, 0.3], [0.1, 0.2], 0.8, 1),  # everything is hidden
    ([0.3, 0.4, 0.7], [0.6, 0.65, 0.4], 0.8, 2),  # the last message ends last, on two senders
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


def last_only(full: Any, takes: Any, alone: float, senders: int) -> float:
    free, end = [0.0] * senders, 0.0
    for at, seconds in zip(full, takes, strict=True):
        sender = free.index(min(free))
        free[sender] = end = max(free[sender], at) + seconds
    return max(0.0, end - alone)


AFTER_MISTAKES: tuple[Mistake, ...] = (
    (lambda full, takes, alone, senders: after_the_pass(full, takes, alone, len(takes)),
     "A message does not wait until its sender is free.",
     "It starts at the later of two times: the bucket is full, and the sender is free."),
    (lambda full, takes, alone, senders: after_the_pass(full, takes, 0.0, senders),
     "You return when the last message arrives, counted from the start of the pass.",
     "Exposed is only what comes after the pass: subtract `alone`."),
    (lambda full, takes, alone, senders: after_the_pass(full, takes, alone, 1),
     "You use one sender, whatever `senders` is.",
     "Keep one time per sender, and use the sender that is free first."),
    (last_only, "You return the end of the last message, or of one sender: another can end later.",
     "Use the latest of all senders: max(free)."),
    (lambda full, takes, alone, senders: max(
        after_the_pass(full[k::senders], takes[k::senders], alone, 1) for k in range(senders)),
     "The senders take turns, although one of them is free earlier.",
     "Give each message to the sender that is free first."),
    (lambda full, takes, alone, senders: after_the_pass(full, takes, 0.0, senders) - alone,
     "A time before the end of the pass is negative.",
     "If all messages arrive during the pass, nothing is exposed: max(0, …)."),
    (lambda full, *rest: after_the_pass([0.0] * len(full), *rest),
     "Messages leave before their buckets are full.",
     "A message starts at the later of two times: its bucket is full, and a sender is free."),
    (lambda *given: 1000 * after_the_pass(*given), "These are milliseconds.", "Return seconds."),
)  # fmt: skip


def check_and_write(
    finished: Function, judge: Callable[[Function], str], own: Function, file: str
) -> Function:
    name = finished.__name__
    chosen = choose(name, own, finished, functools.partial(judge, own))
    write_chosen(file, chosen, finished, name)
    print(f"The version for the next cells is in {file}.")
    return chosen


check = lesson_check(
    (after_the_pass, BUCKETS, AFTER_MISTAKES),
    all_reduce=functools.partial(check_and_write, all_reduce, judge_ring),
    average=functools.partial(check_and_write, average, judge_average),
)

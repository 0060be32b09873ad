"""Checks of ex03: shards, the common start, sums against means of means, the ring, recipe 1."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from workshop.checks import compare, process_ranks, recipes
from workshop.checks.compare import wrong

# --- ex03.shard -----------------------------------------------------------------------------------

Shard = Callable[[np.ndarray, int, int, int], np.ndarray]
GROUPS = (
    (11, 2, 3),
    (48, 2, 4),
    (50, 3, 4),
    (7, 1, 2),
    (23, 4, 5),
    (40, 8, 2),
    (7, 2, 4),  # too few for a single step
)  # images, ranks, batch


def shard(answer: Shard) -> str:
    for images, size, batch in GROUPS:
        order = np.array(random.Random(images).sample(range(images), images))
        got = [_images(compare.call(answer, order.copy(), r, size, batch)) for r in range(size)]
        got = [g if g.size else g.reshape(0, batch) for g in got]  # np.array([]) has no columns
        steps = images // (size * batch)
        _same_steps(got, images, size, batch, steps)
        right = [
            np.reshape(
                [order[(s * size + r) * batch :][:batch] for s in range(steps)], got[r].shape
            )
            for r in range(size)
        ]
        if np.array_equal(got, right):
            continue
        together = np.concatenate([g.ravel() for g in got])
        if size > 1 and np.array_equal(got, [got[0]] * size):
            wrong("every rank reads the same images.", "Use the rank as the offset within a step.")
        if twice := len(together) - len(np.unique(together)):
            wrong(
                f"{twice} of {len(together)} images are read twice in an epoch.",
                "Step s begins at s · size · batch, and rank r at r · batch behind that; here size"
                f" is {size} and batch {batch}.",
            )
        for other in range(1, size):
            if np.array_equal(got[0], right[other]):
                wrong(f"rank 0 takes what is rank {other}'s.", "Ranks count from 0.")
        if {*np.ravel([g[0] for g in got])} == {*order[: size * batch]}:
            wrong(
                "every image is read once, but within a step the ranks take the images in turn.",
                "Rank r takes the r-th run of `batch` images in a row, so that N ranks see the"
                " batches that one rank would have seen.",
            )
        wrong(
            "every image is read once, but a step of all ranks is no run of the order.",
            "Cut the order into steps first, and each step into ranks: 2 × 16 images are then the"
            " same training as 1 × 32.",
        )
    return f"{len(GROUPS)} groups of 1 to 8 ranks: nothing twice, and equal steps for all."


def _images(found: Any) -> np.ndarray:
    compare.numbers(found, "what comes back")
    array = np.asarray(found)
    if array.size and array.dtype.kind not in "iu":
        wrong(
            f"the numbers of the images are {array.dtype}, which selects nothing.",
            "Keep whole numbers: a new array takes dtype=int.",
        )
    return array


def _same_steps(got: list[np.ndarray], images: int, size: int, batch: int, steps: int) -> None:
    case = f"{images} images, {size} ranks, batch {batch}"
    if len({g.shape[:1] for g in got}) > 1:
        wrong(
            f"the ranks do not take the same number of steps ({case}).",
            "One that takes a step more waits for the others' gradients for ever: drop the rest.",
        )
    for shape in (g.shape for g in got):
        if shape == (steps, batch):
            continue
        if shape == (images // batch, batch):
            wrong(
                f"each rank takes {images // batch} steps ({case}), as many as one rank alone.",
                "A step of all ranks takes size · batch images.",
            )
        if len(shape) == 2 and shape[1] != batch:
            wrong(
                f"a step has {shape[1]} images for each rank ({case}).",
                f"`batch` is what each rank takes in a step: {batch}.",
            )
        wrong(f"the shape is {shape} ({case}).",
              f"Return (steps, batch), one row for a step: here {(steps, batch)}.")  # fmt: skip


# --- ex03.start -----------------------------------------------------------------------------------


def start(answer: Callable[[Any], Any]) -> str:
    sizes = (2, 3)
    cases = process_ranks.together(answer, "alike", [{"size": size} for size in sizes])
    for size, found in zip(sizes, cases, strict=True):
        for rank, tensors in enumerate(process_ranks.understood(found)):
            _like_first(tensors, rank, size)
    return "2 and 3 ranks, weights and running statistics: all have rank 0's."


def _like_first(tensors: dict[str, Any], rank: int, size: int) -> None:
    """Wrong unless all tensors of a rank's model are full of rank 0's values."""
    got = np.array([[np.min(values), np.max(values)] for values in tensors.values()])
    before = np.array([process_ranks.own(number) for number in range(size)])[:, :, None]
    off = ~np.isclose(got, before[0]).all(1)
    if not off.any():
        return
    name = list(tensors)[off.argmax()]
    mistakes = [
        (before.mean(0), "all ranks get the average of their weights.",
         "They are equal then, but an average of random weights is smaller than the initialisation"
         " asks for, and a resumed rank 0 would lose what it has learned."),
        (before.sum(0), "all ranks get the sum of their weights.",
         "Nothing is to be added: dist.broadcast."),
        (before[-1], "the last rank's weights went to all.",
         "Rank 0 is the one that reads checkpoints."),
    ]  # fmt: skip
    if rank and off.all():
        mistakes.insert(0, (before[rank], f"rank {rank} keeps its own weights.",
                            "Each tensor must be overwritten in place."))  # fmt: skip
    elif rank:
        mistakes.insert(0, (before[rank], f"{name} was not sent: rank {rank} keeps its own.",
                            "Send all of model.state_dict(): running statistics belong to the model"
                            " too, and model.parameters() has none of them."))  # fmt: skip
    compare.known(got[off], [(v[off], said, then) for v, said, then in mistakes], np.allclose)
    wrong(f"{name} on rank {rank} of {size} is neither rank 0's nor its own.", "Only send it.")


# --- ex03.sums ------------------------------------------------------------------------------------

VALIDATIONS = (  # of each rank: summed loss, first guesses right, among five right, images
    ((64.0, 24, 30, 32), (16.0, 2, 6, 8)),
    ((30.0, 10, 15, 20), (30.0, 10, 15, 20)),
    ((50.0, 9, 20, 25), (0.0, 0, 0, 0), (8.0, 3, 4, 4)),
    ((2.0, 1, 1, 1),),
)
NO_IMAGES = ((0.0, 0, 0, 0), (0.0, 0, 0, 0))
METRICS = ("loss", "top1", "top5")


def sums(answer: Callable[[Any], Mapping[str, float | None]]) -> str:
    given = [{"size": len(case), "sums": case} for case in (*VALIDATIONS, NO_IMAGES)]
    *found, nothing = process_ranks.together(answer, "metrics", given)
    for case, entries in zip(VALIDATIONS, found, strict=True):
        for rank, values in enumerate(process_ranks.understood(entries)):
            if not set(METRICS) <= set(values):
                wrong("what comes back lacks loss, top1 or top5.", "Return a dictionary of three.")
            if any(values[name] is None for name in METRICS):
                wrong(f"rank {rank} gets None, although there are images.",
                      "Only none at all is None.")  # fmt: skip
            got = np.array([compare.number(values[name], name) for name in METRICS])
            _right_metrics(got, case, rank)
    try:
        empty = process_ranks.understood(nothing)
    except ZeroDivisionError:
        wrong("no images at all make it divide by zero.", "Then each metric is None.")
    if any(values.get(name) is not None for values in empty for name in METRICS):
        wrong(
            "without any image it still gives a number.",
            "Not measured is None: 0 % would look like a result, and NaN like a fault.",
        )
    return f"{len(VALIDATIONS)} validations, with a rank that has no images, and with none at all."


def _right_metrics(got: np.ndarray, case: tuple[tuple[float, ...], ...], rank: int) -> None:
    def means(sums: Sequence[float]) -> np.ndarray:
        loss, top1, top5, images = sums
        return np.array([loss, 100 * top1, 100 * top5]) / (images or np.nan)

    total = np.sum(case, axis=0).tolist()
    right = means(total)
    if np.allclose(got, right):
        return
    compare.known(got, (
        (np.mean([means(one) for one in case if one[3]], axis=0),
         f"this is the mean of the ranks' means: top1 {got[1]:.4g}, where {right[1]:.4g} of 100"
         " images are right.", "Add up over all ranks first, and divide once, by all images."),
        (means(case[rank]), "each rank reports its own images only.",
         "dist.all_reduce adds up over all ranks."),
        (means([*total[:3], case[rank][3]]), "the sum of all is divided by one rank's images.",
         "Sum the numbers of images too."),
        (right / (1, 100, 100), "top1 is a fraction.", "The report has per cent, from 0 to 100."),
    ), np.allclose)  # fmt: skip
    off = int(np.argmin(np.isclose(got, right)))
    wrong(f"{METRICS[off]} is {got[off]:.4g} on rank {rank}.", f"It should be {right[off]:.4g}.")


# --- ex03.ring ------------------------------------------------------------------------------------

WORKERS = (2, 8, 64)


def ring(answer: Any) -> str:
    got = compare.predictions(answer, WORKERS, "workers")
    right = [counted(n) for n in WORKERS]
    close = functools.partial(np.allclose, rtol=0.02, atol=0)
    if close(got, right):
        return "the messages of the algorithm, counted for 2, 8 and 64 workers, agree."
    compare.known(got, (
        (lambda n: (n - 1) / n, "this is half of it: the scatter-reduce.",
         "The finished sums travel around too."),
        (lambda n: n - 1, "this is what it takes where all gradients go to every other worker.",
         "In the ring a message is a chunk, 1/n of the gradients."),
        (lambda n: n, "the sum over all workers is n times as much.",
         "Asked for is what one worker sends."),
        (lambda n: 2 / n, "this is two messages.",
         "A worker sends one in each of 2 (n − 1) steps."),
    ), close, [(n,) for n in WORKERS])  # fmt: skip
    off = next(i for i in range(len(got)) if not close(got[i], right[i]))
    wrong(
        f"with {WORKERS[off]} workers each sends {right[off]:.3g} times the gradients, not"
        f" {got[off]:.3g}.",
        "Count steps, and what a worker sends in each.",
    )


def counted(workers: int) -> float:
    """What worker 0 sends in a ring all-reduce, in sizes of the gradients, chunk by chunk."""
    have = [[{w} for _ in range(workers)] for w in range(workers)]
    sent = 0
    for step in range(2 * (workers - 1)):
        chunk = [(w - step) % workers for w in range(workers)]
        moving = [set(have[w][chunk[w]]) for w in range(workers)]
        for w in range(workers):
            have[(w + 1) % workers][chunk[w]] |= moving[w]
        sent += 1
    assert all(len(part) == workers for row in have for part in row), "all have the sum of all"
    return sent / workers


# --- ex03.recipe ----------------------------------------------------------------------------------


def recipe(answer: Callable[[str, str], Any]) -> str:
    return recipes.horovod(answer)

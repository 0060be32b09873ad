"""Checks of ex03: shards, the common start, sums against means of means, the ring, recipe 1."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
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
        steps = images // (size * batch)
        got = [_images(compare.call(answer, order.copy(), r, size, batch)) for r in range(size)]
        _same_steps(got, images, size, batch, steps)
        _distinct(got, size, batch)
        right = [
            [[order[(s * size + r) * batch + b] for b in range(batch)] for s in range(steps)]
            for r in range(size)
        ]
        if all(np.array_equal(g, np.reshape(r, g.shape)) for g, r in zip(got, right, strict=True)):
            continue
        for other in range(1, size):
            if np.array_equal(got[0], right[other]):
                wrong(f"rank 0 takes what is rank {other}'s.", "Ranks count from 0.")
        if steps and set(map(int, np.concatenate([g[0] for g in got]))) == set(
            map(int, order[: size * batch])
        ):
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
    shapes = [g.shape for g in got]
    if len({shape[0] if shape else 0 for shape in shapes}) > 1:
        wrong(
            f"the ranks do not take the same number of steps ({case}).",
            "One that takes a step more waits for the others' gradients for ever: drop the rest.",
        )
    if set(shapes) == {(steps, batch)}:
        return
    shapes.sort(key=lambda shape: shape == (steps, batch))  # a wrong one first
    if shapes[0] == (steps * batch,):
        wrong(f"the shape is {shapes[0]} ({case}).", "Return (steps, batch): one row for a step.")
    if size > 1 and shapes[0] == (images // batch, batch):
        wrong(
            f"each rank takes {images // batch} steps ({case}), as many as one rank alone.",
            "A step of all ranks takes size · batch images.",
        )
    if len(shapes[0]) == 2 and shapes[0][1] != batch:
        wrong(
            f"a step has {shapes[0][1]} images for each rank ({case}).",
            f"`batch` is what each rank takes in a step: {batch}.",
        )
    wrong(f"the shape is {shapes[0]} ({case}).", f"It should be {(steps, batch)}.")


def _distinct(got: list[np.ndarray], size: int, batch: int) -> None:
    if size == 1 or not got[0].size:
        return
    if all(np.array_equal(g, got[0]) for g in got):
        wrong("every rank reads the same images.", "Use the rank as the offset within a step.")
    together = np.concatenate([g.ravel() for g in got])
    if len(np.unique(together)) < len(together):
        twice = len(together) - len(np.unique(together))
        wrong(
            f"{twice} of {len(together)} images are read twice in an epoch.",
            f"Step s begins at s · size · batch, and rank r at r · batch behind that; here size is"
            f" {size} and batch {batch}.",
        )


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
    got = {name: np.asarray(values, np.float64) for name, values in tensors.items()}
    own = [dict(zip(got, process_ranks.own(rank), strict=True)) for rank in range(size)]

    def all_are(values: Mapping[str, float], names: Iterable[str] = tuple(got)) -> bool:
        return all(np.allclose(got[name], values[name]) for name in names)

    off = [name for name in got if not np.allclose(got[name], own[0][name])]
    if not off:
        return
    if rank and all_are(own[rank]):
        wrong(f"rank {rank} keeps its own weights.", "Each tensor must be overwritten in place.")
    if rank and all_are(own[rank], off):
        wrong(
            f"{off[0]} was not sent: rank {rank} keeps its own.",
            "Send all of model.state_dict(): running statistics belong to the model too, and"
            " model.parameters() has none of them.",
        )
    if all_are({name: sum(values[name] for values in own) / size for name in off}, off):
        wrong(
            "all ranks get the average of their weights.",
            "They are equal then, but an average of random weights is smaller than the"
            " initialisation asks for, and a resumed rank 0 would lose what it has learned.",
        )
    if all_are({name: sum(values[name] for values in own) for name in off}, off):
        wrong("all ranks get the sum of their weights.", "Nothing is to be added: dist.broadcast.")
    if all_are(own[-1], off):
        wrong("the last rank's weights went to all.", "Rank 0 is the one that reads checkpoints.")
    wrong(f"{off[0]} on rank {rank} of {size} is neither rank 0's nor its own.", "Only send it.")


# --- ex03.sums ------------------------------------------------------------------------------------

VALIDATIONS = (  # of each rank: summed loss, first guesses right, among five right, images
    ((64.0, 24, 30, 32), (16.0, 2, 6, 8)),
    ((30.0, 10, 15, 20), (30.0, 10, 15, 20)),
    ((50.0, 9, 20, 25), (0.0, 0, 0, 0), (8.0, 3, 4, 4)),
    ((2.0, 1, 1, 1),),
)


NO_IMAGES = ((0.0, 0, 0, 0), (0.0, 0, 0, 0))


def sums(answer: Callable[[Any], Mapping[str, float | None]]) -> str:
    cases = (*VALIDATIONS, NO_IMAGES)
    given = [{"size": len(case), "sums": case} for case in cases]
    *found, nothing = process_ranks.together(answer, "metrics", given)
    for case, entries in zip(VALIDATIONS, found, strict=True):
        for rank, values in enumerate(process_ranks.understood(entries)):
            if not {"loss", "top1", "top5"} <= set(values):
                wrong("what comes back lacks loss, top1 or top5.", "Return a dictionary of three.")
            _right_metrics(values, case, rank)
    try:
        got = process_ranks.understood(nothing)
    except ZeroDivisionError:
        wrong("no images at all make it divide by zero.", "Then each metric is None.")
    if any(values[name] is not None for values in got for name in ("loss", "top1", "top5")):
        wrong(
            "without any image it still gives a number.",
            "Not measured is None: 0 % would look like a result, and NaN like a fault.",
        )
    return f"{len(VALIDATIONS)} validations, with a rank that has no images, and with none at all."


def _right_metrics(
    values: Mapping[str, float | None], case: tuple[tuple[float, ...], ...], rank: int
) -> None:
    loss, top1, top5, images = (sum(column) for column in zip(*case, strict=True))
    right = {"loss": loss / images, "top1": 100 * top1 / images, "top5": 100 * top5 / images}
    got = {name: values[name] for name in right}
    if None in got.values():
        wrong(f"rank {rank} gets None, although there are images.", "Only none at all is None.")
    if all(one[3] for one in case):  # else NaN may come of a rank without images
        number = {name: compare.number(value, name) for name, value in got.items()}
    else:
        number = {name: float(value or 0) for name, value in got.items()}
    if all(np.isclose(number[name], right[name]) for name in right):
        return

    def means(one: tuple[float, ...]) -> list[float]:
        n = one[3] or np.nan
        return [one[0] / n, 100 * one[1] / n, 100 * one[2] / n]

    values_ = list(number.values())
    with_images = [means(one) for one in case if one[3]]
    zeros = [means(one) if one[3] else [0.0, 0.0, 0.0] for one in case]
    candidates = (np.mean(with_images, axis=0), np.mean(zeros, axis=0), np.full(3, np.nan))
    if any(np.allclose(values_, c, equal_nan=True) for c in candidates):
        wrong(
            f"this is the mean of the ranks' means: top1 {number['top1']:.4g}, where "
            f"{right['top1']:.4g} of 100 images are right.",
            "Add up over all ranks first, and divide once, by all images.",
        )
    if np.allclose(values_, means(case[rank]), equal_nan=True):
        wrong("each rank reports its own images only.", "dist.all_reduce adds up over all ranks.")
    own = case[rank][3] or np.nan
    if np.allclose(values_, [loss / own, 100 * top1 / own, 100 * top5 / own], equal_nan=True):
        wrong("the sum of all is divided by one rank's images.", "Sum the numbers of images too.")
    if np.isclose(number["loss"], right["loss"]) and np.isclose(
        100 * number["top1"], right["top1"]
    ):
        wrong("top1 is a fraction.", "The report has per cent, from 0 to 100.")
    if np.isclose(number["loss"], loss):
        wrong("the loss is a sum.", "Divide it by the number of all images.")
    name = next(name for name in right if not np.isclose(number[name], right[name]))
    wrong(f"{name} is {number[name]:.4g} on rank {rank}.", f"It should be {right[name]:.4g}.")


# --- ex03.ring ------------------------------------------------------------------------------------

WORKERS = (2, 8, 64)


def ring(answer: Any) -> str:
    got = compare.by_number(answer, "{2: …, 8: …, 64: …}", "a number of workers")
    if missing := [n for n in WORKERS if n not in got]:
        wrong(f"there is no prediction for {missing[0]} workers.", f"Give one for each: {WORKERS}.")
    right = {n: counted(n) for n in WORKERS}
    if all(abs(got[n] - right[n]) <= 0.02 * right[n] for n in WORKERS):
        return "the messages of the algorithm, counted for 2, 8 and 64 workers, agree."

    def said(formula: Callable[[int], float]) -> bool:
        return all(abs(got[n] - formula(n)) <= 0.02 * formula(n) for n in WORKERS)

    if said(lambda n: (n - 1) / n):
        wrong("this is half of it: the scatter-reduce.", "The finished sums travel around too.")
    if said(lambda n: n - 1) or said(lambda n: 2 * (n - 1)):
        wrong(
            "this is what it takes where all gradients go to every other worker.",
            "In the ring a message is a chunk, 1/n of the gradients.",
        )
    if said(lambda n: n):
        wrong("the sum over all workers is n times as much.", "Asked for is what one worker sends.")
    if said(lambda n: 2 / n):
        wrong("this is two messages.", "A worker sends one in each of 2 (n − 1) steps.")
    off = next(n for n in WORKERS if abs(got[n] - right[n]) > 0.02 * right[n])
    wrong(
        f"with {off} workers each sends {right[off]:.3g} times the gradients, not {got[off]:.3g}.",
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

"""Checks of ex05: a DALI graph, the bottleneck of a chain, and a validation that counts every
picture once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workshop.checks import compare
from workshop.checks import ex05_graph as seen
from workshop.checks.compare import wrong

# --- ex05.graph -----------------------------------------------------------------------------------

RANKS, BATCH, EPOCHS = 2, 8, 10
SMALLEST, DALI_SMALLEST = 0.05, 0.08  # the recipe's and DALI's own smallest crop


def graph(answer: seen.Graph) -> str:
    with seen.pictures() as files:
        labels = [7 * number % 11 for number in range(len(files))]
        steps = len(files) // (RANKS * BATCH)
        epoch = [seen.run(answer, files, labels, r, RANKS, BATCH, steps) for r in range(RANKS)]
        read = []
        for pixels, given in epoch:
            _right_form(pixels)
            _right_numbers(pixels)
            read.append(seen.numbers(pixels).tolist())
            if given.tolist() != [labels[number] for number in read[-1]]:
                wrong("a picture has come with another one's label.",
                      "Return the label that the reader gives beside the picture.")  # fmt: skip
        if twice := set(read[0]) & set(read[1]):
            wrong(
                f"in one epoch {len(twice)} of {len(read[0])} pictures come on both ranks.",
                "Pass shard_id=rank and num_shards=size to the reader.",
            )
        if all(numbers == sorted(numbers) for numbers in read):
            wrong("the pictures come in the order of the files.", "Pass random_shuffle=True.")
        many, _ = seen.run(answer, files, labels, 0, 1, len(files), EPOCHS)
        _mirrored(many)
        _cropped(many)
    return (
        f"{len(files)} pictures on 1 and 2 ranks: shared out, shuffled, cropped as the recipe says."
    )


def _right_form(pixels: np.ndarray) -> None:
    side = seen.SIDE
    if pixels.shape[1:] == (side, side, 3):
        wrong("a picture is (64, 64, 3): the colours of a pixel lie together.",
              'A plane per colour is output_layout="CHW".')  # fmt: skip
    if pixels.shape[1:] != (3, side, side):
        wrong(f"a picture is {pixels.shape[1:]}.", f"It should be (3, {side}, {side}).")
    if pixels.dtype != np.float32:
        wrong(f"the pictures are {pixels.dtype}.", "Ask for dtype=types.FLOAT, which is float32.")
    compare.numbers(pixels, "the pictures")


def _right_numbers(pixels: np.ndarray) -> None:
    """Undo the normalisation, as it was asked for and as it is often done wrong."""
    mean, std = (np.reshape(values, (3, 1, 1)) for values in (seen.MEAN, seen.STD))
    ways = (
        (lambda x: 255 * (x * std + mean), "", ""),
        (lambda x: x * std + mean, "mean and std are on the scale from 0 to 1, and the pixels "
         "reach from 0 to 255.", "Multiply both by 255."),
        (lambda x: x * std + 255 * mean, "std is on the scale from 0 to 1, and the pixels reach "
         "from 0 to 255.", "Multiply std by 255 too."),
        (lambda x: 255 * x * std + mean, "mean is on the scale from 0 to 1, and the pixels reach "
         "from 0 to 255.", "Multiply mean by 255 too."),
        (lambda x: x + 255 * mean, "the pictures are not divided by std.", "Pass std, times 255."),
        (lambda x: 255 * x * std, "the mean is not subtracted.", "Pass mean, times 255."),
        (lambda x: x, "the pictures reach from 0 to 255: nothing is normalised.",
         "Pass mean and std, both times 255."),
        (lambda x: 255 * (x * std[::-1] + mean[::-1]), "mean and std stand in the order of blue, "
         "green, red.", "Red comes first: 0.485 and 0.229."),
        (lambda x: 255 * x, "the pictures reach from 0 to 1.", "Pass mean and std, times 255."),
    )  # fmt: skip
    for undo, what, remedy in ways:
        if seen.possible(undo(pixels.astype(np.float64))):
            if what:
                wrong(what, remedy)
            return
    wrong(
        f"the numbers reach from {pixels.min():.3g} to {pixels.max():.3g}.",
        "Normalised pictures lie around 0: (pixel − 255 · mean) / (255 · std).",
    )


def _mirrored(pixels: np.ndarray) -> None:
    share = (seen.crops(pixels)[0] < 0).mean()
    if share in (0, 1):
        wrong(
            f"{'every' if share else 'no'} picture is mirrored.",
            "A number that Python draws is drawn once: take fn.random.coin_flip().",
        )
    if abs(share - 0.5) > 0.1:
        wrong(f"{100 * share:.0f} % are mirrored.", "It should be half of them.")


def _cropped(pixels: np.ndarray) -> None:
    width, height = (np.abs(values) for values in seen.crops(pixels))
    area, aspect = width * height / (seen.WIDTH * seen.HEIGHT), width / height
    if area.min() > 0.97:
        wrong(
            "every picture is whole: nothing is cropped, or random_area is in per cent.",
            "image_random_crop decodes a part; random_area=[0.05, 1.0] are shares.",
        )
    smallest, largest = area.min(), area.max()
    if abs(smallest - DALI_SMALLEST) < 0.006:
        wrong(
            f"of {len(area)} crops none has less than 8 % of its picture: that is DALI's own area.",
            "The recipe's is random_area=[0.05, 1.0].",
        )
    if smallest < SMALLEST - 0.01 or smallest > SMALLEST + 0.02 or largest < 0.9:
        wrong(
            f"the crops have {100 * smallest:.0f} to {100 * largest:.0f} % of their pictures.",
            "It should be 5 to 100 %: random_area=[0.05, 1.0].",
        )
    if aspect.min() < 0.75 * 0.95 or aspect.max() > 1.05 / 0.75 or aspect.std() < 0.02:
        wrong(
            f"width over height of a crop is {aspect.min():.2f} to {aspect.max():.2f}.",
            "random_aspect_ratio=[3 / 4, 4 / 3] is asked for.",
        )


# --- ex05.bottleneck ------------------------------------------------------------------------------

CORES, DECODE_MS, REST_MS, DEVICE = 4, 3.2, 0.8, 1442.6
QUESTIONS = ("in turn", "overlapped", "cores", "half the decoding")


def chain() -> dict[str, float]:
    """The answers, worked out from seconds of work on each picture."""
    picture = (DECODE_MS + REST_MS) / 1000
    loader = CORES / picture
    return {
        "in turn": 1 / (picture / CORES + 1 / DEVICE),
        "overlapped": min(loader, DEVICE),
        "cores": next(n for n in range(1, 100) if n / picture >= DEVICE),
        "half the decoding": min(CORES / ((DECODE_MS / 2 + REST_MS) / 1000), DEVICE),
    }


MISTAKES = {  # by question: a value, what it is, and what to do
    "in turn": (
        (1000, "1,000 is the loader alone.", "The device's time comes on top: add up times."),
        (1221.3, "1,221 is the mean of the two rates.", "Rates do not average: times add up."),
        (1181.2, "1,181 is twice as much as it is: the harmonic mean.",
         "A picture needs both times, one behind the other."),
    ),
    "overlapped": (
        (590.6, "591 is what comes when loader and device wait for each other.",
         "With a queue between them both work at once: the slower one decides."),
        (1442.6, "the device cannot take what nobody has made.", "The slower of the two decides."),
        (2442.6, "the two rates are added.", "Every picture has to pass both."),
    ),
    "cores": (
        (5, "5 cores make 1,250 pictures a second.", "That is below 1,442.6: round up."),
        (5.77, "there is no such number of cores.", "Round up to a whole one."),
    ),
    "half the decoding": (
        (2000, "2,000 would be half of all the work of the loader.",
         "0.8 ms stay as they are; and what does the device take?"),
        (1666.7, "1,667 is what the loader makes now.", "The bottleneck has moved: look at the "
         "device."),
    ),
}  # fmt: skip


def bottleneck(answer: Any) -> str:
    given, right = compare.dictionary(answer, '{"in turn": …, "overlapped": …, …}'), chain()
    if missing := [name for name in QUESTIONS if name not in given]:
        wrong(f"there is no answer for {missing[0]!r}.", f"Give one for each: {QUESTIONS}.")
    for name in QUESTIONS:
        value = compare.number(given[name], repr(name))
        tolerance = 0.0 if name == "cores" else 0.01 * right[name]
        if abs(value - right[name]) <= tolerance:
            continue
        mistakes = [(known, f"{name}: {what}", remedy) for known, what, remedy in MISTAKES[name]]
        compare.known(value, mistakes, functools.partial(math.isclose, rel_tol=0.005))
        which = "more" if value > right[name] else "less"
        wrong(f"{name}: {value:g} is {which} than it is.", "Write down milliseconds per picture.")
    return (
        "in turn times add up; overlapped the slower one decides, until it is not the slower one."
    )


# --- ex05.exact -----------------------------------------------------------------------------------

Counts = Callable[[int, int, int, int], Sequence[int]]
VALIDATIONS = (  # pictures, ranks, batch
    (27, 2, 8), (20, 1, 8), (32, 2, 8), (33, 4, 4), (17, 2, 8), (9, 4, 2), (7, 3, 3),
)  # fmt: skip


def share(images: int, rank: int, size: int) -> int:
    """How many pictures DALI gives to a rank: those from rank · N // size on."""
    return len(range(images * rank // size, images * (rank + 1) // size))


def valid_rows(images: int, size: int, batch: int) -> list[list[int]]:
    """What the batches of each rank hold of pictures of its own, counted row by row."""
    shares = [share(images, rank, size) for rank in range(size)]
    steps = math.ceil(max(shares) / batch)
    rows = [[row < n for row in range(steps * batch)] for n in shares]
    return [[sum(r[s * batch : (s + 1) * batch]) for s in range(steps)] for r in rows]


def exact(answer: Counts) -> str:
    for images, size, batch in VALIDATIONS:
        case = f"{images} pictures, {size} rank(s), batch {batch}"
        got = [_rows(compare.call(answer, images, rank, size, batch)) for rank in range(size)]
        right = valid_rows(images, size, batch)
        if got == right:
            continue
        lengths, steps = [len(rows) for rows in got], len(right[0])
        if len(set(lengths)) > 1:
            wrong(
                f"the ranks make {', '.join(map(str, lengths))} batches ({case}).",
                "All ranks make as many as the one with the most pictures; what is missing counts"
                " 0.",
            )
        if lengths[0] < steps:
            wrong(
                f"{lengths[0]} batches a rank ({case}): the pictures at the end are left out.",
                "Round up: a batch that is not full is filled up, and its own rows count.",
            )
        if lengths[0] > steps:
            wrong(f"{lengths[0]} batches a rank ({case}).", f"It should be {steps}.")
        total = sum(map(sum, got))
        if total == size * steps * batch:
            wrong(
                f"every row counts ({case}), {total} in all.",
                "The rows that fill the last batch up are pictures that were there already.",
            )
        if total != images:
            which = "left out" if total < images else "counted twice"
            wrong(
                f"{total} rows count ({case}): {abs(total - images)} picture(s) are {which}.",
                "A rank has those from rank · images // size to (rank + 1) · images // size.",
            )
        rank = next(r for r in range(size) if got[r] != right[r])
        wrong(f"rank {rank} counts {got[rank]} rows ({case}).", f"It should be {right[rank]}.")
    return f"{len(VALIDATIONS)} validations, as DALI's reader shares them out: every picture once."


def _rows(found: Any) -> list[int]:
    if not hasattr(found, "__iter__"):
        wrong(f"what comes back is of type {type(found).__name__}.", "Return a list: [8, 5].")
    return [compare.whole(n, "a number of rows") for n in found]

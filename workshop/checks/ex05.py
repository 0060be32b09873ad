"""Checks of ex05: a DALI graph, the bottleneck of a chain, a validation that is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workshop.checks import compare, ex05_graph
from workshop.checks.compare import refuse, wrong

# --- ex05.graph -----------------------------------------------------------------------------------

RANKS, BATCH, EPOCHS = 2, 8, 10
SMALLEST, DALI_SMALLEST = 0.05, 0.08  # the recipe's and DALI's own smallest crop
SIDE = ex05_graph.SIDE


def graph(answer: ex05_graph.Graph) -> str:
    """Check what comes out of a graph, on two ranks and on one."""
    with ex05_graph.files_of_images() as files:
        labels = [7 * number % 11 for number in range(len(files))]
        steps = len(files) // (RANKS * BATCH)
        read = []
        for rank in range(RANKS):
            pixels, given = ex05_graph.run(answer, files, labels, rank, RANKS, BATCH, steps)
            _right_form(pixels)
            _right_pixels(pixels)
            read.append(ex05_graph.numbers(pixels).tolist())
            if given.tolist() != [labels[number] for number in read[-1]]:
                wrong("an image came with the label of a different one.",
                      "Return the label that the reader returns with the image.")  # fmt: skip
        twice = len(set(read[0]) & set(read[1]))
        refuse(
            (twice, f"in one epoch {twice} of {len(read[0])} images come on both ranks.",
             "Pass shard_id=rank and num_shards=size to the reader."),
            (all(numbers == sorted(numbers) for numbers in read),
             "the images come in the order of the files.", "Pass random_shuffle=True."),
        )  # fmt: skip
        many, _ = ex05_graph.run(answer, files, labels, 0, 1, len(files), EPOCHS)
        _mirrored_and_cropped(many)
    return f"{len(files)} images on 1 and 2 ranks: sharded, shuffled, and cropped as in the recipe."


def _right_form(pixels: np.ndarray) -> None:
    refuse(
        (pixels.shape[1:] == (SIDE, SIDE, 3),
         f"an image is {(SIDE, SIDE, 3)}: the colours of a pixel are next to each other.",
         'For a plane per colour, pass output_layout="CHW".'),
        (pixels.shape[1:] != (3, SIDE, SIDE), f"an image is {pixels.shape[1:]}.",
         f"It should be (3, {SIDE}, {SIDE})."),
        (pixels.dtype != np.float32, f"the images are {pixels.dtype}.",
         "Pass dtype=types.FLOAT, which is float32."),
    )  # fmt: skip
    compare.numbers(pixels, "the images")


def _right_pixels(pixels: np.ndarray) -> None:
    """Undo the normalisation, correctly and in the usual wrong ways."""
    mean, std, possible = ex05_graph.MEAN, ex05_graph.STD, ex05_graph.possible
    mistakes = (  # the levels if this is what was done
        (pixels * std + mean, "mean and std are on the scale from 0 to 1, but the pixels range from"
         " 0 to 255.", "Multiply both by 255."),
        (pixels + 255 * mean, "the images are not divided by std.", "Pass std, times 255."),
        (255 * pixels * std, "the mean is not subtracted.", "Pass mean, times 255."),
        (pixels, "the images range from 0 to 255: nothing is normalised.",
         "Pass mean and std, both times 255."),
    )  # fmt: skip
    if not possible(ex05_graph.original(pixels)):
        refuse(*((possible(levels), what, remedy) for levels, what, remedy in mistakes))
        wrong(
            f"the numbers range from {pixels.min():.3g} to {pixels.max():.3g}.",
            "Normalised images are around 0: (pixel − 255 · mean) / (255 · std).",
        )


def _mirrored_and_cropped(pixels: np.ndarray) -> None:
    widths, heights = ex05_graph.crops(pixels)
    share, width, height = (widths < 0).mean(), np.abs(widths), np.abs(heights)
    area, aspect = width * height / (ex05_graph.WIDTH * ex05_graph.HEIGHT), width / height
    smallest, largest = area.min(), area.max()
    refuse(
        (abs(share - 0.5) > 0.1, f"{100 * share:.0f}% of the images are mirrored.",
         "Pass fn.random.coin_flip(), which draws once per image; a Python number is drawn only"
         " once."),
        (smallest > 0.97,
         "every image is whole: nothing is cropped, or random_area is in percent.",
         "Use image_random_crop; random_area=[0.05, 1.0] are fractions."),
        (abs(smallest - DALI_SMALLEST) < 0.006, f"none of {len(area)} crops has less than 8% of"
         " its image: that is DALI's default.", "The recipe's is random_area=[0.05, 1.0]."),
        (abs(smallest - SMALLEST - 0.005) > 0.015 or largest < 0.9,
         f"the crops cover {100 * smallest:.0f} to {100 * largest:.0f}% of their images.",
         "It should be 5 to 100%: random_area=[0.05, 1.0]."),
        (aspect.min() < 0.75 * 0.95 or aspect.max() > 1.05 / 0.75 or aspect.std() < 0.02,
         f"width over height of a crop is {aspect.min():.2f} to {aspect.max():.2f}.",
         "Pass random_aspect_ratio=[3 / 4, 4 / 3]."),
    )  # fmt: skip


# --- ex05.bottleneck ------------------------------------------------------------------------------

CORES, DECODE_MS, REST_MS, DEVICE = 4, 3.2, 0.8, 1442.6
RIGHT = {  # from seconds of work on each image
    "in turn": 1 / ((DECODE_MS + REST_MS) / 1000 / CORES + 1 / DEVICE),
    "overlapped": min(1000 * CORES / (DECODE_MS + REST_MS), DEVICE),
    "cores": math.ceil(DEVICE * (DECODE_MS + REST_MS) / 1000),
    "half the decoding": min(1000 * CORES / (DECODE_MS / 2 + REST_MS), DEVICE),
}
BOTTLENECK_MISTAKES: tuple[compare.Mistake, ...] = (
    ({"in turn": 1000}, "in turn: 1,000 is the loader alone.", "Add the device's time per image."),
    ({"in turn": 1221.3}, "in turn: 1,221 is the mean of the two rates.",
     "Add up times: rates cannot be averaged."),
    ({"overlapped": 590.6}, "overlapped: 591 is the rate if loader and device wait for each other.",
     "Take the slower one: with a queue between them both work at once."),
    ({"overlapped": 1442.6}, "overlapped: the device cannot take images that are not there yet.",
     "Take the slower of the two."),
    ({"cores": 5}, "cores: 5 make 1,250 images a second, which is below 1,442.6.", "Round up."),
    ({"half the decoding": 2000}, "half the decoding: 2,000 would halve all of the loader's"
     " work.", "Keep the other 0.8 ms; and look at what the device takes."),
    ({"half the decoding": 1666.7}, "half the decoding: 1,667 is the rate of the loader.",
     "Look at the device: the bottleneck has moved."),
)  # fmt: skip


def bottleneck(answer: Any) -> str:
    compare.predicted(answer, RIGHT, BOTTLENECK_MISTAKES, "Write down milliseconds per image.")
    return "in turn, times add up; overlapped, the slower one decides."


# --- ex05.exact -----------------------------------------------------------------------------------

VALIDATIONS = (  # images, ranks, batch
    (27, 2, 8), (20, 1, 8), (32, 2, 8), (33, 4, 4), (17, 2, 8), (9, 4, 2), (7, 3, 3),
)  # fmt: skip


def exact(answer: Callable[[int, int, int, int], Sequence[int]]) -> str:
    cases = [(n, rank, size, batch) for n, size, batch in VALIDATIONS for rank in range(size)]
    compare.examine(answer, cases, valid_rows, EXACT_MISTAKES, one_case=True)
    return f"{len(VALIDATIONS)} validations, sharded as DALI does: every image once."


def own(images: int, rank: int, size: int) -> int:
    """Return how many images a rank has: DALI's reader begins at rank · images // size."""
    return len(range(images * rank // size, images * (rank + 1) // size))


def most(images: int, size: int) -> int:
    """Return how many images the rank with the most has."""
    return max(own(images, rank, size) for rank in range(size))


def valid_rows(
    images: int, rank: int, size: int, batch: int, mine: int | None = None, steps: int | None = None
) -> list[int]:
    """Return how many rows of each of a rank's batches count.

    A mistake has a different number of the rank's images, `mine`, or of its batches, `steps`.
    """
    mine = own(images, rank, size) if mine is None else mine
    steps = math.ceil(most(images, size) / batch) if steps is None else steps
    counts: np.ndarray = (np.arange(steps * batch) < mine).reshape(steps, batch).sum(1)
    return [int(count) for count in counts]


SHARE = "A rank has those from rank · images // size to (rank + 1) · images // size: count them."
EXACT_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda n, rank, size, batch: valid_rows(n, rank, size, batch, mine=n * batch),
     "every row counts.",
     "Leave out the padding: its images have already been counted."),
    (lambda n, rank, size, batch: valid_rows(n, rank, size, batch, steps=most(n, size) // batch),
     "the images at the end are left out.",
     "Round up: an incomplete batch is padded, and its real rows count."),
    (lambda n, rank, size, batch: valid_rows(
        n, rank, size, batch, steps=math.ceil(own(n, rank, size) / batch)),
     "the ranks make different numbers of batches.",
     "All ranks make as many as the one with the most images; a batch of padding counts 0."),
    (lambda n, rank, size, batch: valid_rows(n, rank, size, batch, steps=math.ceil(n / batch)),
     "a rank makes as many batches as one that has all images.",
     "Divide the images among the ranks first."),
    (lambda n, rank, size, batch: valid_rows(n, rank, size, batch, mine=n // size),
     "images are left out.", SHARE),
    (lambda n, rank, size, batch: valid_rows(n, rank, size, batch, mine=-(-n // size)),
     "images are counted twice.", SHARE),
    (lambda n, rank, size, batch: valid_rows(
        n, rank, size, batch, mine=n // size + (rank < n % size)),
     "the first ranks get the remaining images, but DALI spreads them over all ranks.", SHARE),
)  # fmt: skip

"""Run a learner's DALI graph, on images whose pixels show where they come from.

Red grows from left to right, green from top to bottom, and blue is the number of the image: so the
pixels of a crop reveal which part of which image it is.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.data.source import open_source
from workshop import output, session
from workshop.checks import compare, engine, ramps
from workshop.checks.compare import refuse, wrong

Graph = Callable[..., tuple[Any, Any]]
COUNT, WIDTH, HEIGHT, SIDE = 64, 256, 192, 64
DARK, LIGHT, STEP = 32, 224, 3  # where the ramps begin and end, and blue from image to image
MEAN, STD = np.reshape([0.485, 0.456, 0.406, 0.229, 0.224, 0.225], (2, 3, 1, 1))
SHARD = "Pass the rank as shard_id, and the number of ranks as num_shards."
BLURRED = 0.25  # levels by which an average over a JPEG's pixels may be off


@contextmanager
def files_of_images() -> Iterator[list[str]]:
    """Write the files of COUNT images into a temporary folder; yields their paths."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        files = []
        pixels = np.zeros((HEIGHT, WIDTH, 3))
        pixels[..., 0] = np.linspace(DARK, LIGHT, WIDTH)
        pixels[..., 1] = np.linspace(DARK, LIGHT, HEIGHT)[:, None]
        for number in range(COUNT):
            pixels[..., 2] = DARK + STEP * number
            files.append(f"{folder}/{number:02d}.jpg")
            image = Image.fromarray(np.rint(pixels).astype(np.uint8))
            image.save(files[-1], quality=95, subsampling=0)
        yield files


def run(
    answer: Graph, given: tuple[Any, ...], batch: int, steps: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (steps · batch, …) and labels that `answer(*given)` produces on the CPU.

    Raises Wrong for a graph that cannot be built or that produces no batches.
    """
    from nvidia.dali import pipeline_def

    @pipeline_def
    def described() -> Any:
        found = compare.call(answer, *given)
        if hasattr(found, "build"):
            wrong("the answer is a pipeline.", "Leave out @pipeline_def, which the check adds.")
        if not isinstance(found, tuple | list) or len(found) != 2:
            wrong("the answer is not a pair.", "Return images and labels, in this order.")
        return tuple(found)

    try:
        pipeline = described(
            batch_size=batch, num_threads=1, device_id=None, seed=seed,
            exec_async=False, exec_pipelined=False,
        )  # fmt: skip
        pipeline.build()
        batches = [[dense(values) for values in pipeline.run()] for _ in range(steps)]
    except NotImplementedError:  # nothing is written yet
        raise
    except RuntimeError as error:
        then = f"{engine.own_frame(error, answer)} {remedy_of(error)}".strip()
        wrong(f"DALI refuses the graph: {reason(error)}", then)
    images, found = (np.concatenate(values) for values in zip(*batches, strict=True))
    return images, found.ravel()


def reason(error: Exception) -> str:
    """Return the line of DALI's error that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    whys = [line for line in lines if "Assert" in line or "Error" in line]
    # "Error when constructing operator … encountered:" precedes the error itself
    whys = [line for line in whys if not line.endswith("encountered:")]
    places = [re.match(r"\[/\S+:\d+\] (.*)", line) for line in lines]  # of DALI's source
    whys += [place[1] for place in places if place]
    return [*whys, *lines, "no text"][0].rpartition(" failed: ")[2].rstrip(".") + "."


def remedy_of(error: Exception) -> str:
    """Return what to do about the usual errors of DALI."""
    text = reason(error)
    remedies = (
        (r"with name (index_)?path", "Pass strings: map(str, …)."),
        ("shard", SHARD),
        ("[Ii]ndex", "Pass index_path: the files index/train-*."),
        ("GPU", "This graph runs on the CPU, without a GPU."),
    )
    return " ".join(remedy for pattern, remedy in remedies if re.search(pattern, text))


def dense(values: Any) -> np.ndarray:
    """Return a batch as one array. Raises Wrong if its images differ in size."""
    values = values.as_cpu() if hasattr(values, "as_cpu") else values
    if not values.is_dense_tensor():
        wrong("the images of a batch have different sizes.", "Resize all of them with fn.resize.")
    return np.array(values.as_array())


def check_form(pixels: np.ndarray, side: int) -> None:
    """Raise Wrong unless the images are finite float32, one plane of `side` pixels per colour."""
    refuse(
        (pixels.shape[1:] == (side, side, 3),
         f"an image is {(side, side, 3)}: the colours of a pixel are next to each other.",
         'For a plane per colour, pass output_layout="CHW".'),
        (pixels.shape[1:] != (3, side, side), f"an image is {pixels.shape[1:]}.",
         f"It should be {(3, side, side)}."),
        (pixels.dtype != np.float32, f"the images are {pixels.dtype}.",
         "Pass dtype=types.FLOAT, which is float32."),
    )  # fmt: skip
    compare.numbers(pixels, "the images")


def check_shares(read: list[list[int]]) -> None:
    """Raise Wrong if two ranks read the same images in an epoch, or all read them in order."""
    twice = len(set(read[0]) & set(read[1]))
    refuse(
        (twice, f"in one epoch {twice} of {len(read[0])} images come on both ranks.",
         SHARD),
        (all(numbers == sorted(numbers) for numbers in read),
         "the images come in the order of the files.", "Pass random_shuffle=True."),
    )  # fmt: skip


# --- reading the pixels ---------------------------------------------------------------------------


def possible(levels: np.ndarray) -> bool:
    """Return True if levels (n, 3, SIDE, SIDE) can be crops of the images."""
    blue = levels[:, 2]
    if levels.min() < DARK - 8 or levels.max() > LIGHT + 8 or np.ptp(blue, (1, 2)).max() > 8:
        return False
    found = (blue.mean((1, 2)) - DARK) / STEP
    return bool(np.abs(found - np.rint(found)).max() * STEP < BLURRED)


def original(pixels: np.ndarray) -> np.ndarray:
    """Return normalised images (n, 3, SIDE, SIDE) as levels from 0 to 255."""
    levels: np.ndarray = 255 * (pixels * STD + MEAN)
    return levels


def numbers(pixels: np.ndarray) -> np.ndarray:
    """Return the number of the image that each of the normalised ones comes from."""
    return np.rint((original(pixels)[:, 2].mean((1, 2)) - DARK) / STEP).astype(int)


def crops(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return width and height of each crop in pixels of its image; negative if mirrored."""
    _, _, width, height = ramps.boxes(original(pixels)).T / (LIGHT - DARK)
    return width * (WIDTH - 1), height * (HEIGHT - 1)


# --- what a learner sees --------------------------------------------------------------------------


def show(graph: Graph, data_root: Path, count: int = 8) -> None:
    """Draw road signs as the learner's graph returns them, with the normalisation undone."""
    if not session.has("nvidia.dali"):
        return
    if left := engine.unanswered(graph):
        print(f"Not run: {left}")
        return
    source = open_source(data_root, "train", "files")
    chosen = np.linspace(0, len(source) - 1, 4 * count).astype(int)
    files = [str(source.path / source.name(number)) for number in chosen]
    given = (files, source.labels[chosen].tolist(), 0, 1)
    pixels, labels = run(graph, given, count, steps=1, seed=11)
    levels = np.clip(np.rint(original(pixels)), 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    names = [source.classes[int(label)] for label in labels]
    output.images(list(levels), alt=f"Crops from your graph: {', '.join(names)}", labels=names)

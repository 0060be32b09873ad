"""Run a learner's DALI graph, and check what every graph of the course has to produce."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from workshop.checks import compare, engine
from workshop.checks.compare import refuse, wrong

Graph = Callable[..., tuple[Any, Any]]
SHARD = "Pass the rank as shard_id, and the number of ranks as num_shards."


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
        (pixels.ndim == 2, "the first node is not the images.", "Return images, then labels."),
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

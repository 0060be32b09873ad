"""The checks of what a learner writes in notebook 05, and the finished versions."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from workshop.checks.compare import refuse, wrong
from workshop.checks.ramps import boxes
from workshop.lessons.choice import choose
from workshop.lessons.nb04 import EACH, HEIGHT, RANKS, SHARDS, WIDTH, write_numbered_shards

CPU = SimpleNamespace(type="cpu")
SIZE, BATCH = 16, 8  # of the check's pipelines: three batches are an epoch of a rank


def photos(folder: Path, size: int, device: Any, rank: int, ranks: int) -> tuple[Any, Any]:
    """Return normalised crops (NCHW) and labels, from 0, of a rank's share of the shards."""
    from nvidia.dali import fn, tfrecord

    shards, index = (sorted(map(str, folder.glob(f"{name}train-*"))) for name in ("", "index/"))
    image = tfrecord.FixedLenFeature([], tfrecord.string, "")
    label = tfrecord.FixedLenFeature([1], tfrecord.int64, 0)
    data = fn.readers.tfrecord(
        path=shards, index_path=index, shard_id=rank, num_shards=ranks,
        features={"image/encoded": image, "image/class/label": label}, random_shuffle=True,
    )  # fmt: skip
    images = fn.decoders.image_random_crop(
        data["image/encoded"], device="mixed" if device.type == "cuda" else "cpu",
        random_area=[0.37, 0.75], random_aspect_ratio=[1, 1],
    )  # fmt: skip
    images = fn.crop_mirror_normalize(fn.resize(images, size=[size, size]), mean=127.5, std=127.5)
    return images, data["image/class/label"] - 1


def endless(loader: Any) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels of a pipeline, epoch after epoch."""
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    for (batch,) in DALIClassificationIterator(loader):
        yield batch["data"], batch["label"].squeeze(1)


def check(graph: Callable[..., Any], batches: Callable[..., Any]) -> tuple[Any, Any]:
    """Return a learner's `photos` and `endless`, each if it is right, else the finished one."""
    return check_photos(graph), check_endless(batches)


def check_photos(yours: Callable[..., Any]) -> Callable[..., Any]:
    with tempfile.TemporaryDirectory() as folder:
        return choose("photos", yours, photos, lambda: judge_photos(yours, Path(folder)))


def check_endless(yours: Callable[..., Any]) -> Callable[..., Any]:
    with tempfile.TemporaryDirectory() as folder:
        return choose("endless", yours, endless, lambda: judge_endless(yours, Path(folder)))


def build(function: Callable[..., Any], folder: Path, rank: int) -> Any:
    """Return the built pipeline of a rank, on the CPU."""
    from nvidia.dali import pipeline_def

    pipe = pipeline_def(function)(
        folder, SIZE, CPU, rank, RANKS, batch_size=BATCH, num_threads=1, device_id=None, seed=rank
    )
    pipe.build()
    return pipe


def run(yours: Callable[..., Any], folder: Path) -> list[list[np.ndarray]]:
    """Return each rank's outputs in an epoch, three batches.

    Raises NotImplementedError if the graph is None, and Wrong if DALI refuses it.
    """
    from nvidia.dali import Pipeline

    outputs = []
    try:
        with Pipeline(batch_size=BATCH, num_threads=1, device_id=None):
            if yours(folder, SIZE, CPU, 0, RANKS) is None:
                raise NotImplementedError
        for pipe in [build(yours, folder, rank) for rank in range(RANKS)]:
            # copies, because the next run reuses the memory
            batches = [[np.array(node.as_array()) for node in pipe.run()] for _ in range(3)]
            outputs.append([np.concatenate(part) for part in zip(*batches, strict=True)])
    except NotImplementedError:
        raise
    except Exception as error:
        wrong(f"It ended with {type(error).__name__}: {reason(error)}", remedy_of(error))
    return outputs


def judge_photos(yours: Callable[..., Any], folder: Path) -> str:
    write_numbered_shards(folder)
    read: list[list[int]] = []
    for outputs in run(yours, folder):
        if len(outputs) != 2:
            wrong(f"It returns {len(outputs)} node(s).", "Return two nodes: images and labels.")
        images, labels = outputs
        if images.ndim == 2 and labels.ndim == 4:
            wrong("The labels come first.", "Return the images first, then the labels.")
        read.append(labels.ravel().tolist())
        if len(set(read[-1])) < len(read[-1]) or max(read[-1]) > SHARDS * EACH:
            wrong("The records are not those of `folder`.", "Find train-* and index/train-* in it,"
                  " because your script has no global lists of shards.")  # fmt: skip
        judge_images(images)
    refuse(
        (max(map(max, read)) == SHARDS * EACH, "Labels start at 1.",
         "Subtract 1: shards count classes from 1, the network from 0."),
        (set(read[0]) & set(read[1]), "Both ranks read the same images.",
         "Pass shard_id=rank and num_shards=ranks."),
        (read[0] == sorted(read[0]), "The images come in the order of the shards.",
         "Pass random_shuffle=True."),
    )  # fmt: skip
    return "`photos` is right: the notebook uses yours."


def judge_images(images: np.ndarray) -> None:
    """Raise Wrong unless the images of three batches are normalised crops of the known one."""
    low, high = float(images.min()), float(images.max())
    refuse(
        (images.shape[1:] != (3, SIZE, SIZE), f"An image has the shape"
         f" {' × '.join(map(str, images.shape[1:]))} instead of 3 × {SIZE} × {SIZE}.",
         "Resize to [size, size], and let crop_mirror_normalize put the planes first, its default."
         ),
        (images.dtype != np.float32, f"The images are {images.dtype}.",
         "crop_mirror_normalize returns float32 by default."),
        (low < -1.01 or high > 1.01 or low >= 0,
         f"Pixels range from {low:.2f} to {high:.2f} instead of -1 to 1.",
         "They come from 0 to 255, so use mean=127.5 and std=127.5."),
    )  # fmt: skip
    _, _, width, height = boxes((images + 1) * 127.5).T
    smallest, largest = (edge(width * height) / WIDTH / HEIGHT for edge in (np.min, np.max))
    refuse(
        (width.min() < 0, "Some images are mirrored.",
         "Leave out mirror, which changes some signs' meaning."),
        (np.abs(width / height - 1).max() > 0.1, "The crops are not squares.",
         "Pass random_aspect_ratio=[1, 1]."),
        (smallest < 0.32 or smallest > 0.6 or largest > 0.8,
         f"The crops have {smallest:.0%} to {largest:.0%} of the area.",
         "Pass random_area=[0.37, 0.75]."),
    )  # fmt: skip


def judge_endless(yours: Callable[..., Any], folder: Path) -> str:
    write_numbered_shards(folder)
    epochs, steps = 3, SHARDS * EACH // RANKS // BATCH
    labels: list[list[int]] = []
    made = yours(build(photos, folder, 0))
    if made is None:
        raise NotImplementedError
    for item in itertools.islice(made, epochs * steps):
        if not (isinstance(item, tuple | list) and len(item) == 2):
            wrong(f"It yields {type(item).__name__} of length {len(item)}.", "Yield a pair, images"
                  ' and labels of each dictionary, batch["data"], batch["label"].')  # fmt: skip
        images, of_images = item
        refuse(
            (tuple(getattr(images, "shape", ())) != (BATCH, 3, SIZE, SIZE),
             "The first of each pair should be the batch's images, a tensor.",
             'Yield batch["data"] first.'),
            (np.shape(of_images) != (BATCH,), f"Labels have the shape {np.shape(of_images)}, but"
             f" cross_entropy needs ({BATCH},).", "Apply .squeeze(1)."),
        )  # fmt: skip
        labels.append(of_images.tolist())
    first = {label for batch in labels[:steps] for label in batch}
    refuse(
        (len(labels) < epochs * steps,
         f"It ends after {len(labels)} batches, of an epoch of {steps}.", "Without a size or a"
         " reader_name, DALI's iterator goes on; otherwise pass auto_reset=True and loop again."),
        (len(first) < steps * BATCH, "An epoch repeats some images and leaves out others.",
         "Yield each batch once."),
    )  # fmt: skip
    return "`endless` is right: the notebook uses yours."


def reason(error: Exception) -> str:
    """Return the line of DALI's error that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    whys = [line for line in lines if "Assert" in line or "Error" in line]
    # "Error when constructing operator … encountered:" precedes the error itself
    whys = [line for line in whys if not line.endswith("encountered:")]
    return [*whys, *lines, "no text"][0].rstrip(".") + "."


def remedy_of(error: Exception) -> str:
    """Return what to do about the usual errors of DALI."""
    text = reason(error)
    remedies = (
        (r"with name (index_)?path", "Pass strings: map(str, …)."),
        ("shard", "Rank `rank` of `ranks` has shard_id=rank and num_shards=ranks."),
        ("dense|[Uu]niform|as_array",
         "Images of a batch differ in size: resize them to [size, size]."),
        ("[Ii]ndex", "Pass index_path: the files index/train-*."),
    )  # fmt: skip
    return " ".join(remedy for pattern, remedy in remedies if re.search(pattern, text))

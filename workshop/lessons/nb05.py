"""The checks of what a learner writes in notebook 05, and the finished versions."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from workshop.lessons.nb04 import (
    EACH,
    HEIGHT,
    RANKS,
    SHARDS,
    WIDTH,
    report,
    write_numbered_shards,
)

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


def check_photos(yours: Callable[..., Any]) -> Callable[..., Any]:
    """Print what is wrong with a learner's `photos`; return it if right, else the finished one."""
    with tempfile.TemporaryDirectory() as folder:
        return report("photos", yours, photos, find_photos_mistake(yours, Path(folder)))


def check_endless(yours: Callable[..., Any]) -> Callable[..., Any]:
    """Print what is wrong with a learner's `endless`; return it if right, else the finished one."""
    with tempfile.TemporaryDirectory() as folder:
        return report("endless", yours, endless, find_endless_mistake(yours, Path(folder)))


def build(function: Callable[..., Any], folder: Path, rank: int) -> Any:
    """Return the built pipeline of a rank, on the CPU."""
    from nvidia.dali import pipeline_def

    pipe = pipeline_def(function)(
        folder, SIZE, CPU, rank, RANKS, batch_size=BATCH, num_threads=1, device_id=None, seed=rank
    )
    pipe.build()
    return pipe


def find_photos_mistake(yours: Callable[..., Any], folder: Path) -> str | None:
    """Return what is wrong with a graph, None if nothing, "" if not attempted."""
    from nvidia.dali import Pipeline

    write_numbered_shards(folder)
    with Pipeline(batch_size=BATCH, num_threads=1, device_id=None):
        try:
            nodes = yours(folder, SIZE, CPU, 0, RANKS)
        except Exception as error:
            return f"It ended with {type(error).__name__}: {hint(error)}"
    if nodes is None:
        return ""
    if not (isinstance(nodes, tuple | list) and len(nodes) == 2):
        return "Return two nodes: images and labels."
    read: list[list[int]] = []
    for rank in range(RANKS):
        try:
            pipe = build(yours, folder, rank)
            # copies, because the next run reuses the memory
            batches = [[np.array(node.as_array()) for node in pipe.run()] for _ in range(3)]
            images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
        except Exception as error:
            return f"The pipeline of rank {rank} ended with {type(error).__name__}: " + hint(error)
        if images.ndim == 2 and labels.ndim == 4:
            return "Return the images first, then the labels."
        read.append(labels.ravel().tolist())
        if len(set(read[-1])) < len(read[-1]) or max(read[-1]) > SHARDS * EACH:
            return (
                "The records are not those of `folder`: find train-* and index/train-* in it,"
                " because your script has no global lists of shards."
            )
        if wrong := wrong_images(images):
            return wrong
    if max(map(max, read)) == SHARDS * EACH:
        return "Labels start at 1: shards count classes from 1, the network from 0. Subtract 1."
    if set(read[0]) & set(read[1]):
        return "Both ranks read the same images: pass shard_id=rank and num_shards=ranks."
    if read[0] == sorted(read[0]):
        return "The images come in the order of the shards: pass random_shuffle=True."
    return None


def wrong_images(images: np.ndarray) -> str:
    """Return what is wrong with the images of three batches, "" if nothing."""
    if images.shape[1:] != (3, SIZE, SIZE):
        found = " × ".join(map(str, images.shape[1:]))
        return (
            f"An image has the shape {found} instead of 3 × {SIZE} × {SIZE}: resize to"
            " [size, size], and let crop_mirror_normalize put the planes first, its default."
        )
    if images.dtype != np.float32:
        return f"The images are {images.dtype}: crop_mirror_normalize returns float32 by default."
    low, high = float(images.min()), float(images.max())
    if low < -1.01 or high > 1.01 or low >= 0:
        return (
            f"Pixels range from {low:.2f} to {high:.2f} instead of -1 to 1: they come from 0 to"
            " 255, so use mean=127.5 and std=127.5."
        )
    return wrong_crops(images)


def wrong_crops(images: np.ndarray) -> str:
    """Return what is wrong with the crops of known images, "" if nothing."""
    inner = np.arange(3, SIZE - 3)  # not the edges, where a resize repeats pixels
    red, green = ((images[:, plane] + 1) * 127.5 for plane in (0, 1))
    width = SIZE * np.polyfit(inner, red.mean(axis=1)[:, inner].T, 1)[0]
    height = SIZE * np.polyfit(inner, green.mean(axis=2)[:, inner].T, 1)[0]
    if width.min() < 0:
        return "Some images are mirrored: leave out mirror, which changes some signs' meaning."
    if np.abs(width / height - 1).max() > 0.1:
        return "The crops are not squares: pass random_aspect_ratio=[1, 1]."
    low, high = (width * height).min() / WIDTH / HEIGHT, (width * height).max() / WIDTH / HEIGHT
    if low < 0.32 or low > 0.6 or high > 0.8:
        return f"The crops have {low:.0%} to {high:.0%} of the area: pass random_area=[0.37, 0.75]."
    return ""


def find_endless_mistake(yours: Callable[..., Any], folder: Path) -> str | None:
    """Return what is wrong with a generator of batches, None if nothing, "" if not attempted."""
    write_numbered_shards(folder)
    epochs, steps = 3, SHARDS * EACH // RANKS // BATCH
    labels: list[list[int]] = []
    try:
        made = yours(build(photos, folder, 0))
        if made is None:
            return ""
        for item in itertools.islice(made, epochs * steps):
            if not (isinstance(item, tuple | list) and len(item) == 2):
                return (
                    f"It yields {type(item).__name__} of length {len(item)}: yield a pair, images"
                    ' and labels of each dictionary, batch["data"], batch["label"].'
                )
            images, of_images = item
            if tuple(getattr(images, "shape", ())) != (BATCH, 3, SIZE, SIZE):
                return "The first of each pair should be the batch's images, a tensor."
            if tuple(of_images.shape) != (BATCH,):
                return (
                    f"Labels have the shape {tuple(of_images.shape)}, but cross_entropy needs"
                    f" ({BATCH},): apply .squeeze(1)."
                )
            labels.append(of_images.tolist())
    except Exception as error:
        return f"It ended with {type(error).__name__}: {first_line(error)}"
    if len(labels) < epochs * steps:
        return (
            f"It ends after {len(labels)} batches, of an epoch of {steps}: without a size or a"
            " reader_name, DALI's iterator goes on; otherwise pass auto_reset=True and loop again."
        )
    if len({label for batch in labels[:steps] for label in batch}) < steps * BATCH:
        return "An epoch repeats some images and leaves out others: yield each batch once."
    return None


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).strip() or "no text").splitlines()[0]


def hint(error: Exception) -> str:
    """Return the line of DALI's error that says why, and what to do about the usual ones."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    whys = [line for line in lines if "Assert" in line or "Error" in line]
    # "Error when constructing operator … encountered:" precedes the error itself
    text = next((line for line in whys if not line.endswith("encountered:")), "")
    text = (text or (lines[0] if lines else "no text")).rstrip(".") + "."
    if "with name path" in text or "with name index_path" in text:
        text += " Pass strings: map(str, …)."
    if "shard" in text:
        text += " Rank `rank` of `ranks` has shard_id=rank and num_shards=ranks."
    if "dense" in text or "uniform" in text.lower() or "as_array" in text:
        text += " Images of a batch differ in size: resize them to [size, size]."
    if "index" in text.lower():
        text += " Pass index_path: the files index/train-*."
    return text

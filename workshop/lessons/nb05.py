"""The checks of what a learner writes in notebook 05, and the finished versions."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from workshop.checks.compare import call, numbers, refuse, returned, wrong
from workshop.checks.engine import own_frame
from workshop.checks.ramps import boxes
from workshop.lessons.choice import in_folder, lesson_check
from workshop.lessons.nb04 import (
    EACH,
    HEIGHT,
    RANKS,
    SHARDS,
    WIDTH,
    striped_jpeg,
    striped_ramps,
    write_numbered_shards,
)

CPU = SimpleNamespace(type="cpu")
SIZE, BATCH = 16, 8  # of the check's pipelines
ALIASED = 13  # levels of blue: its stripes are finer than the pixels of a resized crop
DARK = -0.75  # some pixels of the known image, in several crops, are darker
STEPS = SHARDS * EACH // RANKS // BATCH  # of a rank's epoch
SHARD = "Pass the rank as shard_id, and the number of ranks as num_shards."


def crop(images: Any, size: int) -> Any:
    """Return random squares, 37 to 75% of the area, resized to `size` x `size` pixels."""
    from nvidia.dali import fn

    area = {"random_area": [0.37, 0.75], "random_aspect_ratio": [1, 1]}
    return fn.random_resized_crop(images, size=[size, size], **area)


def only_crop(jpegs: Any, size: int, place: str) -> Any:
    """Decode random squares only, 37 to 75% of the area; resize them to `size` x `size` pixels."""
    from nvidia.dali import fn

    area = {"random_area": [0.37, 0.75], "random_aspect_ratio": [1, 1]}
    images = fn.decoders.image_random_crop(jpegs, device=place, **area)
    return fn.resize(images, size=[size, size])


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
    place = "mixed" if device.type == "cuda" else "cpu"
    images = only_crop(data["image/encoded"], size, place)
    images = fn.crop_mirror_normalize(images, mean=127.5, std=127.5)
    return images, data["image/class/label"] - 1


def endless(loader: Any) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels of a pipeline, epoch after epoch."""
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    for (batch,) in DALIClassificationIterator(loader):
        yield batch["data"], batch["label"].squeeze(1)


def judge_only_crop(yours: Callable[..., Any]) -> None:
    judge_crop(yours, np.frombuffer(striped_jpeg(), np.uint8), "cpu")
    refuse(("image" in inspect.unwrap(yours).__code__.co_names, "It decodes whole images.",
            "Use fn.decoders.image_random_crop."),
           (not uses(yours, 2), "It ignores `place`.", "Pass device=place to the decoder."),
    )  # fmt: skip


def uses(function: Callable[..., Any], argument: int) -> bool:
    """Return True if a function's code reads the argument at this position."""
    code = inspect.unwrap(function).__code__
    if argument >= code.co_argcount:  # it is in `*args`
        return True
    name = code.co_varnames[argument]
    loads = [one.argrepr for one in dis.get_instructions(code) if "LOAD_" in one.opname]
    return name in ", ".join(loads).split(", ") or name in code.co_cellvars


def run_on_constant(
    image: np.ndarray, count: int, yours: Callable[..., Any], *given: Any
) -> np.ndarray:
    """Return what `yours(node, *given)` makes of `count` copies of an image or a JPEG."""
    from nvidia.dali import types

    @functools.wraps(yours)
    def graph() -> Any:
        layout = {"layout": "HWC"} if image.ndim == 3 else {}  # a JPEG has none
        node = types.Constant(image, device="cpu", **layout)
        found = returned(yours(node, *given))
        refuse((isinstance(found, tuple | list), "It returns several nodes.", "Return one."))
        return found, node

    return run(graph, (), count, 1, 0)[0]


def run(
    answer: Callable[..., Any], given: tuple[Any, ...], batch: int, steps: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (steps · batch, …) and labels that `answer(*given)` produces on the CPU.

    Raises Wrong for a graph that cannot be built or that produces no batches.
    """
    from nvidia.dali import pipeline_def

    @pipeline_def
    def described() -> Any:
        found = call(answer, *given)
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
    except RuntimeError as error:
        then = f"{own_frame(error, answer)} {remedy_of(error)}".strip()
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


def check_boxes(levels: np.ndarray, near: float) -> None:
    """Raise Wrong unless crops (n, 3, size, size) of the known image are squares of its area.

    They must differ in their place and be neither mirrored nor aliased. The smallest and the
    largest are as `near` to the limits of the area as they are with this number of crops.
    """
    left, top, width, height = boxes(levels).T
    places = [left, left + width / 2, left + width, top, top + height / 2, top + height]
    areas = width * height / WIDTH / HEIGHT
    right = 0.35 < areas.min() < 0.37 + near and areas.max() > 0.75 - near
    halves = np.split(levels.mean(axis=2), 2, axis=2)  # red grows from left to right, blue does not
    grows = np.median(np.abs(np.subtract(*halves).mean(axis=2)), axis=0)
    refuse((grows[2] > grows[0], "Red and blue are exchanged.", "Leave out output_type=types.BGR."),
           (min(width.min(), height.min()) < 0, "Some images are mirrored.",
            "Do not mirror or flip: that changes some signs' meaning."),
           (np.abs(width / height - 1).max() > 0.1, "The crops are not squares.",
            "Pass random_aspect_ratio=[1, 1]."),
           (not right, f"The crops have {areas.min():.0%} to {areas.max():.0%} of the area.",
            "Pass random_area=[0.37, 0.75]: a number drawn by Python stays the same."),
           (np.ptp(places, axis=1).min() < 5, "All crops have the same corner or centre.",
            "Let an operator draw their place, too, as random_resized_crop does."),
           (levels[:, 2, 2:-2, 2:-2].std() > ALIASED, "The images are not antialiased: fine stripes"
            " of the photos become coarse ones.", "Leave out antialias=False and interp_type."),
    )  # fmt: skip


def judge_crop(yours: Callable[..., Any], image: np.ndarray, *place: str) -> None:
    """Raise Wrong unless crops of a known image, or of its JPEG, are right."""
    crops = run_on_constant(image, 32 * BATCH, yours, SIZE, *place)
    refuse((crops.shape[1:] == (3, SIZE, SIZE), "Crops have the channels first.",
            "Leave them last, as in the images: do not transpose."),
           (crops.shape[1:] != (SIZE, SIZE, 3), f"Crops have the shape {crops.shape[1:]}, not"
            f" ({SIZE}, {SIZE}, 3).", "Pass size=(size, size)."),
           (crops.dtype != np.uint8, f"The pixels are {crops.dtype}.",
            "Leave out dtype: uint8 is the smallest."))  # fmt: skip
    check_boxes(np.moveaxis(crops, 3, 1).astype(float), near=0.03)


def judge_photos(yours: Callable[..., Any], folder: Path, any_place: bool = False) -> None:
    """Raise Wrong for a wrong graph; with `any_place`, it need not use its device."""
    write_numbered_shards(folder)
    read: list[list[int]] = []
    crops: list[np.ndarray] = []
    for rank in range(RANKS):
        given = (folder, SIZE, CPU, rank, RANKS)
        images, labels = run(yours, given, BATCH, STEPS, rank)
        judge_images(images)
        count = BATCH * STEPS
        refuse((labels.size != count, f"{count} images have {labels.size} labels.",
                "Return one label per image, after the images."),
               (labels.dtype != np.int64, f"The labels are {labels.dtype}.",
                "Leave them int64, as in the shards: F.cross_entropy needs that."))  # fmt: skip
        read.append(labels.tolist())
        if len(set(read[-1])) < len(read[-1]) or max(read[-1]) > SHARDS * EACH:
            wrong("The records are not those of `folder`.", "Find train-* and index/train-* in it,"
                  " because your script has no global lists of shards.")  # fmt: skip
        crops.append(images)
    levels = (np.concatenate(crops) + 1) * 127.5
    check_boxes(levels, near=0.07)
    blue = float(levels[:, 2].mean())  # half of its columns are 128, the others 0
    refuse((abs(blue - 64) > 6, f"Blue has a mean of {blue / 127.5 - 1:.2f} instead of -0.50.",
            "Use mean=127.5 and std=127.5 for every colour: not those of ImageNet."),
           (max(map(max, read)) == SHARDS * EACH, "Labels start at 1.",
            "Subtract 1: shards count classes from 1, the network from 0."))  # fmt: skip
    twice = len(set(read[0]) & set(read[1]))
    refuse((twice, f"in one epoch {twice} of {len(read[0])} images are read by both ranks.", SHARD),
           (all(order == sorted(order) for order in read),
            "the images come in the order of the files.", "Pass random_shuffle=True."),
           (not any_place and not uses(yours, 2), "It ignores `device`.",
            'Decode on "mixed" if device.type is "cuda", else on "cpu".'),
    )  # fmt: skip


def judge_images(images: np.ndarray) -> None:
    """Raise Wrong unless the images of three batches have the right form and range."""
    shape, planes, pixels = images.shape[1:], (3, SIZE, SIZE), (SIZE, SIZE, 3)
    refuse((images.ndim == 2, "the first node is not the images.", "Return images, then labels."),
           (shape == pixels,
            f"an image is {pixels}: the colours of a pixel are next to each other.",
            'For a plane per colour, pass output_layout="CHW".'),
           (shape != planes, f"an image is {shape}.", f"It should be {planes}."),
           (images.dtype != np.float32, f"the images are {images.dtype}.",
            "Pass dtype=types.FLOAT, which is float32."),
    )  # fmt: skip
    numbers(images, "the images")
    low, high = float(images.min()), float(images.max())
    refuse((low < -1.01 or high > 1.01 or low > DARK,
            f"Pixels range from {low:.2f} to {high:.2f} instead of -1 to 1.",
            "They come from 0 to 255, so use mean=127.5 and std=127.5."))  # fmt: skip


def judge_endless(
    yours: Callable[..., Any], folder: Path, graph: Callable[..., Any] = photos
) -> None:
    """Raise Wrong for a wrong iterator over the pipeline of `graph`."""
    from nvidia.dali import pipeline_def

    epochs = 50  # 1,200 images: a size of 100 or 1,000 ends before them
    labels: list[list[int]] = []
    write_numbered_shards(folder)
    pipe = pipeline_def(graph)(
        folder, SIZE, CPU, 0, RANKS, batch_size=BATCH, num_threads=1, device_id=None, seed=0
    )
    pipe.build()
    for item in itertools.islice(returned(yours(pipe)), epochs * STEPS):
        shapes = [tuple(np.shape(part)) for part in item]
        right = [(BATCH, 3, SIZE, SIZE), (BATCH,)]
        refuse((shapes != right, f"It yields the shapes {shapes}; they should be {right}.",
                'Yield a pair: batch["data"] and batch["label"].squeeze(1).'))  # fmt: skip
        kind = str(item[1].dtype)
        refuse(("int64" not in kind, f"The labels are {kind}.",
                "Yield them as they are: F.cross_entropy needs int64."))  # fmt: skip
        labels.append(item[1].tolist())
    first = {label for batch in labels[:STEPS] for label in batch}
    refuse(
        (len(labels) < epochs * STEPS,
         f"It ends after {len(labels)} batch{'es' * (len(labels) != 1)}; an epoch has {STEPS}.",
         "Yield in a loop over DALI's iterator, without a size or a reader_name, with which it ends"
         " after each epoch, or put the loop into `while True:`."),
        (min(first) < 0 or len(first) < STEPS * BATCH,
         f"In an epoch of {STEPS * BATCH} images, there are {len(first)} different labels, from"
         f" {min(first)} to {max(first)}.", "Yield each batch once, and its labels as they are."),
    )  # fmt: skip


check = lesson_check(
    (crop, lambda own: judge_crop(own, striped_ramps())),
    (only_crop, judge_only_crop),
    (photos, in_folder(judge_photos)),
    (endless, in_folder(judge_endless)),
)

"""The same validation pictures through every loader, and what training ranks read through DALI.

A loader runs in a process of its own: its framework goes with it.
"""

from __future__ import annotations

import io
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rn50 import launch
from rn50lib import recipe
from rn50lib.config import TrainConfig
from rn50lib.data import sampler
from rn50lib.data.decode import eight_bits
from rn50lib.data.sampler import Plan
from rn50lib.data.source import Source, open_source
from workshop import session
from workshop.worker import ask, pack, unpack

PILLOW = "Pillow"


def seen(
    given: Mapping[str, Any],
    chosen: Mapping[str, Mapping[str, Any]],
    count: int,
    sizes: Sequence[int],
) -> dict[int, dict[str, np.ndarray]]:
    """The first `count` validation pictures, by size and loader: uint8 (count, size, size, 3).

    A loader that has a fast variant is there twice, and PILLOW comes first. Profile and data come
    from the session where they are not given. Raises UserError when a loader fails.
    """
    source = open_source(session.resolve(given).data_root, "val", "files")
    found = {size: {PILLOW: plain(source, count, size)} for size in sizes}
    for name, fields in chosen.items():
        config = session.resolve(given, **fields)
        with tempfile.TemporaryDirectory(prefix="rn50-pictures-") as folder:
            ways = ask(
                "workshop.lessons.dali.pictures:save", launch.rank_environment(config),
                f"{name}: {count} pictures",
                config=pack(config), folder=folder, count=count, sizes=list(sizes),
            )  # fmt: skip
            for way in ways:
                title = name if way == "antialias" else f"{name}, fast"
                for size in sizes:
                    found[size][title] = np.load(Path(folder) / f"{way}-{size}.npy")
    return found


def plain(source: Source, count: int, size: int) -> np.ndarray:
    """The same pictures by Pillow without any shortcut: decoded whole, cut, averaged."""
    made = []
    for i in range(count):
        image = eight_bits(Image.open(io.BytesIO(source.read(i)))).convert("RGB")
        left, top, width, height = recipe.center_crop_box(
            *image.size, size, recipe.val_resize(size)
        )
        box = (left, top, left + width, top + height)
        made.append(np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box)))
    return np.stack(made)


def first(batches: Iterable[Any], count: int) -> np.ndarray:
    """The first `count` images of some batches, without padding."""
    images: list[np.ndarray] = []
    for batch in batches:
        pixels = batch.images
        if hasattr(pixels, "cpu"):  # a tensor, which may lie on a GPU
            pixels = pixels.cpu()
        images.extend(np.asarray(pixels)[: batch.valid])
        if len(images) >= count:
            break
    return np.stack(images[:count])


def differences(
    pictures: Mapping[str, np.ndarray], truth: str = PILLOW
) -> dict[str, tuple[float, float, int]]:
    """How far each loader's pictures are from those of `truth`, of 255: the mean, that of the
    picture that differs most, and the largest of a single value."""
    wanted = pictures[truth].astype(np.int16)
    found = {}
    for name, pixels in pictures.items():
        if name != truth:
            apart = np.abs(pixels.astype(np.int16) - wanted)
            each = apart.mean(axis=(1, 2, 3))
            found[name] = float(each.mean()), float(each.max()), int(apart.max())
    return found


# -- who reads what --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reads:
    """`epochs[e][r]`: the numbers of the images that rank r reads in epoch e, in its order; `again`
    is epoch 0 by readers that were made anew."""

    epochs: list[list[list[int]]]
    again: list[list[int]]

    @property
    def together(self) -> list[int]:
        """All that the ranks read in epoch 0."""
        return [number for rank in self.epochs[0] for number in rank]


def reads(experiment: TrainConfig, source: Source, ranks: int = 2) -> Reads:
    """Ask DALI's readers, as the loader sets them up, for the images of two epochs.

    What comes is the encoded image; its checksum says which one it is.
    """
    known = {zlib.crc32(source.read(i)): i for i in range(len(source))}

    def epoch(number: int) -> list[list[int]]:
        return [
            [known[crc] for crc in encoded(experiment, source, number, rank, ranks)]
            for rank in range(ranks)
        ]

    return Reads([epoch(0), epoch(1)], epoch(0))


def encoded(
    experiment: TrainConfig, source: Source, epoch: int, rank: int, ranks: int
) -> list[int]:
    """The checksums of the encoded images that a rank reads in an epoch, in its order."""
    from rn50lib.data.dali import Numbered, Stream
    from workshop.lessons.dali import steps

    plan = Plan(experiment, source, "train", rank, ranks)
    reader = (Numbered if source.format == "files" else Stream)(source, plan)
    seed = sampler.image_seed(experiment.seed, epoch, rank) % 2**31
    graph = steps.graph(lambda: reader.read(epoch)[0], plan.batch_size, seed)
    found = []
    for _ in range(len(reader)):
        (images,) = graph.run()
        found += [zlib.crc32(np.array(images.at(i)).tobytes()) for i in range(plan.batch_size)]
    reader.close()
    return found


# --- in the process -------------------------------------------------------------------------------


def save(config: dict[str, Any], folder: str, count: int, sizes: list[int]) -> list[str]:
    """Writes FOLDER/antialias-SIZE.npy, and fast-SIZE.npy where the loader knows that; returns the
    ways there are."""
    from rn50lib.data import open_pipeline

    done = unpack(config)
    source = open_source(Path(done.data_root), "val", done.data_format)
    ways = ["antialias"]
    if done.loader == "dali" or done.backend == "tensorflow":
        ways.append("fast")
    for size in sizes:
        small = replace(done, image_shape=size, val_resize=recipe.val_resize(size))
        for way in ways:
            pipeline = open_pipeline(replace(small, resample=way), source, "val", 0, 1)
            np.save(Path(folder) / f"{way}-{size}.npy", first(pipeline.epoch(0), count))
            pipeline.close()
    return ways

"""The training graph of `pipelines.dali_graph`, cut off after each operator: what comes out there,
and how long it takes.

Everything runs in this process and on the CPU: DALI without a GPU is small and starts at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn, pipeline_def, types

from rn50lib.data import dali_graph
from rn50lib.data.dali_graph import Look
from rn50lib.recipe import MEAN, STD
from workshop import output
from workshop.worker import in_turns

READ, DECODE, RESIZE, NORMALISE = "read", "decode the crop", "resize and mirror", "normalise"
WHOLE, CROP = "decode all of it", "crop and resize"


def reader(files: Sequence[Path]) -> dali_graph.Read:
    """A reader of files in their order, as the library's graphs take one."""

    def read() -> tuple[Any, Any]:
        names = [str(file) for file in files]
        encoded, label = fn.readers.file(files=names, labels=[0] * len(names))
        return encoded, label[0]

    return read


def fused(read: dali_graph.Read, look: Look) -> dict[str, Any]:
    """What each operator of the training graph gives, by name.

    The last one, what a network is fed (float32, a plane per colour), is not in the library's
    graph: the training step does that on the device.
    """
    encoded, _ = read()
    mirror = fn.random.coin_flip(probability=look.augmentation.flip)
    decode = fn.decoders.image_random_crop
    part = decode(encoded, **crop(look), **dali_graph.decoding(look, decode))
    left = fn.cast(mirror, dtype=types.FLOAT)
    edges = fn.stack(0.0, left), fn.stack(1.0, 1.0 - left)
    small = dali_graph.resized(part, look, *edges, roi_relative=True)
    planes = fn.crop_mirror_normalize(
        small, dtype=types.FLOAT, output_layout="CHW", mean=list(MEAN), std=list(STD)
    )
    return {READ: encoded, DECODE: part, RESIZE: small, NORMALISE: planes}


def apart(read: dali_graph.Read, look: Look) -> dict[str, Any]:
    """The same work done apart: decode the whole image, then cut the crop out of it."""
    encoded, _ = read()
    decode = fn.decoders.image
    whole = decode(encoded, **dali_graph.decoding(look, decode))
    small = fn.random_resized_crop(
        whole, size=look.pixels, **crop(look), **dali_graph.resampling(look)
    )
    return {READ: encoded, WHOLE: whole, CROP: small}


def crop(look: Look) -> dict[str, Any]:
    """The recipe's crop, as DALI's operators take it."""
    return {
        "random_area": list(look.augmentation.area),
        "random_aspect_ratio": list(look.augmentation.aspect),
        "num_attempts": 10,
    }


@pipeline_def
def outputs(steps: Callable[[], Any]) -> Any:
    """A graph that gives what `steps` adds to it: one output or several."""
    found = steps()
    return tuple(found) if isinstance(found, list) else found


def graph(steps: Callable[[], Any], batch: int = 1, seed: int = 0, threads: int = 1) -> Pipeline:
    """A graph on the CPU, built; nothing is made ahead, so that its time is all there is."""
    built = outputs(
        steps, batch_size=batch, num_threads=threads, device_id=None, seed=seed,
        exec_async=False, exec_pipelined=False,
    )  # fmt: skip
    built.build()
    return built


# -- what comes out --------------------------------------------------------------------------------


def shown(file: Path, look: Look, seed: int) -> dict[str, np.ndarray]:
    """The outputs of all operators for one image: bytes, then pixels, then float32 planes."""
    names: list[str] = []

    def steps() -> list[Any]:
        found = fused(reader([file]), look)
        names.extend(found)
        return list(found.values())

    made = graph(steps, seed=seed).run()
    return {name: np.array(values.at(0)) for name, values in zip(names, made, strict=True)}


def devices(look: Look) -> dict[str, tuple[str, str]]:
    """Where each operator runs in the graphs for the CPU and for a GPU, by name.

    The graphs are only written down, so no GPU is needed to know it.
    """
    found = []
    for gpu in (False, True):
        there = replace(look, gpu=gpu)
        with Pipeline(batch_size=1, num_threads=1, device_id=0 if gpu else None):
            nodes = fused(reader([Path("image.jpg")]), there)
        where = {name: node.device for name, node in nodes.items()}
        decoder = dali_graph.decoding(there, fn.decoders.image_random_crop)
        found.append(where | {DECODE: decoder["device"]})
    return {name: (found[0][name], found[1][name]) for name in found[0]}


def padded(files: Sequence[str], rank: int, size: int, batch: int) -> list[list[int]]:
    """The numbers of the files that a reader puts into the rows of a rank's batches, in one epoch,
    when it fills the last batch up."""

    def steps() -> Any:
        _, number = fn.readers.file(
            files=list(files), labels=list(range(len(files))), shard_id=rank, num_shards=size,
            pad_last_batch=True, name="reader",
        )  # fmt: skip
        return number

    built = graph(steps, batch)
    most = built.reader_meta("reader")["epoch_size_padded"] // size
    return [np.array(built.run()[0].as_array()).ravel().tolist() for _ in range(-(-most // batch))]


# -- how long it takes -----------------------------------------------------------------------------


def timed(
    graphs: Mapping[str, Callable[[], Any]], rounds: int = 7, batch: int = 32, batches: int = 2
) -> dict[str, list[float]]:
    """Milliseconds an image on one core, by name: every round times each graph once, by turns."""

    def measure(pipeline: Pipeline, doing: str) -> float:
        slot.line(doing)
        begin = time.perf_counter()
        for _ in range(batches):
            pipeline.run()
        return 1000 * (time.perf_counter() - begin) / (batch * batches)

    slot = output.Slot()
    measures = {name: partial(measure, graph(steps, batch)) for name, steps in graphs.items()}
    return in_turns(measures, rounds, slot, warm_up=1, limit_s=inf)  # the first fills caches


def step_times(
    files: Sequence[Path], look: Look, rounds: int, batch: int = 32
) -> dict[str, list[float]]:
    """Milliseconds an image until each operator is done: of the training graph, and of the graph
    that decodes whole images."""
    read = reader(files)
    ways: dict[str, Callable[[], Any]] = {
        name: lambda name=name: fused(read, look)[name]  # type: ignore[misc]
        for name in (READ, DECODE, RESIZE, NORMALISE)
    }
    ways |= {name: lambda name=name: apart(read, look)[name] for name in (WHOLE, CROP)}  # type: ignore[misc]
    return timed(ways, rounds, batch)


def saved(longer: Sequence[float], shorter: Sequence[float]) -> float:
    """The share of the time that is saved, 0 to 1: the median of the rounds."""
    return 1 - median(b / a for a, b in zip(longer, shorter, strict=True))

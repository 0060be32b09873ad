"""DALI's graph cut short after each of its stages: what is missing costs nothing.

For measuring: the difference between two of them is the time of a stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nvidia.dali import fn, pipeline_def

from rn50lib.config import Experiment
from rn50lib.pipelines.dali import Dali
from rn50lib.pipelines.dali_graph import Look, Read, decoding, training, validation
from rn50lib.pipelines.plan import Plan
from rn50lib.records.source import Source


@pipeline_def
def reading(read: Read, look: Look) -> tuple[Any, Any]:
    """The encoded images."""
    return read()


@pipeline_def
def decoded(read: Read, look: Look) -> tuple[Any, Any]:
    """The part of each image that is cut out, as large as it is."""
    encoded, label = read()
    if look.engine:
        return fn.decoders.image(encoded, **decoding(look, fn.decoders.image)), label
    decode = fn.decoders.image_random_crop
    area, aspect = list(look.augmentation.area), list(look.augmentation.aspect)
    images = decode(
        encoded, random_area=area, random_aspect_ratio=aspect, num_attempts=10,
        **decoding(look, decode),
    )  # fmt: skip
    return images, label


def shortened(done: Experiment, source: Source, split: str) -> Iterator[tuple[str, Iterator[Any]]]:
    """(stage, the batches that have gone so far, on one core, without end) for each stage.

    For validation, a crop as large as in training stands for the middle of an image.
    """
    alone = replace(done, data_nthreads=0, n=1)
    pipeline = Dali(alone, source, Plan(alone, source, split))
    whole = training if split == "train" else validation
    for name, define in (("read", reading), ("decode", decoded), ("augment", whole)):
        graph = pipeline.build(0, pipeline.gpu(), define)
        yield name, (graph.run() for _ in itertools.count())

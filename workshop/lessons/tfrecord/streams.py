"""What tf.data really gives: the record numbers of every rank, and when an angle is drawn.

`look` runs both in a process of its own, so that TensorFlow is not loaded into the notebook.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50lib.config import Experiment
from workshop import session
from workshop.worker import ask, pack, unpack


def numbers(experiment: Any, source: Any, epoch: int, rank: int, size: int) -> list[int]:
    """The numbers of the records that a rank trains on in an epoch, in its order."""
    from rn50lib.data.sampler import Plan
    from rn50lib.data.tfdata import TfData

    pipeline = TfData(experiment, source, Plan(experiment, source, "train", rank, size))
    records = pipeline.reader.records(epoch).with_options(pipeline.options())  # type: ignore[union-attr]
    found = records.map(lambda number, record: number).batch(256)
    return [int(number) for batch in found for number in batch]


# --- in the notebook ------------------------------------------------------------------------------


def look(experiment: Experiment, ranks: int = 2) -> list[list[list[int]]]:
    """The record numbers that TensorFlow gives each rank in epoch 0, in epoch 1, and in epoch 0
    again by pipelines that were built anew: a list by epoch of lists by rank.

    Profile and data come from the session. Raises UserError if it fails.
    """
    given = replace(experiment, **session.session_fields(experiment.given()))
    given = replace(given, backend="tensorflow", data_format="tfrecord", n=1)
    if given.profile == "gpu":  # the process that reads sees none
        open_again: dict[str, Any] = {"profile": "cpu", "dtype": None, "loss_scale": None}
        given = replace(given, **open_again)
    config = session.resolve(given)
    env = launch.rank_environment(config) | {"CUDA_VISIBLE_DEVICES": ""}
    found: list[list[list[int]]] = ask(
        "workshop.lessons.tfrecord.streams:read", env, "TensorFlow reads",
        config=pack(config), ranks=ranks,
    )  # fmt: skip
    return found


# --- in the process -------------------------------------------------------------------------------


def read(config: dict[str, Any], ranks: int) -> list[list[list[int]]]:
    """What `look` returns."""
    from rn50lib.data.source import open_source

    done: Any = replace(unpack(config), benchmark_iters=None)
    source = open_source(Path(done.data_root), "train", "tfrecord")
    return [
        [numbers(done, source, epoch, rank, ranks) for rank in range(ranks)] for epoch in (0, 1, 0)
    ]

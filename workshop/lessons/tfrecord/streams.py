"""What tf.data really gives: the record numbers of every rank, and when an angle is drawn.

`look` runs both in a process of its own, so that TensorFlow is not loaded into the notebook.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rn50lib import launch
from rn50lib.config import Experiment
from workshop import session
from workshop.worker import ask, pack, unpack

DEGREES = 10.0  # the slides' limit, to either side


# --- what the lesson shows ------------------------------------------------------------------------


def drawn_by_numpy(pictures: int) -> list[float]:
    """The angles that pictures get where Python draws the angle, as on the slides."""
    import numpy as np
    import tensorflow as tf

    def angle(_: Any) -> Any:
        degrees = np.random.random() * 2 * DEGREES - DEGREES  # Python: once, for the graph
        return tf.constant(degrees)

    return [float(x) for x in tf.data.Dataset.range(pictures).map(angle)]


def drawn_by_tensorflow(pictures: int) -> list[float]:
    """The same where an operation of the graph draws it."""
    import tensorflow as tf

    def angle(number: Any) -> Any:
        return tf.random.stateless_uniform([], [0, number], -DEGREES, DEGREES)  # for each picture

    return [float(x) for x in tf.data.Dataset.range(pictures).map(angle)]


def numbers(experiment: Any, source: Any, epoch: int, rank: int, size: int) -> list[int]:
    """The numbers of the records that a rank trains on in an epoch, in its order."""
    from rn50lib.pipelines.plan import Plan
    from rn50lib.pipelines.tf_data import TfData

    pipeline = TfData(experiment, source, Plan(experiment, source, "train", rank, size))
    records = pipeline.reader.records(epoch).with_options(pipeline.options())  # type: ignore[union-attr]
    found = records.map(lambda number, record: number).batch(256)
    return [int(number) for batch in found for number in batch]


# --- in the notebook ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Streams:
    """`epochs[e][r]`: the record numbers of rank r in epoch e; `again` is epoch 0 from
    pipelines that were built anew. The angles are degrees, one per picture."""

    epochs: list[list[list[int]]]
    again: list[list[int]]
    by_numpy: list[float]
    by_tensorflow: list[float]


def look(experiment: Experiment, ranks: int = 2, pictures: int = 6) -> Streams:
    """Ask TensorFlow. Profile and data come from the session. Raises UserError if it fails."""
    given = replace(experiment, **session.session_fields(experiment.given()))
    given = replace(given, backend="tensorflow", data_format="tfrecord", n=1)
    if given.profile == "gpu":  # the process that reads sees none
        open_again: dict[str, Any] = {"profile": "cpu", "dtype": None, "loss_scale": None}
        given = replace(given, **open_again)
    config = session.resolve(given)
    env = launch.rank_environment(config) | {"CUDA_VISIBLE_DEVICES": ""}
    found = ask(
        "workshop.lessons.tfrecord.streams:read", env, "TensorFlow reads",
        config=pack(config), ranks=ranks, pictures=pictures,
    )  # fmt: skip
    return Streams(**found)


# --- in the process -------------------------------------------------------------------------------


def read(config: dict[str, Any], ranks: int, pictures: int) -> dict[str, Any]:
    """The fields of `Streams`."""
    import numpy as np

    from rn50lib.records.source import open_source

    done: Any = replace(unpack(config), benchmark_iters=None)
    source = open_source(Path(done.data_root), "train", "tfrecord")

    def epoch(number: int) -> list[list[int]]:
        return [numbers(done, source, number, rank, ranks) for rank in range(ranks)]

    np.random.seed(4)  # gives an angle that one sees
    found = Streams(
        epochs=[epoch(0), epoch(1)],
        again=epoch(0),
        by_numpy=drawn_by_numpy(pictures),
        by_tensorflow=drawn_by_tensorflow(pictures),
    )
    return vars(found)

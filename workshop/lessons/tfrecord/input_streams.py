"""What tf.data really gives: the record numbers of every rank, and when an angle is drawn.

`look` runs both in a process of its own, so that TensorFlow is not loaded into the notebook.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rn50lib import launch
from rn50lib.config import Experiment, from_json, resolve, to_json
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from workshop import output, session

DEGREES = 10.0  # the slides' limit, to either side
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}  # no GPU is needed to read


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
    from rn50lib.pipelines.tf_data import TfData

    pipeline = TfData(experiment, source, "train", len(source), rank, size)
    records = pipeline.reader.records(epoch).with_options(pipeline.options())  # type: ignore[union-attr]
    found = records.map(lambda number, record: number).batch(256)
    return [int(number) for batch in found for number in batch]


# --- in the notebook ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """`epochs[e][r]`: the record numbers of rank r in epoch e; `again` is epoch 0 from
    pipelines that were built anew. The angles are degrees, one per picture."""

    epochs: list[list[list[int]]]
    again: list[list[int]]
    by_numpy: list[float]
    by_tensorflow: list[float]


def look(experiment: Experiment, ranks: int = 2, pictures: int = 6) -> Look:
    """Ask TensorFlow. Profile and data come from the session. Raises UserError if it fails."""
    asked = replace(experiment, **session.session_fields(experiment.given()))
    asked = replace(asked, backend="tensorflow", data_format="tfrecord")
    if asked.profile == "gpu":  # the process that reads sees none
        open_again: dict[str, Any] = {"profile": "cpu", "dtype": None, "loss_scale": None}
        asked = replace(asked, **open_again)
    words = [str(ranks), str(pictures), to_json(asked)]
    slot = output.Slot()
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "workshop.lessons.tfrecord.input_streams", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=launch.with_library(dict(os.environ)) | ENVIRONMENT | {launch.PARENT: str(os.getpid())},
    )
    try:
        while True:
            try:
                said, errors = process.communicate(timeout=2.0)
                break
            except subprocess.TimeoutExpired:
                line = f"TensorFlow reads: {time.monotonic() - begin:.0f} s"
                slot.html(f'<div class="dim">{line}</div>', line)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"the process that reads the records has ended: {last}")
    line = f"read in {time.monotonic() - begin:.0f} s"
    slot.html(f'<div class="dim">{line}</div>', line)
    return Look(**json.loads(said.splitlines()[-1]))


def main(argv: list[str]) -> int:
    """Prints a `Look` as one line of JSON."""
    import numpy as np

    from rn50lib.records.source import open_source

    launch.die_with_parent()
    ranks, pictures = map(int, argv[:2])
    asked = from_json(argv[2])
    source = open_source(Path(str(asked.data_root)), "train", "tfrecord")
    done = resolve(asked, machine(), len(source.classes)).experiment
    done = replace(done, benchmark_iters=None)  # type: ignore[assignment]

    def epoch(number: int) -> list[list[int]]:
        return [numbers(done, source, number, rank, ranks) for rank in range(ranks)]

    np.random.seed(4)  # gives an angle that one sees
    found = Look(
        epochs=[epoch(0), epoch(1)],
        again=epoch(0),
        by_numpy=drawn_by_numpy(pictures),
        by_tensorflow=drawn_by_tensorflow(pictures),
    )
    print(json.dumps(vars(found)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The process behind `step_memory.measure`: a training step, and the most memory that it had.

python -m workshop.lessons.precision.worker.memory DTYPE:BATCH,... FLAGS...
"""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import replace

import torch

from rn50lib import comm, launch
from rn50lib.backends import build_step
from rn50lib.config import Experiment, from_json
from rn50lib.pipelines import open_pipeline
from workshop import measuring


def main(argv: list[str]) -> int:
    launch.die_with_parent()
    done = from_json(argv[1])
    found = []
    for point in argv[0].split(","):
        dtype, batch = point.split(":")
        measuring.tell(f"a step in {dtype} with {batch} images")
        this = replace(done, dtype=dtype, batch_size=int(batch))
        found.append(on_gpu(this) if torch.cuda.is_available() else in_a_child(this))
    measuring.answer(found)
    return 0


def take_step(done: Experiment) -> None:
    """A training step; on a GPU the second one, because in the first one cuDNN tries its algorithms
    with all the memory that each of them would like."""
    step = build_step(done, done.to_network(), comm.connect())
    batch = next(open_pipeline(done, None, "train", 0, 1).epoch(0))
    step.train_step(batch, lr=0.0)  # momentum is there from the beginning
    step.read_sums()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step.train_step(batch, lr=0.0)
        step.read_sums()


def on_gpu(done: Experiment) -> int:
    """Bytes that were allocated at once, at most."""
    gc.collect()  # the step before this one
    take_step(done)
    return int(torch.cuda.max_memory_allocated())


def in_a_child(done: Experiment) -> int:
    """Bytes that a copy of this process had in memory at once, at most.

    The copy spares the seconds of importing PyTorch again; no thread has computed here yet, so that
    it is safe to make one.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            take_step(done)
            status = 0
        finally:
            os._exit(status)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"the step in {done.dtype} with {done.batch_size} images did not end")
    return usage.ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

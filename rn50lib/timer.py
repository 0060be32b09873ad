"""How long the phases of a run take, and what the device has added up in them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rn50lib import hooks as overrides
from rn50lib.checkpoint import Position
from rn50lib.config import Experiment
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.preemption import Stop
from rn50lib.progress import Progress
from rn50lib.report import Report
from rn50lib.train_step import Step


@dataclass
class Run:
    """What the phases of a run share."""

    experiment: Experiment
    comm: Comm
    step: Step
    progress: Progress
    report: Report
    identity: dict[str, Any]  # what a checkpoint of it must have in common with it
    stop: Stop
    position: Position = field(default_factory=Position)
    seconds: dict[str, float] = field(  # where the wall time of the loop went, by part
        default_factory=lambda: dict.fromkeys(("data", "step", "loop"), 0.0)
    )


class Timer:
    """Times a phase and reads the device's sums.

    It reads after the first step, every `disp_batches` and at the end. The first iteration of an
    epoch fills pipelines and caches; it is left out of `time`.
    """

    def __init__(self, run: Run, phase: str, epoch: int, steps: int, before: int = 0) -> None:
        """`steps` are to be done, after `before` that were done before the run was taken up."""
        self.run, self.phase, self.epoch, self.steps = run, phase, epoch, steps
        self.before = before
        self.total, self.window = np.zeros(4), np.zeros(4)
        if phase == "train" and run.comm.rank == 0:
            self.total += run.position.sums
        self.finished = self.read_at = 0
        self.images = self.first_images = self.read_images = 0  # of this rank, without padding
        self.data_s = self.step_s = 0.0
        run.progress.start(phase, epoch, run.experiment.num_epochs, before + steps, before)
        self.begin = self.read_time = self.first_time = time.perf_counter()

    def batches(self, source: Iterator) -> Iterator:
        """The batches of `source`; the time that waiting for them takes is counted apart."""
        before = time.perf_counter()
        for batch in source:
            self.handed_over = time.perf_counter()
            self.data_s += self.handed_over - before
            self.images += batch.valid
            yield batch
            before = time.perf_counter()

    def step_done(self, i: int, lr: float | None) -> None:
        self.step_s += time.perf_counter() - self.handed_over
        self.finished = i + 1
        self.run.progress.step(self.data_s)
        if i == 0:
            self.read(tell=False)
            self.first_time = self.read_time = time.perf_counter()
            self.read_at, self.first_images = 1, self.images
            self.read_images = self.images
        elif self.finished % self.run.experiment.disp_batches == 0:
            self.read(lr)

    def read(self, lr: float | None = None, tell: bool = True) -> None:
        before = time.perf_counter()
        sums = self.run.step.read_sums()
        now = time.perf_counter()
        self.step_s += now - before  # on a GPU this waits for the steps in flight
        self.total += sums
        self.window += sums
        if not math.isfinite(sums[0]):
            raise UserError(
                f"the loss is {sums[0]} in epoch {self.epoch + 1}, step {self.finished}: training"
                " has diverged; lower --lr, lengthen --warmup-epochs or use --dtype float32"
            )
        if self.finished > self.read_at and tell:
            seen = (self.images - self.read_images) * self.run.comm.size
            loss, top1, _, examples = self.window
            values: dict[str, float | None] = {
                "loss": loss / examples if examples else None,
                "top1": 100 * top1 / examples if examples else None,
                "ips": seen / (now - self.read_time),
                "lr": lr,
            }
            scaling = self.run.step.scaling() if self.phase == "train" else {}
            if scaling:
                values["loss_scale"] = scaling["scale"]
            step = self.before + self.finished
            self.run.progress.reading(step, values)
            self.window = np.zeros(4)
            self.read_at, self.read_time = self.finished, now
            self.read_images = self.images

    def sums_of_all(self) -> list[float]:
        """What the phase has added up so far, over all ranks."""
        self.read(tell=False)
        (sums,) = self.run.comm.sum([self.total])
        return [float(value) for value in sums]

    def finish(self) -> dict[str, float | None]:
        """Metrics over all workers, `time` in seconds per iteration and `total_ips`."""
        self.read(tell=self.phase == "train")
        now = time.perf_counter()
        self.run.progress.stop()
        metrics = dict(overrides.get("metric_sums")(self.total, self.run.comm))
        if self.finished > 1:
            seconds = now - self.first_time
            (images,) = self.run.comm.sum([np.array([self.images - self.first_images])])
            metrics["time"] = seconds / (self.finished - 1)
            metrics["total_ips"] = int(images[0]) / seconds
        if self.phase == "train":
            self.run.seconds["data"] += self.data_s
            self.run.seconds["step"] += self.step_s
            self.run.seconds["loop"] += now - self.begin - self.data_s - self.step_s
        return metrics

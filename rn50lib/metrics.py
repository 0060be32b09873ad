"""Loss, top-1 and top-5 over all workers, and images per second.

Workers exchange sums and divide last: a mean of means is wrong if they have different numbers of
images.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.report import SUMS
from rn50lib.train_step import TrainStep

if TYPE_CHECKING:
    from rn50lib.progress import Progress

NO_SUMS = (0.0,) * len(SUMS)
DIVERGED = "diverged; lower --lr, lengthen --warmup-epochs or use --dtype float32"


def metric_sums(sums: np.ndarray, comm: Comm) -> dict[str, float | None]:
    """Return loss (nats), top-1 and top-5 (per cent) over all workers, from one worker's sums.

    `sums` is ordered as SUMS. Without images every metric is None.
    """
    total = comm.sum(np.asarray(sums, np.float64))
    found = dict(zip(SUMS, map(float, total), strict=True))
    examples = found.pop("examples")
    if not examples:
        return dict.fromkeys(found)
    return {name: (value if name == "loss" else 100 * value) / examples
            for name, value in found.items()}  # fmt: skip


class Meter:
    """The metrics and the speed of one phase of an epoch.

    It reads the device's sums after the first step, every `every` steps and at the end. `time`
    leaves out the first step, which fills pipelines and caches. `sums` are those of `done` steps
    before the run was resumed.
    """

    def __init__(
        self,
        step: TrainStep,
        comm: Comm,
        progress: Progress,
        every: int,
        done: int = 0,
        sums: Sequence[float] = NO_SUMS,
    ) -> None:
        self.step, self.comm, self.progress, self.every = step, comm, progress, every
        self.done, self.steps, self.read_at = done, 0, 0
        self.total = np.array(sums if comm.rank == 0 else NO_SUMS)
        self.window = np.zeros(len(SUMS))
        self.images = self.first_images = self.read_images = 0  # of this rank, without padding
        self.data_s = self.step_s = 0.0
        self.lr: float | None = None  # of the latest step
        self.begin = self.end = self.read_time = self.first_time = time.perf_counter()

    def batches(self, source: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of `source`, and time the wait for each."""
        before = time.perf_counter()
        for batch in source:
            self.handed_over = time.perf_counter()
            self.data_s += self.handed_over - before
            self.images += batch.valid
            yield batch
            before = time.perf_counter()

    def step_done(self, lr: float | None = None) -> None:
        """Count a step; read the sums if they are due."""
        self.step_s += time.perf_counter() - self.handed_over
        self.steps, self.lr = self.steps + 1, lr
        self.progress.step()
        if self.steps == 1:
            self.read()
            self.first_time, self.first_images = time.perf_counter(), self.images
            self.read_at, self.read_time, self.read_images = 1, self.first_time, self.images
        elif self.steps % self.every == 0:
            self.read(show=True)

    def read(self, show: bool = False) -> None:
        """Add the device's sums to the total; `show` those since the last reading."""
        before = time.perf_counter()
        sums = self.step.pop_metrics()
        now = time.perf_counter()
        self.end = now
        self.step_s += now - before  # on a GPU this waits for the steps in flight
        self.total += sums
        self.window += sums
        if not math.isfinite(sums[0]):
            raise UserError(
                f"the loss is {sums[0]} in epoch {self.progress.epoch + 1}, step {self.steps}:"
                f" training has {DIVERGED}"
            )
        if not show or self.steps == self.read_at:
            return
        loss, top1, *_, examples = self.window
        values: dict[str, float | None] = {
            "loss": loss / examples if examples else None,
            "top1": 100 * top1 / examples if examples else None,
            "ips": (self.images - self.read_images) * self.comm.size / (now - self.read_time),
            "lr": self.lr,
        }
        if self.progress.phase == "train" and (scale := self.step.loss_scale_state()):
            values["loss_scale"] = scale["scale"]
        self.progress.reading(self.done + self.steps, values)
        self.window = np.zeros(len(SUMS))
        self.read_at, self.read_time, self.read_images = self.steps, now, self.images

    def sums_of_all(self) -> list[float]:
        """Return the sums of the phase so far, over all ranks."""
        self.read()
        return [float(value) for value in self.comm.sum(self.total)]

    def finish(self, show: bool) -> dict[str, float | None]:
        """Return the metrics over all workers, `time` (s per iteration) and `total_ips`."""
        self.read(show=show)
        self.end = time.perf_counter()
        self.progress.stop()
        metrics = metric_sums(self.total, self.comm)
        if self.steps > 1:
            own = np.array([self.images - self.first_images, self.end - self.first_time])
            images, seconds = self.comm.stack(own).T  # steps without work do not wait for others
            metrics["time"] = float(seconds.max()) / (self.steps - 1)
            metrics["total_ips"] = float(images.sum() / seconds.max())
        return metrics

    def seconds(self) -> dict[str, float]:
        """Return the seconds up to the last reading by part: input, step, and the loop itself."""
        loop = self.end - self.begin - self.data_s - self.step_s
        return {"data": self.data_s, "step": self.step_s, "loop": loop}

"""Time the parts of an experiment with runs of a few seconds.

The loader alone runs with a simulated step that costs nothing, the step alone with synthetic
images, both together as in `rn50 run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50.diagnose.model import FREE
from rn50lib.config import FLAGS, TrainConfig, scoped
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from rn50lib.lifetime import PARENT, stop
from rn50lib.report import write_json

LIMIT_S = 600.0  # a run of a few seconds that takes longer hangs
POLL_S = 0.2
BATCHES_AHEAD = 4  # at most: per process of PyTorch's loader, of all threads of the others
READINGS = 20  # of a simulated step, in a measurement
MEASURED: dict[str, Any] = {  # a run without outputs that goes on until it is stopped
    **{name: FLAGS[name].default for name in scoped("output")},
    "no_metrics": True, "profile": "auto", "num_epochs": 100_000,
}  # fmt: skip
SINGLE: dict[str, Any] = {  # one worker of many, by itself
    **dict.fromkeys(scoped("group")), "n": 1, "comm": "local"
}  # fmt: skip


def measured(config: TrainConfig) -> TrainConfig:
    """Return the same work as it is measured."""
    return replace(config, **MEASURED, no_val=not config.only_inference)


def start_run(values: dict[str, Any], folder: Path) -> subprocess.Popen:
    """Start `rn50 run` with these values; its folder also gets config.json and log.txt.

    Its launcher leads a process group, and its workers end with it.
    """
    write_json(folder / "config.json", values)
    command = [*launch.program("run"), "--run-dir", str(folder)]
    with open(folder / "log.txt", "ab") as output:
        return subprocess.Popen(
            [*command, "--config", str(folder / "config.json")], stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env=launch.with_library(dict(os.environ)) | {PARENT: str(os.getpid())},
        )  # fmt: skip


class Bench:
    """Times parts of experiments for about `seconds` each; rates are images/s over all workers.

    Equal parts are timed once: an experiment that differs only in its input has the same step.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.results: dict[str, float] = {}

    def loader(self, config: TrainConfig) -> float:
        """Return the rate of the loader alone, FREE for synthetic images."""
        if config.loader == "synthetic":
            return FREE
        asked = replace(config, step=1e9)
        return self.rate(f"the loader alone ({config.loader})", asked, ignored=scoped("step"))

    def step(self, config: TrainConfig) -> float:
        """Return the rate of the step alone, with its exchange of gradients."""
        asked = replace(config, loader="synthetic", num_examples=None)
        return self.rate(f"the step alone ({config.dtype})", asked, ignored=scoped("input"))

    def without_exchange(self, config: TrainConfig, compute: float) -> float:
        """Return the rate of single workers that run at the same time and exchange nothing.

        They share the machine like the workers of one run, so the difference is the exchange. With
        GPUs one worker is enough.
        """
        if config.n == 1 or not config.trains:
            return compute
        copies = 1 if machine().gpus else config.n
        asked = replace(config, **SINGLE, loader="synthetic", num_examples=None)
        rate = self.rate("the same workers without an exchange", asked, (), copies)
        return max(compute, rate * config.n / copies)

    def both(self, config: TrainConfig) -> float:
        if config.loader == "synthetic":
            return self.step(config)
        return self.rate(f"both together ({config.loader}, {config.dtype})", config)

    def rate(
        self, what: str, asked: TrainConfig, ignored: tuple[str, ...] = (), copies: int = 1
    ) -> float:
        """Return the summed rate of `copies` runs at the same time.

        It is measured unless an experiment that differs only in `ignored` fields was measured.
        """
        fields = {name: value for name, value in asked.to_dict().items() if name not in ignored}
        key = f"{copies} {ignored} {fields}"
        if key not in self.results:
            launch.say(f"measuring {what} …")
            folders = [self.folder / f"{len(self.results):02d}-{copy}" for copy in range(copies)]
            self.results[key] = self.time_runs(asked, folders)
        return self.results[key]

    def time_runs(self, asked: TrainConfig, folders: list[Path]) -> float:
        """Start a run in each folder, and stop them all when each has been timed long enough."""
        every = 2
        if asked.step is not None:  # may be so fast that readings would take a part of the time
            every += int(min(asked.step, 1e4) * self.seconds / asked.global_batch / READINGS)
        asked = replace(asked, disp_batches=every)
        begin = time.monotonic()
        with contextlib.ExitStack() as stack:
            jobs = []
            for folder in folders:
                folder.mkdir(parents=True)
                jobs.append(start_run(asdict(asked), folder))  # complete: it chooses nothing
                stack.callback(stop, jobs[-1], launch.SAVE_S + launch.GRACE_S)
            while True:
                rates = [steady_rate(folder, asked, self.seconds) for folder in folders]
                if all(rates):
                    return sum(rates)
                for job, folder in zip(jobs, folders, strict=True):
                    if job.poll() is not None:
                        error = last_line((folder / "log.txt").read_text(errors="replace"))
                        raise UserError(f"a run to be measured failed: {error} (see {folder})")
                if time.monotonic() - begin > LIMIT_S:
                    raise UserError(f"the run in {folders[0]} took over {LIMIT_S:g} s")
                time.sleep(POLL_S)


def steady_rate(folder: Path, config: TrainConfig, seconds: float) -> float:
    """Return a run's images per second, 0 before it has been timed for this long.

    Batches that were made ahead of an epoch's first step are left out, and as many at its end, when
    nothing is left to load. Raises UserError if epochs have one step.
    """
    in_processes = config.loader == "native" and config.backend == "torch"
    edge = BATCHES_AHEAD * max(1, config.data_nthreads if in_processes else 1)
    edge = 1 if config.loader == "synthetic" else edge
    phase, lines = "val" if config.only_inference else "train", []
    with contextlib.suppress(OSError):
        for text in (folder / "progress.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that is still being written
                lines.append(json.loads(text))
    epochs = [line[f"{phase}.total_ips"] for line in lines if line["phase"] == "epoch"]
    lines = [line for line in lines if line["phase"] == phase]
    images, total = 0.0, 0.0
    for before, line in zip(lines, lines[1:], strict=False):
        skipped = min(edge, line["steps"] // 3)
        inside = before["epoch"] == line["epoch"] and before["step"] >= skipped
        if inside and line["step"] <= line["steps"] - (skipped if skipped > 1 else 0):
            images += (line["step"] - before["step"]) * config.global_batch
            total += line["seconds"] - before["seconds"]
    if epochs and not lines:
        raise UserError(
            "an epoch has one iteration, which is not timed: use a smaller -b or more images"
        )
    if not images and epochs:  # too short for readings inside
        per_epoch = lines[-1]["steps"] * config.global_batch
        images, total = per_epoch * len(epochs), sum(per_epoch / rate for rate in epochs if rate)
    return images / total if total >= seconds else 0.0


def last_line(text: str) -> str:
    """Return the last error in a run's output, or its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
    errors = [line for line in lines if "error: " in line]
    message = errors[-1].split("error: ", 1)[1] if errors else lines[-1]
    return f"{message} {lines[-1]}" if message.endswith(":") else message  # a traceback follows

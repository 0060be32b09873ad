"""Runs one part of an experiment at a time, as `rn50 run` would run it, and reads what it wrote.

The loader alone is `--test-io`, the step alone is `--loader synthetic`, both together are the
experiment itself; each is a run of a few seconds in processes of its own, with the threads and the
allocator of every run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50 import background, launch
from rn50.autoconfig import Given
from rn50lib.config import Experiment
from rn50lib.errors import UserError
from rn50lib.hardware import machine

MIN_STEPS, MAX_STEPS = 8, 400  # steps of a measurement
LIMIT_S = 600.0  # a run of a few seconds that takes so long hangs
BATCHES_AHEAD = 4  # per loader worker: `prefetch_factor`
POLL_S = 0.5  # a run that goes on is looked at so often
LINE = re.compile(r"epoch \d+: ([0-9.]+) img/s")
NO_FILES: dict[str, Any] = {  # what a measurement neither writes nor reads
    "model_prefix": None, "load_epoch": None, "resume": False, "keep": None, "report": None,
    "logger": (), "profile_trace": None, "timeline": None,
    "max_restarts": 0, "checkpoint_steps": None, "test_io": False,
    "no_metrics": True, "profile": "auto",
}  # fmt: skip
ALONE: dict[str, Any] = {  # one worker of many, by itself
    "n": 1, "comm": None, "launcher": None, "hosts": None, "bind": None, "comm_timeout": None,
}  # fmt: skip


def bare(done: Experiment) -> Experiment:
    """The experiment as it is measured: the same work, and no files."""
    return replace(done, **NO_FILES, no_val=not done.only_inference)


def steps_for(seconds: float, ips: float, batch: int) -> int:
    """Steps that take so many seconds at an expected speed."""
    return int(min(MAX_STEPS, max(MIN_STEPS, seconds * ips / batch)))


def loader_alone(done: Experiment, steps: int, epoch_steps: int, folder: Path) -> float:
    """Images per second of `--test-io`: every worker's loader, without a step."""
    each, epochs = spread(steps, epoch_steps)
    asked = replace(bare(done), test_io=True, step=None, benchmark_iters=each, num_epochs=epochs)
    with running(asked.to_dict(), folder) as ended:
        text = ended()
        rates = [float(rate) for rate in LINE.findall(text)]
        if not rates:
            raise UserError(f"the loader alone was too short to time: {last_line(text)}")
        # a line per worker and epoch; the workers load at the same time
        return done.n * len(rates) / sum(1 / rate for rate in rates)


def together(
    done: Experiment, steps: int, epoch_steps: int, folder: Path, limit_s: float = LIMIT_S
) -> float:
    """Images per second of the experiment itself, without the edges of its epochs.

    The batches that were made ahead while an epoch's first step took its time are left out, and as
    many at its end, when there is nothing left to load. A run that turns out to be slow is ended
    when it has been timed for `limit_s` seconds.
    """
    each, epochs = spread(steps, epoch_steps)
    asked = replace(
        bare(done), benchmark_iters=each, num_epochs=epochs, disp_batches=max(1, each // 12)
    )
    with running(asked.to_dict(), folder) as ended:
        edge = 1
        if done.loader != "synthetic":
            edge = min(BATCHES_AHEAD * max(1, done.data_nthreads), each // 3)
        slow = functools.partial(timed_for, folder, edge, limit_s)
        whole = ended(slow)
        phase = "val" if done.only_inference else "train"
        last = each - edge if whole else each
        rates = steady(progress(folder, phase), edge, last, done.global_batch)
        if whole and not rates:
            report = json.loads((folder / "report.json").read_text())
            rates = [rate for rate in report["metrics"].get(f"{phase}.total_ips", []) if rate]
        if not rates:
            raise UserError("the run was too short to time: give more --seconds, or a smaller -b")
        return len(rates) / sum(1 / rate for rate in rates)


def without_exchange(done: Experiment, steps: int, folder: Path) -> float:
    """Images per second of as many single workers, at the same time, which exchange nothing.

    They share the machine as the workers of one run would: what is left of the difference to that
    run is the exchange. With GPUs one worker stands for all.
    """
    asked = {**bare(done).to_dict(), **ALONE, "loader": "synthetic", "benchmark_iters": steps,
             "num_epochs": 1}  # fmt: skip
    copies = 1 if machine().gpus else done.n
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(running(asked, folder / str(copy))) for copy in range(copies)
        ]
        total = 0.0
        for copy, ended in enumerate(started):
            ended()
            report = json.loads((folder / str(copy) / "report.json").read_text())
            phase = "val" if done.only_inference else "train"
            total += report["metrics"][f"{phase}.total_ips"][0]
    return total * done.n / copies


def spread(steps: int, epoch_steps: int) -> tuple[int, int]:
    """(steps of an epoch, epochs) for so many steps, with whole epochs where one is too short."""
    each = min(steps, epoch_steps)
    return each, max(1, -(-steps // each)) if each < steps else 1


def timed_for(folder: Path, edge: int, limit_s: float) -> bool:
    """Whether a run that still goes on has been timed for so many seconds, in a few readings."""
    lines = [line for line in progress(folder) if line.get("step", 0) >= edge]
    return len(lines) > 4 and lines[-1]["seconds"] - lines[0]["seconds"] > limit_s


def progress(folder: Path, phase: str | None = None) -> list[dict[str, Any]]:
    """The readings of a run so far: all of them, or of 'train' or 'val'."""
    found = []
    with contextlib.suppress(OSError):
        for text in (folder / "progress.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that is still being written
                line = json.loads(text)
                if phase is None or line["phase"] == phase:
                    found.append(line)
    return found


def steady(lines: list[dict[str, Any]], first: int, last: int, batch: int) -> list[float]:
    """Images per second between the steps `first` and `last` of each epoch, from the readings."""
    rates = []
    for epoch in sorted({line["epoch"] for line in lines}):
        inside = [
            line for line in lines if line["epoch"] == epoch and first <= line["step"] <= last
        ]
        if len(inside) > 1:
            seconds = inside[-1]["seconds"] - inside[0]["seconds"]
            if seconds > 0:
                rates.append((inside[-1]["step"] - inside[0]["step"]) * batch / seconds)
    return rates


@contextlib.contextmanager
def running(asked: Given, folder: Path) -> Iterator[Any]:
    """A started run as its `ended`.

    `ended()` waits and returns what the run printed. `ended(enough)` returns whether the run came
    to its end: it is stopped when `enough()` says so. Raises UserError with the run's own error
    where it fails; leaving early ends all of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    job = background.start(asked, folder, log=log)

    def ended(enough: Callable[[], bool] | None = None) -> Any:
        begin = time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = job.wait(POLL_S)
                break
            if enough and enough():
                job.stop()
                return False
            if time.monotonic() - begin > LIMIT_S:
                job.stop()
                raise UserError(f"{' '.join(job.command[3:])} took over {LIMIT_S:g} s")
        text = log.read_text(errors="replace")
        if status:
            raise UserError(f"a run that was to be measured failed: {last_line(text)} (see {log})")
        return True if enough else text

    try:
        yield ended
    finally:
        if job.poll() is None:
            job.stop()


def last_line(text: str) -> str:
    """The last line of a run: its error where there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"]
    errors = [line for line in lines if "error: " in line]
    message = errors[-1].split("error: ", 1)[1] if errors else lines[-1]
    return f"{message} {lines[-1]}" if message.endswith(":") else message  # a traceback follows


def probe(done: Experiment, seconds: float) -> dict[str, Any]:
    """What `rn50.diagnose.probe` finds: the device's peak, the stages of the input."""
    try:
        process = subprocess.run(
            [sys.executable, "-m", "rn50.diagnose.probe", f"{seconds:g}",
            json.dumps(bare(done).to_dict())],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
            env=launch.rank_environment(done),
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UserError(f"the input cannot be measured: it took over {LIMIT_S:g} s") from error
    if process.returncode:
        raise UserError(f"the input cannot be measured: {last_line(process.stderr)}")
    return json.loads(process.stdout.splitlines()[-1])

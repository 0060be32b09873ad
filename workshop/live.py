"""A running job in a cell: a bar, and curves of loss, top-1, speed, learning rate and load.

The figure is redrawn in place during the run and keeps its last state, so an executed notebook and
its page show the same. The readings come from the run's progress.jsonl, psutil and NVML.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import psutil

from rn50lib import hardware
from workshop import output

POLL_S = 0.5
DRAW_S = 2.5  # drawing takes a fifth of a second of a core that the run could use


Run = Any  # a `workshop.runs.Run`, which shows itself by this file


@dataclass
class Readings:
    """Utilisation over time: CPU, memory and GPUs.

    `seconds` count from the run's start, `cores` are percent per core that this process may use,
    `memory` is that of the run's processes in bytes, and `gpus` are (percent busy, bytes, watts).
    `loop_began` is the start of the training loop, from which progress.jsonl counts, in `seconds`.
    """

    seconds: list[float] = field(default_factory=list)
    cores: list[list[float]] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    gpus: list[list[tuple[float, int, float]]] = field(default_factory=list)
    loop_began: float = float("inf")

    def add(self, seconds: float, pid: int, handles: Sequence[Any]) -> None:
        """Read everything now.

        Args:
            seconds: Time since the run's start.
            pid: The main process of the run.
            handles: NVML's handles of its GPUs.
        """
        load = psutil.cpu_percent(percpu=True)
        own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(load))
        self.seconds.append(seconds)
        self.cores.append([load[i] for i in sorted(own) if i < len(load)])
        self.memory.append(memory_of(pid))
        self.gpus.append([])
        with contextlib.suppress(Exception):  # a MIG slice has no utilisation
            self.gpus[-1] = [read_gpu(handle) for handle in handles]


def memory_of(pid: int) -> float:
    """Return the bytes of a process and of those that it started; shared pages count once (PSS)."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        run = psutil.Process(pid)
        for process in [run, *run.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                full = process.memory_full_info()
                total += getattr(full, "pss", full.uss)  # only Linux has PSS
    return total


def gpu_handles(workers: int) -> list[Any]:
    """Return NVML's handles of the GPUs of a run with this many workers.

    They are the first ones that CUDA_VISIBLE_DEVICES leaves; none if NVML does not answer.
    """
    with contextlib.suppress(Exception):  # NVML raises its own errors
        import pynvml

        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in hardware.gpus()[:workers]]
    return []


def read_gpu(handle: Any) -> tuple[float, int, float]:
    """Return percent busy, bytes of memory and watts of a GPU."""
    import pynvml

    busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    return busy, memory, pynvml.nvmlDeviceGetPowerUsage(handle) / 1000


def watch(run: Run) -> None:
    """Show the run in this cell until it ends. Interrupting the cell stops the run."""
    readings, handles = Readings(), None
    psutil.cpu_percent(percpu=True)  # the first call only sets the start
    bar, plots, words = output.Slot(), output.Slot(), output.Slot()
    drawn = -DRAW_S
    try:
        while True:
            ended = not run.running  # asked before the files are read: no reading is missed
            lines = run.new_progress
            if lines and handles is None:  # by now the run has chosen how many workers it has
                handles = gpu_handles(run.resolved["experiment"]["n"])
            readings.add(run.seconds, run.pid, handles or ())
            if lines:  # the newest line is at most one poll old: the smallest gap is the nearest
                gap = readings.seconds[-1] - lines[-1]["seconds"]
                readings.loop_began = max(0.0, min(readings.loop_began, gap))
            show_bar(bar, run, lines, ended)
            if lines and (ended or time.monotonic() - drawn > DRAW_S):
                draw(plots, lines, readings)
                drawn = time.monotonic()
            if ended:
                break
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        run.stop()
        show_bar(bar, run, run.new_progress, True, "stopped")
        return
    text = finding(lines, readings)
    if text:
        words.html(f"<p>{escape(text)}</p>", text)


def part_done(lines: list[dict[str, Any]], epochs: int | None) -> float | None:
    """Return the fraction of all training steps that is done; None before it is known."""
    if not lines or not epochs:
        return None
    last = lines[-1]
    within = last["step"] / last["steps"] if last["phase"] == "train" else 1.0
    return min(1.0, (last["epoch"] + within) / epochs)


def show_bar(
    slot: output.Slot, run: Run, lines: list[dict[str, Any]], ended: bool, word: str = "done"
) -> None:
    """Show the bar with the latest reading, and the command below it."""
    epochs = None
    with contextlib.suppress(Exception):  # not chosen yet
        epochs = run.resolved["experiment"].get("num_epochs")
    failed = ended and not run.succeeded and word == "done"
    part = 1.0 if ended and not failed and word == "done" else part_done(lines, epochs)
    state = f"{'failed' if failed else word} in" if ended else "running for"
    text = f"{run.status()} · {state} {run.seconds:.0f} s"
    width = 100 * (part or 0)
    html = (
        f'<div class="bar"><i style="width:{width:.1f}%"></i></div><div>{escape(text)}</div>'
        f'<div class="dim"><code>{escape(run.command_line)}</code></div>'
    )
    slot.html(html, f"{text}\n{run.command_line}")


def draw(slot: output.Slot, lines: list[dict[str, Any]], readings: Readings) -> None:
    """Draw six panels; the last is the GPU's load, or the run's memory if there is no GPU."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    from rn50 import plot

    def curve(axis: Any, phase: str, key: str, place: int, label: str, **look: Any) -> None:
        """Plot measured points only: a reading without this value is left out."""
        points = [
            (line["seconds"] + readings.loop_began, line[key])
            for line in lines if line["phase"] == phase and line.get(key) is not None
        ]  # fmt: skip
        if points:
            look |= {"color": plot.COLOURS[place], "marker": plot.MARKERS[place], "ms": 4}
            every = max(1, len(points) // 12)
            axis.plot(*zip(*points, strict=True), label=label, lw=1.4, markevery=every, **look)

    with plot.style():
        fig, axes = plt.subplots(2, 3, figsize=(11, 5.2), layout="constrained")
        loss, top1, rate, speed, cores, last = axes.flat
        curve(loss, "train", "loss", 0, "training")
        curve(loss, "epoch", "val.loss", 1, "validation")
        curve(top1, "train", "top1", 0, "training")
        curve(top1, "epoch", "val.top1", 1, "validation")
        curve(rate, "train", "lr", 2, "")
        curve(speed, "train", "ips", 0, "training")
        curve(speed, "val", "ips", 1, "validation", ls="")
        draw_cores(cores, readings)
        what = draw_last(last, readings)
        titles = ("Loss", "Top-1", "Learning rate", "Speed", "CPU load per core", what[0])
        units = ("cross-entropy", "percent", "", "images per second", "core", what[1])
        for axis, title, unit in zip(axes.flat, titles, units, strict=True):
            axis.set_title(title, fontsize=10, loc="left")
            axis.set_xlabel("seconds since the start", fontsize=8)
            axis.set_ylabel(unit, fontsize=8)
            axis.tick_params(labelsize=8)
            axis.xaxis.set_major_locator(MaxNLocator(5))
            axis.set_xlim(0, max(readings.seconds[-1], 1.0))
            if axis.get_legend_handles_labels()[1]:
                axis.legend(fontsize=8, frameon=False)
            elif not axis.has_data():
                axis.text(0.5, 0.5, "no reading", ha="center", transform=axis.transAxes)
        for axis in (speed, last):
            axis.set_ylim(bottom=0)
        alt = finding(lines, readings) or "The first readings of a training run."
        slot.figure(fig, alt, dpi=90)


def draw_cores(axis: Any, readings: Readings) -> None:
    """Draw the load per core over time as a heat map, dark for idle and bright for busy."""
    rows = [row for row in readings.cores if row]
    if not rows:
        return
    table = list(zip(*rows, strict=True))
    mapped = axis.imshow(
        table, aspect="auto", cmap="cividis", vmin=0, vmax=100, interpolation="nearest",
        extent=(0, max(readings.seconds[-1], 1.0), len(table) - 0.5, -0.5),
    )  # fmt: skip
    axis.grid(False)
    if len(table) <= 16:
        axis.set_yticks(range(len(table)))
    axis.figure.colorbar(mapped, ax=axis, label="percent busy", pad=0.02)


def draw_last(axis: Any, readings: Readings) -> tuple[str, str]:
    """Plot the mean utilisation of the GPUs, or the memory of the run; return title and unit."""
    title, unit = "Memory of the run", "GiB"
    values: list[float | None] = [size / 2**30 or None for size in readings.memory]
    if any(readings.gpus):
        memory, power = (sum(gpu[i] for gpu in readings.gpus[-1]) for i in (1, 2))
        title, unit = f"GPU: {memory / 2**30:.1f} GiB, {power:.0f} W", "percent busy"
        values = [sum(gpu[0] for gpu in row) / len(row) if row else None for row in readings.gpus]
    shown = [(x, y) for x, y in zip(readings.seconds, values, strict=True) if y is not None]
    if shown:
        axis.plot(*zip(*shown, strict=True), lw=1.4, ms=4, color="#aa4499", marker="D",
                  markevery=max(1, len(shown) // 12))  # fmt: skip
    return title, unit


def finding(lines: list[dict[str, Any]], readings: Readings) -> str:
    """Describe the curves in a sentence; return an empty string before the first reading."""
    train = [line for line in lines if line["phase"] == "train" and line.get("loss") is not None]
    epochs = [line for line in lines if line["phase"] == "epoch"]
    parts = []
    if len(train) > 1:
        parts.append(f"the loss went from {train[0]['loss']:.2f} to {train[-1]['loss']:.2f}")
    scores = [line["val.top1"] for line in epochs if line.get("val.top1") is not None]
    if scores:
        parts.append(f"top-1 on the validation images is {scores[-1]:.1f} %")
    speeds = [line["train.total_ips"] for line in epochs if line.get("train.total_ips")]
    if speeds:
        parts.append(f"the speed was {speeds[-1]:.1f} images per second")
    busy = [sum(row) / len(row) for row in readings.cores if row]
    if busy:
        parts.append(f"the cores were {sum(busy) / len(busy):.0f} % busy")
    if not parts:
        return ""
    text = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    return text[0].upper() + text[1:] + "."

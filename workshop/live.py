"""The running job in a cell: a bar, and curves of loss, top-1, speed, learning rate and
utilisation.

One picture is redrawn in place while the run goes on and stays as it was last, so an executed
notebook and its page show the same thing. The readings come from the run's progress.jsonl,
psutil and NVML.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from workshop import output

if TYPE_CHECKING:
    from workshop.runs import Run

POLL_S = 0.5
DRAW_S = 2.5  # drawing takes a fifth of a second of a core that the run could use
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#aa4499"  # Okabe and Ito, Tol


@dataclass
class Load:
    """Utilisation over time: `seconds` since the run's start, per cent per core, the memory
    of the run's processes in bytes, and a reading per GPU.

    `loop_began` is when the training loop began, in the same seconds: progress.jsonl counts from
    there.
    """

    seconds: list[float] = field(default_factory=list)
    cores: list[list[float]] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    gpus: list[list[GpuLoad]] = field(default_factory=list)
    loop_began: float = float("inf")


@dataclass(frozen=True)
class GpuLoad:
    """One reading of a GPU: utilisation in per cent, memory in bytes, power in watts."""

    busy: float
    memory: int
    power: float


class Meter:
    """Reads the load of the cores that this process may use, and of the GPUs; silent where it
    cannot."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.load = Load()
        self.gpus: list[Any] = []
        self.nvml: Any = None
        try:
            import psutil

            self.psutil: Any = psutil
            psutil.cpu_percent(percpu=True)  # the first call only sets the start
        except ImportError:
            self.psutil = None
        with contextlib.suppress(Exception):  # NVML raises its own errors; without it, no panel
            import pynvml

            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self.nvml = pynvml
            self.gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]

    def _cores(self) -> list[float]:
        if self.psutil is None:
            return []
        load = self.psutil.cpu_percent(percpu=True)
        with contextlib.suppress(AttributeError, OSError, IndexError):
            return [load[i] for i in sorted(self.psutil.Process().cpu_affinity())]
        return list(load)

    def _memory(self) -> float:
        if self.psutil is None:
            return 0.0
        total = 0.0
        with contextlib.suppress(self.psutil.Error):
            run = self.psutil.Process(self.pid)
            for process in [run, *run.children(recursive=True)]:
                with contextlib.suppress(self.psutil.Error):
                    total += process.memory_info().rss
        return total

    def _gpus(self) -> list[GpuLoad]:
        found = []
        for handle in self.gpus:
            with contextlib.suppress(self.nvml.NVMLError):
                busy = self.nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                memory = self.nvml.nvmlDeviceGetMemoryInfo(handle).used
                power = self.nvml.nvmlDeviceGetPowerUsage(handle) / 1000
                found.append(GpuLoad(busy, memory, power))
        return found

    def read(self, seconds: float) -> None:
        self.load.seconds.append(seconds)
        self.load.cores.append(self._cores())
        self.load.memory.append(self._memory())
        self.load.gpus.append(self._gpus())


def watch(run: Run) -> None:
    """Show the run in this cell until it ends. Interrupting the cell stops the run."""
    meter = Meter(run.pid)
    bar, picture, words = output.Slot(), output.Slot(), output.Slot()
    drawn = -DRAW_S
    try:
        while True:
            ended = (
                not run.running
            )  # asked before the files are read: the last reading is not missed
            meter.read(run.seconds)
            lines = run.new_progress
            if lines:  # the newest line is at most one poll old: the smallest gap is the nearest
                gap = meter.load.seconds[-1] - lines[-1]["seconds"]
                meter.load.loop_began = max(0.0, min(meter.load.loop_began, gap))
            show_bar(bar, run, lines, ended)
            if lines and (ended or time.monotonic() - drawn > DRAW_S):
                draw(picture, lines, meter.load)
                drawn = time.monotonic()
            if ended:
                break
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        run.stop()
        show_bar(bar, run, run.new_progress, True, "stopped")
        return
    text = finding(lines, meter.load)
    if text:
        words.html(f"<p>{escape(text)}</p>", text)


def part_done(lines: list[dict[str, Any]], epochs: int | None) -> float | None:
    """The part of all training steps that is done, 0 to 1; None before it is known."""
    if not lines or not epochs:
        return None
    last = lines[-1]
    within = 1.0
    if last["phase"] == "train":
        within = last["step"] / last["steps"]
    return min(1.0, (last["epoch"] + within) / epochs)


def show_bar(
    slot: output.Slot, run: Run, lines: list[dict[str, Any]], ended: bool, word: str = "done"
) -> None:
    """The bar with the latest reading; the command stands below it."""
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


def draw(slot: output.Slot, lines: list[dict[str, Any]], load: Load) -> None:
    """Six panels; the last is the GPU's, or the run's memory where there is none."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    from rn50lib.tools import plot

    train = [line for line in lines if line["phase"] == "train"]
    epochs = [line for line in lines if line["phase"] == "epoch"]
    with plot.style():
        fig, axes = plt.subplots(2, 3, figsize=(11, 5.2), layout="constrained")
        x = [line["seconds"] + load.loop_began for line in train]
        ends = [line["seconds"] + load.loop_began for line in epochs]
        panel(axes[0, 0], "Loss", "cross-entropy")
        curve(axes[0, 0], x, [line.get("loss") for line in train], BLUE, "o", "training")
        curve(
            axes[0, 0], ends, [line.get("val.loss") for line in epochs], ORANGE, "s", "validation"
        )
        panel(axes[0, 1], "Top-1", "per cent")
        curve(axes[0, 1], x, [line.get("top1") for line in train], BLUE, "o", "training")
        curve(
            axes[0, 1], ends, [line.get("val.top1") for line in epochs], ORANGE, "s", "validation"
        )
        panel(axes[0, 2], "Learning rate", "")
        curve(axes[0, 2], x, [line.get("lr") for line in train], GREEN, "^", "")
        panel(axes[1, 0], "Speed", "images per second")
        curve(axes[1, 0], x, [line.get("ips") for line in train], BLUE, "o", "training")
        val = [line for line in lines if line["phase"] == "val"]
        speeds = [line.get("ips") for line in val]
        times = [line["seconds"] + load.loop_began for line in val]
        curve(axes[1, 0], times, speeds, ORANGE, "s", "validation", line=False)
        axes[1, 0].set_ylim(bottom=0)
        cores(axes[1, 1], load)
        if any(load.gpus):
            gpu(axes[1, 2], load)
        else:
            panel(axes[1, 2], "Memory of the run", "GiB")
            held = [size / 2**30 or None for size in load.memory]
            curve(axes[1, 2], load.seconds, held, PURPLE, "D", "")
            axes[1, 2].set_ylim(bottom=0)
        for axis in axes.flat:
            axis.xaxis.set_major_locator(MaxNLocator(5))
            if axis is not axes[1, 1]:
                axis.set_xlim(0, max(load.seconds[-1], 1.0))
            if axis.get_legend_handles_labels()[1]:
                axis.legend(fontsize=8, frameon=False)
        slot.figure(fig, finding(lines, load) or "The first readings of a training run.", dpi=90)


def panel(axis: Any, title: str, unit: str) -> None:
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel("seconds since the start", fontsize=8)
    axis.set_ylabel(unit, fontsize=8)
    axis.tick_params(labelsize=8)


def curve(
    axis: Any, x: list, y: list, colour: str, marker: str, label: str, line: bool = True
) -> None:
    """Measured points only: a reading without this value is left out."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    if not points and not axis.lines and not label:
        axis.text(0.5, 0.5, "no reading", ha="center", transform=axis.transAxes, fontsize=9)
        axis.set_yticks([])
    if points:
        every = max(1, len(points) // 12)
        xs, ys = zip(*points, strict=True)
        look = {"lw": 1.4, "markevery": every} if line else {"ls": ""}
        axis.plot(xs, ys, color=colour, marker=marker, ms=4, label=label, **look)


def cores(axis: Any, load: Load) -> None:
    """Load per core over time as a map, dark for idle and bright for busy."""
    panel(axis, "CPU load per core", "core")
    rows = [row for row in load.cores if row]
    if not rows:
        axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes)
        return
    table = list(zip(*rows, strict=True))
    end = max(load.seconds[-1], 1.0)
    mapped = axis.imshow(
        table, aspect="auto", cmap="cividis", vmin=0, vmax=100, interpolation="nearest",
        extent=(0, end, len(table) - 0.5, -0.5),
    )  # fmt: skip
    axis.grid(False)
    if len(table) <= 16:
        axis.set_yticks(range(len(table)))
    axis.figure.colorbar(mapped, ax=axis, label="per cent busy", pad=0.02)


def gpu(axis: Any, load: Load) -> None:
    """GPU utilisation, the mean over GPUs, with memory and power of the last reading in the
    title."""
    last = load.gpus[-1]
    memory = sum(item.memory for item in last) / 2**30
    power = sum(item.power for item in last)
    panel(axis, f"GPU: {memory:.1f} GiB, {power:.0f} W", "per cent busy")
    busy = [sum(item.busy for item in row) / len(row) if row else None for row in load.gpus]
    curve(axis, load.seconds, busy, PURPLE, "D", "")
    axis.set_ylim(0, 105)


def finding(lines: list[dict[str, Any]], load: Load) -> str:
    """What the curves show, as a sentence; empty before the first reading."""
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
    busy = [sum(row) / len(row) for row in load.cores if row]
    if busy:
        parts.append(f"the cores were {sum(busy) / len(busy):.0f} % busy")
    if not parts:
        return ""
    text = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    return text[0].upper() + text[1:] + "."

"""A picture of how the GPUs of a machine are joined, from `nvidia-smi topo -m`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.tools import plot
from workshop.lessons.horovod.topology import Topology, rank, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure(found: Topology) -> tuple[Figure, str]:
    """Who is joined to whom: NVLinks as thick lines, ways over PCIe thin, the socket link not
    drawn. Returns the figure and the sentence."""
    from matplotlib.figure import Figure

    at = positions(found)
    sides = found.sides()
    with plot.style():
        drawing = Figure(figsize=(max(6.5, 4.6 * len(sides) + 1), 5.2))
        axes = drawing.subplots()
        draw_links(axes, found, at)
        for i, side in enumerate(sides):
            cpus = found.cpus.get(side[0], "")
            label = f"processor {i}" + (f"\ncores {cpus}" if cpus else "")
            x = sum(at[gpu][0] for gpu in side) / len(side)
            axes.text(x, 2.0, label, ha="center", va="bottom", fontsize=9.5, color="0.25")
        for name, (x, y) in at.items():
            is_gpu = name.startswith("GPU")
            axes.text(
                x, y, name if is_gpu else found.real_names.get(name, name), ha="center",
                va="center", fontsize=10 if is_gpu else 8, color="white" if is_gpu else "black",
                zorder=5, bbox={
                    "boxstyle": "round,pad=0.5" if is_gpu else "square,pad=0.4",
                    "facecolor": plot.COLOURS[0] if is_gpu else "white", "edgecolor": "0.3",
                },
            )  # fmt: skip
        xs = [x for x, _ in at.values()]
        axes.set(xlim=(min(xs) - 0.8, max(xs) + 0.8), ylim=(-2.6, 2.6), aspect="equal")
        axes.set_title("How the GPUs of a machine are joined", loc="center")
        axes.axis("off")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.1), ncols=4, fontsize=9)
        axes.text(
            0.5, -0.12, found.source, transform=axes.transAxes, ha="center", va="top",
            fontsize=8, color="0.35",
        )  # fmt: skip
    return drawing, sentence(found)


def positions(found: Topology) -> dict[str, tuple[float, float]]:
    """Where each device is drawn: a circle of GPUs per processor, network cards below them.

    Every second circle is mirrored, so that links between equal positions run straight across.
    """
    at: dict[str, tuple[float, float]] = {}
    for i, side in enumerate(found.sides()):
        centre, turn = 4.2 * i, -1 if i % 2 else 1
        for j, gpu in enumerate(side):
            angle = math.pi * (0.75 - 2 * j / len(side)) if len(side) > 1 else math.pi / 2
            at[gpu] = (centre + turn * 1.25 * math.cos(angle), 1.25 * math.sin(angle))
    used: dict[int, int] = {}
    for card in found.cards:
        nearest = min(found.gpus, key=lambda gpu, card=card: rank(found.links[card, gpu]))  # type: ignore[misc]
        i = next(i for i, side in enumerate(found.sides()) if nearest in side)
        at[card] = (
            4.2 * i - 1.1 + 1.15 * (used.get(i, 0) % 3),
            -2.3 - 0.45 * (used.get(i, 0) // 3),
        )
        used[i] = used.get(i, 0) + 1
    return at


def draw_links(axes: Axes, found: Topology, at: dict[str, tuple[float, float]]) -> None:
    """Lines between the devices; each kind of line is named once for the legend."""
    named: set[str] = set()
    for i, a in enumerate(found.devices):
        for b in found.devices[i + 1 :]:
            kind, count = found.links[a, b], found.nvlinks(a, b)
            card = not (a.startswith("GPU") and b.startswith("GPU"))
            if card and kind != "PIX" or kind in ("SYS", "NODE"):
                continue
            line: dict[str, Any] = {"color": "0.45", "lw": 1.0, "ls": ":", "label": kind}
            if count:
                thickness = min(count, 4)
                line = {"color": plot.COLOURS[1 if count == 1 else 2], "lw": 1.3 + 1.3 * thickness,
                        "ls": "--" if count == 1 else "-"}  # fmt: skip
                line["label"] = f"{count} NVLink{'' if count == 1 else 's'}"
            if line["label"] in named:
                del line["label"]
            else:
                named.add(line["label"])
            (x, y), (x2, y2) = at[a], at[b]
            along = np.linspace(0, 1, 41)
            bend = 0.0
            if abs(x2 - x) > 3 and not card:  # around the GPUs that stand between these two
                bend = math.copysign(0.16 * abs(x2 - x), y + y2)
            axes.plot(
                x + along * (x2 - x), y + along * (y2 - y) + 4 * bend * along * (1 - along),
                marker="", alpha=0.8, **line,
            )  # fmt: skip

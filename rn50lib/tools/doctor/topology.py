"""Which way data takes between the GPUs of a machine: `rn50 doctor --topology`.

The matrix that `topology_matrix` reads, in words and as a picture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.tools import plot
from rn50lib.tools.doctor.topology_matrix import Topology, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {  # from the shortest way to the longest
    "NV": "directly over NVLink; the number counts the links that are bonded",
    "PIX": "through one PCIe switch",
    "PXB": "through several PCIe switches, without the processor",
    "PHB": "through the processor's PCIe host bridge",
    "NODE": "through several host bridges of one processor (one NUMA node)",
    "SYS": "through both processors and the link between their sockets",
}


def lines(found: Topology) -> Iterator[str]:
    """The matrix, each GPU's ways to the others, what the words mean, and what follows."""
    width = max(map(len, found.devices)) + 1
    yield "".join([" " * width, *(f"{name:>{width}}" for name in found.devices)])
    for a in found.devices:
        cells = "".join(f"{found.links[a, b]:>{width}}" for b in found.devices)
        near = f"   cores {found.cpus[a]}" if a in found.cpus else ""
        yield f"{a:<{width}}{cells}{near}"
    yield ""
    for a in found.gpus:
        ways: dict[str, list[str]] = {}
        for b in found.gpus:
            if a != b:
                ways.setdefault(found.links[a, b], []).append(b.removeprefix("GPU"))
        told = "; ".join(f"{k} to {', '.join(ways[k])}" for k in sorted(ways, key=rank))
        yield f"{a}: {told}"
    yield ""
    for kind in sorted({k for k in found.links.values() if k != "X"}, key=rank):
        yield f"{kind:5} {explain(kind)}"
    for name, real in found.real_names.items():
        yield f"{name} is {real}"
    yield ""
    yield sentence(found)


def rank(kind: str) -> tuple[int, int]:
    """Sorts kinds of links from the fastest to the slowest."""
    number = re.fullmatch(r"NV(\d+)", kind)
    if number:
        return 0, -int(number[1])
    names = list(KINDS)
    return (names.index(kind) if kind in names else len(names)), 0


def explain(kind: str) -> str:
    """A kind of link in words."""
    number = re.fullmatch(r"NV(\d+)", kind)
    if number:
        return f"{number[1]} NVLink{'' if number[1] == '1' else 's'}, directly"
    return KINDS.get(kind, "a kind of link that is not known here")


def sentence(found: Topology) -> str:
    """What the matrix means for an all-reduce over all GPUs."""
    gpus = found.gpus
    pairs = [(a, b) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
    if not pairs:
        return "One GPU has no other to talk to."
    direct = [pair for pair in pairs if found.nvlinks(*pair)]
    if not direct:
        worst = max((found.links[pair] for pair in pairs), key=rank)
        return (
            f"No two of the {len(gpus)} GPUs are joined by NVLink: an all-reduce goes over PCIe,"
            f" at its slowest {explain(worst)}."
        )
    words = f"{len(direct)} of {len(pairs)} pairs of GPUs are joined by NVLink."
    around = ring(found)
    if around is None:
        return f"{words} No ring over all of them uses NVLink alone."
    path = " - ".join(gpu.removeprefix("GPU") for gpu in (*around, around[0]))
    return f"{words} A ring over all {len(gpus)} needs nothing else: {path}."


def ring(found: Topology) -> tuple[str, ...] | None:
    """A round trip over all GPUs by NVLink alone, the thickest links first; None without one."""
    gpus = found.gpus
    if len(gpus) < 3:
        return gpus if len(gpus) == 2 and found.nvlinks(*gpus) else None

    def extend(path: tuple[str, ...]) -> tuple[str, ...] | None:
        if len(path) == len(gpus):
            return path if found.nvlinks(path[-1], path[0]) else None
        near = [g for g in gpus if g not in path and found.nvlinks(path[-1], g)]
        for gpu in sorted(near, key=lambda g: -found.nvlinks(path[-1], g)):
            whole = extend((*path, gpu))
            if whole is not None:
                return whole
        return None

    return extend(gpus[:1])


def to_dict(found: Topology) -> dict[str, Any]:
    """For --json."""
    matrix = [[found.links[a, b] for b in found.devices] for a in found.devices]
    return {
        "source": found.source,
        "devices": list(found.devices),
        "matrix": matrix,
        "cpus": found.cpus,
        "network_cards": found.real_names,
    }


# --- the picture ----------------------------------------------------------------------------------


def figure(found: Topology) -> tuple[Figure, str]:
    """Who is joined to whom: NVLinks as thick lines, ways over PCIe thin, the socket link not
    drawn. Returns the figure and the sentence."""
    from matplotlib.figure import Figure

    at = places(found)
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


def places(found: Topology) -> dict[str, tuple[float, float]]:
    """Where each device is drawn: a circle of GPUs per processor, network cards below them.

    Every second circle is mirrored, so that links between equal places run straight across.
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
    """Lines between the devices; each look is named once for the legend."""
    named: set[str] = set()
    for i, a in enumerate(found.devices):
        for b in found.devices[i + 1 :]:
            kind, count = found.links[a, b], found.nvlinks(a, b)
            card = not (a.startswith("GPU") and b.startswith("GPU"))
            if card and kind != "PIX" or kind in ("SYS", "NODE"):
                continue
            look: dict[str, Any] = {"color": "0.45", "lw": 1.0, "ls": ":", "label": kind}
            if count:
                many = min(count, 4)
                look = {"color": plot.COLOURS[1 if count == 1 else 2], "lw": 1.3 + 1.3 * many,
                        "ls": "--" if count == 1 else "-"}  # fmt: skip
                look["label"] = f"{count} NVLink{'' if count == 1 else 's'}"
            if look["label"] in named:
                del look["label"]
            else:
                named.add(look["label"])
            (x, y), (x2, y2) = at[a], at[b]
            way = np.linspace(0, 1, 41)
            bend = 0.0
            if abs(x2 - x) > 3 and not card:  # around the GPUs that stand between these two
                bend = math.copysign(0.16 * abs(x2 - x), y + y2)
            axes.plot(
                x + way * (x2 - x), y + way * (y2 - y) + 4 * bend * way * (1 - way),
                marker="", alpha=0.8, **look,
            )  # fmt: skip


# --- the front door -------------------------------------------------------------------------------


def show(as_json: bool = False, output: str | Path | None = None) -> int:
    """`rn50 doctor --topology`; returns the exit status."""
    import json

    found, remark = look()
    if as_json:
        print(json.dumps(to_dict(found) | {"remark": remark}, indent=2))
    else:
        print(
            "\n".join([*([remark] if remark else []), f"Shown: {found.source}.", "", *lines(found)])
        )
    if output:
        plot.save(figure(found)[0], output)
        print(output)
    return 0

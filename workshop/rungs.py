"""The rungs of the ladder, the record of their speeds, and the figure of a record."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rn50 import plot
from rn50lib.errors import UserError
from workshop import expected, output, paths
from workshop.ratio import ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RUNGS = {
    "1_single": "one device",
    "2": "several ranks",
    "3_dali": "DALI",
    "4_amp": "mixed precision",
    "5_tuned": "tuned",
    "6_compiled": "compiled",
}
LIBRARIES = {"horovod": "Horovod", "ddp": "DDP"}
PARTS = ("compute", "communication", "input")
GPUS = {  # published, and recorded of earlier scripts (one GPU: rung 2 changes nothing)
    "V100, FP32": "published.v100.1gpu.fp32.ips",
    "V100, FP16": "published.v100.1gpu.fp16.ips",
    "4 V100s, FP16": "published.v100.4gpu.fp16.ips",
    "8 V100s, FP16": "published.v100.8gpu.fp16.ips",
    "H100, 02: one device": "ladder.h100.1_single.ips",
    "H100, 05: DALI": "ladder.h100.3_dali.ips",
    "H100, 06: mixed precision": "ladder.h100.4_amp.ips",
    "H100, 08: tuned": "ladder.h100.5_tuned.ips",
}
H100 = ("2_horovod", "3_dali", "4_amp", "5_tuned")  # recorded with Horovod, on one
RECORD = "ladder.json"  # in the folder of runs; one for each machine


def split(rung: str) -> tuple[str, str]:
    """Return the rung and the library of a name such as 3_dali_ddp; the latter may be "".

    Raises UserError for an unknown rung.
    """
    found = re.fullmatch(rf"({'|'.join(RUNGS)})(?:_({'|'.join(LIBRARIES)}))?", rung)
    if not found:
        raise UserError(f"rung {rung!r} does not exist: use one of {', '.join(RUNGS)}")
    return found[1], found[2] or ""


def load(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"rungs": {}, "predictions": {}}
    if file.exists():
        found |= json.loads(file.read_text(encoding="utf-8"))
    return found


def picture(file: Path, rung: str = "") -> dict[str, Any]:
    """Return the figure of a record as a display bundle."""
    import matplotlib.pyplot as plt

    record = load(file)
    rungs = {n: record["rungs"][n] for n in sorted(record["rungs"]) if not rung or n[0] <= rung[0]}
    results = expected.load(paths.need_checkout() / "notebooks" / "expected")
    with plot.style():
        if not rungs:
            fig, axes = plt.subplots(figsize=(9, 4))
            gpus = {name: results[key].value for name, key in GPUS.items()}
            return output.figure_bundle(fig, _draw_gpus(axes, gpus))
        fig, (speeds, gains) = plt.subplots(
            1, 2, figsize=(9, 1.8 + 0.5 * len(rungs)), sharey=True, width_ratios=[3, 2]
        )
        alt = _draw_speeds(speeds, rungs)
        if paired := [name for name in record["rungs"] if "gains" in rungs.get(name, {})]:
            last = rungs[paired[-1]]
            title = f", over rung {last['over'][0]}: × {ratio(last['gains'])}"
            h100 = [results[f"ladder.h100.{name}.ips"].value for name in H100]
            there = {name: h100[i] / h100[i - 1] for i, name in enumerate(H100) if i}
            alt += _draw_gains(gains, rungs, record["predictions"], there)
        else:
            paired = [*rungs]
            title = f": {output.cell_text(rungs[paired[-1]]['images_per_s'])} images/s"
            gains.remove()
        fig.suptitle(f"Rung {paired[-1][0]}, {_label(paired[-1])}{title}", x=0.01, ha="left")
        keys = [key for axes in fig.axes for key in axes.get_legend_handles_labels()[0]]
        once = {key.get_label(): key for key in keys}
        fig.legend(handles=[*once.values()], ncols=5, loc="outside lower left")
        return output.figure_bundle(fig, alt)


def _draw_speeds(axes: Axes, rungs: Mapping[str, Any]) -> str:
    """Draw the images/s of each rung, divided like its step; return the numbers."""
    import numpy as np

    rates = np.array([one["images_per_s"] for one in rungs.values()])
    shares = np.array([[one.get(f"{part}_ms", 0.0) for part in PARTS] for one in rungs.values()])
    shares /= shares.sum(axis=1, keepdims=True)
    shares[:, shares.max(axis=0) < 0.005] = 0  # not visible
    shares /= shares.sum(axis=1, keepdims=True)
    widths = rates[:, None] * shares
    for part, share, width, end in zip(PARTS, shares.T, widths.T, widths.cumsum(1).T, strict=True):
        if not share.any():
            continue
        bars = axes.barh(range(len(rates)), width, 0.5, end - width, color=plot.MEANING[part])
        bars.set_label(part)
        wide = np.where(width > 0.1 * rates.max(), [f"{x:.0%}" for x in share], "")
        color = "black" if part == "input" else "white"
        axes.bar_label(bars, wide, label_type="center", color=color)
    numbers = [output.cell_text(rate) for rate in rates.tolist()]
    axes.bar_label(bars, numbers, padding=6, weight="bold")
    for row, one in enumerate(rungs.values()):
        turns = one.get("turns", [])
        axes.plot(turns, [row + 0.36] * len(turns), "o", color="0.5", alpha=0.6, ms=5)
    labels = [f"{name[0]}: {_label(name, one.get('ranks', 1))}" for name, one in rungs.items()]
    axes.set_yticks(range(len(rates)), labels)
    axes.set_ylim(len(rates) - 0.4, -0.5)
    axes.set_xlim(0, 1.15 * axes.get_xlim()[1])
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel(f"images/s: median, and a dot per turn{_sizes(rungs)}")
    axes.grid(visible=False, axis="y")
    said = []
    for label, number, row in zip(labels, numbers, shares, strict=True):
        parts = [f"{part} {share:.0%}" for part, share in zip(PARTS, row, strict=True) if share]
        said.append(f"{label}: {number} images/s ({', '.join(parts)})".replace("\n", ", "))
    return f"{'; '.join(said)}."


def _draw_gains(
    axes: Axes, rungs: Mapping[str, Any], guesses: Mapping[str, float], there: Mapping[str, float]
) -> str:
    """Draw the paired turns of each rung over those of the one before; return the numbers."""
    said, colour = "", plot.MEANING["recorded"]
    found = {name: ratio(one["gains"]) for name, one in rungs.items() if "gains" in one}
    shown = {name: [gain.median] for name, gain in found.items()}
    for name in found:
        rung, _ = split(name)
        shown[name] += [marks[rung] for marks in (guesses, there) if rung in marks]
    # a turn that something else slowed down would stretch the axis
    end = 1.3 * max(2.0, *itertools.chain.from_iterable(shown.values()))
    axes.set_xlim(0, end)
    axes.axvline(1, color="black", lw=1)
    for row, (name, one) in enumerate(rungs.items()):
        if name not in found:
            continue
        gain, (rung, _) = found[name], split(name)
        axes.hlines(row, gain.low, min(gain.high, end), color="black", lw=2)
        if gain.high > end:
            axes.plot(end, row, "k>", ms=7, clip_on=False)
        axes.plot(gain.median, row, "ko", mfc="black" if gain.clear else "white", ms=8)
        axes.annotate(f"{gain.median:.2f}", (gain.median, row), (0, 8), ha="center",
                      textcoords="offset points", weight="bold",
                      bbox={"color": "white", "pad": 0})  # fmt: skip
        said += f" Rung {name[0]} over rung {one['over'][0]}: {gain}"
        if rung in guesses:
            axes.plot(guesses[rung], row + 0.2, "kD", mfc="none", ms=7, label="your prediction")
            said += f"; predicted {guesses[rung]:.2f}"
        if rung in there:
            axes.plot(there[rung], row + 0.4, "s", color=colour, ms=7, label="one H100, recorded")
            said += f"; H100 {there[rung]:.2f}"
        said += "."
    axes.set_xlabel("times the rung before: median and range\n(hollow: no clear difference)")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    return said


def _draw_gpus(axes: Axes, gpus: Mapping[str, float]) -> str:
    """Draw published speeds, and those of the course's scripts on an H100; return the numbers."""
    kinds = ["recorded" if "H" in name else "published" for name in gpus]
    rows = [row + 0.5 * (kind == "recorded") for row, kind in enumerate(kinds)]
    colours = [plot.MEANING[kind] for kind in kinds]
    bars = axes.barh(rows, [*gpus.values()], 0.7, color=colours)
    axes.bar_label(bars, fmt="{:,.0f}", padding=4, weight="bold")
    axes.set_yticks(rows, [*gpus])
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=False, axis="y")
    gain = [*gpus.values()][-1] / gpus["H100, 02: one device"]
    axes.set_title(
        f"One H100: after notebook 08, the script was {gain:.1f} times as fast as after 02"
    )
    source = (
        "V100: published, batch 96 or 208; H100: recorded, earlier scripts, batch 128, 12 workers"
    )
    axes.set_xlabel(f"images/s at 224 px\n{source}")
    return f"{'; '.join(f'{name} {rate:,.0f} images/s' for name, rate in gpus.items())}."


def _label(script: str, ranks: int = 1) -> str:
    """Return what the figure calls a script; for several ranks, with their number and library."""
    rung, chosen = split(script)
    name = LIBRARIES[chosen] if rung == "2" else RUNGS[rung]
    library = f"{LIBRARIES[chosen]}, " if ranks > 1 and rung != "2" else ""
    return f"{name}\n{library}{ranks} ranks" if ranks > 1 else name


def _sizes(rungs: Mapping[str, Any]) -> str:
    """Return a line with the pixels and batches of all rungs."""
    sizes = {f"{one['image_size']} px, batch {one['batch_size']}" for one in rungs.values()}
    several = any(one["ranks"] > 1 for one in rungs.values())
    return f"\n{' or '.join(sorted(sizes))}{' per rank' * several}"

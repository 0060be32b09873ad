"""A diagnosis as text, as the content of a JSON file, and as a picture."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rn50 import plot
from rn50.diagnose import model
from rn50.diagnose.diagnosis import Diagnosis, flops
from rn50lib.hardware import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("read", "decode", "augment", "copy", "arithmetic", "exchange", "waiting for input")


def content(found: Diagnosis) -> dict[str, Any]:
    """Everything that was found: rates in images per second, times in seconds, sizes in bytes.

    What was not measured is null.
    """
    done = found.done
    return {
        "experiment": found.resolved.experiment.given(),
        "caps": list(found.resolved.caps),
        "machine": machine().to_dict(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rates": {
            "loader": finite(found.rates.loader),
            "compute": found.rates.compute,
            "without_exchange": found.rates.without_exchange,
            "both": found.rates.both,
            "both_predicted": found.predicted,
            "formula": found.sharing.formula,
        },
        "stages": found.stages,
        "exchange": found.exchange,
        "flops": speed(found),
        "bound": asdict(found.bound) | {"gain": finite(found.bound.gain)},
        "changes": [asdict(change) | {"error": change.error} for change in found.changes],
        "lesson": model.lesson(found.bound.part, done.backend),
        "verdict": found.verdict,
    }


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def speed(found: Diagnosis) -> dict[str, Any] | None:
    """The model's FLOP per second, and the share of what the device reaches at its best."""
    each = flops(found.done)
    if each is None:
        return None
    rate = each * found.rates.both
    peaks = found.peak or {}
    fastest = max(peaks, key=lambda name: peaks[name], default=None)
    peak = peaks[fastest] * found.done.n if fastest else None  # each worker has its device
    return {
        "per_image": each,
        "per_second": rate,
        "peaks": found.peak,
        "peak": peak,
        "fastest": fastest,
        "share_of_peak": rate / peak if peak else None,
    }


def text(found: Diagnosis) -> str:
    """The findings as lines, the sentence first."""
    rates, done = found.rates, found.done
    lines = [found.verdict, "", f"  {'':22}{'img/s':>10}  {'ms per image':>12}"]
    rows = [("loader alone", rates.loader), ("step alone", rates.compute)]
    if rates.without_exchange != rates.compute:
        rows.append(("step without exchange", rates.without_exchange))
    if rates.loader != model.FREE:
        rows += [("both together", rates.both), ("  predicted", found.predicted)]
    for name, ips in rows:
        if ips != model.FREE:
            lines.append(f"  {name:22}{ips:10,.1f}  {1000 / ips:12.3f}")
    if rates.loader != model.FREE:
        lines[-1] += f"  {found.sharing.formula}: {percent(found.predicted / rates.both - 1)}"
    if found.stages:
        parts = ", ".join(f"{name} {1000 * s:.3g} ms" for name, s in found.stages.items())
        lines.append(f"  an image on one core: {parts}")
    if found.exchange:
        lines.append(
            f"  a step of {1000 * found.exchange['step_s']:.0f} ms loses"
            f" {1000 * found.exchange['exchange_s']:.0f} ms to the exchange of"
            f" {found.exchange['bytes'] / 1e6:.1f} MB"
        )
    flop = speed(found)
    if flop:
        line = f"  the model computes {flop['per_second'] / 1e9:,.0f} GFLOP/s"
        if flop["share_of_peak"]:
            line += (
                f", {100 * flop['share_of_peak']:.0f} % of the {flop['peak'] / 1e9:,.0f} that"
                f" a {flop['fastest']} reaches here in {done.dtype}"
            )
        lines.append(line)
    for change in found.changes:
        line = f"  with {change.flags}: {change.predicted:,.1f} img/s predicted"
        if change.measured is not None and change.error is not None:
            line += f", {change.measured:,.1f} measured ({percent(change.error)})"
        lines.append(line)
    return "\n".join(lines)


def percent(error: float) -> str:
    """How far a prediction is off."""
    return f"{abs(100 * error):.0f} % too {'high' if error > 0 else 'low'}"


# --- the picture ----------------------------------------------------------------------------------


def bar_parts(found: Diagnosis) -> list[tuple[str, dict[str, float]]]:
    """(bar, milliseconds per image by part): the input alone, the step alone, both together, and
    what is predicted for each change.

    The stages share out the time that the loader took with all its workers.
    """
    rates, bars = found.rates, []
    if rates.loader != model.FREE:
        stages = found.stages or {"decode": 1.0}
        whole = sum(stages.values())
        split = {name: 1000 / rates.loader * s / whole for name, s in stages.items()}
        bars.append(("loader alone", split))
    plain = 1000 / rates.without_exchange
    step = {"arithmetic": plain, "exchange": 1000 / rates.compute - plain}
    bars.append(("step alone", step))
    both = 1000 / rates.both
    scale = min(1.0, both * rates.compute / 1000)
    inside = {name: scale * value for name, value in step.items()}
    rest = max(0.0, both - sum(inside.values()))
    bars.append(("both together", inside | {"waiting for input": rest}))
    return bars


def bars(found: Diagnosis) -> Figure:
    """Stacked bars in milliseconds per image; changes stand below, as they are predicted."""
    from matplotlib.figure import Figure

    stacked = bar_parts(found)
    done = found.done
    with plot.style():
        figure = Figure(figsize=(9, 1.6 + 0.5 * (len(stacked) + len(found.changes))))
        axes = figure.subplots()
        for at, (_, parts) in enumerate(stacked):
            left = 0.0
            for name, width in parts.items():
                axes.barh(at, width, left=left, color=plot.COLOURS[PARTS.index(name)])
                left += width
            axes.text(left, at, f"  {left:.3g} ms, {1000 / left:,.0f} img/s", va="center")
        for at, change in enumerate(found.changes, start=len(stacked)):
            width = 1000 / change.predicted
            axes.barh(at, width, color="none", edgecolor="black", linestyle="--")
            axes.text(width, at, f"  {width:.3g} ms, predicted", va="center")
        shown = {name for _, parts in stacked for name, width in parts.items() if width > 0}
        for name in PARTS:
            if name in shown:
                axes.barh(0, 0, color=plot.COLOURS[PARTS.index(name)], label=name)
        names = [name for name, _ in stacked] + [f"with {c.flags}" for c in found.changes]
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.margins(x=0.3)
        axes.set_xlim(left=0)
        axes.grid(axis="y", visible=False)
        axes.set(
            title=f"{model.NAMES[found.bound.part]} bounds this run",
            xlabel=f"ms per image ({model_name(found)}, {done.image_shape} px, {done.dtype},"
            f" {done.n} x {done.batch_size})",
        )
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.25), ncols=4)
    return figure


def model_name(found: Diagnosis) -> str:
    """What computes: the network, or the pace that stands for one."""
    done = found.done
    return done.to_network().name if done.step is None else f"paced at {done.step:g} img/s"

"""A diagnosis as text, as JSON and as a figure."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rn50 import plot
from rn50.diagnose import model
from rn50lib.config import Resolved
from rn50lib.hardware import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("loading", "arithmetic", "exchange", "waiting for input")


@dataclass
class Diagnosis:
    """The findings; `peak`, in FLOP per second, may be None."""

    resolved: Resolved
    rates: model.Rates
    bound: model.Bound
    changes: list[model.Change]
    verdict: str
    peak: float | None

    @property
    def predicted(self) -> float:
        """The images per second that follow from the loader and the step alone."""
        return model.together(self.rates.loader, self.rates.compute, self.rates.formula)


def content(found: Diagnosis) -> dict[str, Any]:
    """Return the content of the JSON file; what was not measured is null.

    Rates are in images per second, times in seconds, sizes in bytes.
    """
    return {
        "experiment": found.resolved.config.to_dict(),
        "caps": list(found.resolved.caps),
        "machine": machine().to_dict(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rates": {
            **asdict(found.rates),
            "loader": finite(found.rates.loader),
            "both_predicted": found.predicted,
        },
        "exchange": exchange(found),
        "flops": speed(found),
        "bound": asdict(found.bound) | {"gain": finite(found.bound.gain)},
        "changes": [asdict(change) for change in found.changes],
        "lesson": model.lesson(found.bound.part, found.resolved.config.backend),
        "verdict": found.verdict,
    }


def finite(value: float) -> float | None:
    """Return None instead of infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def exchange(found: Diagnosis) -> dict[str, float] | None:
    """Return the size of the gradients, and the seconds that a step loses to exchanging them."""
    config, rates = found.resolved.config, found.rates
    if config.n == 1 or not config.trains:
        return None
    lost = config.global_batch * (1 / rates.compute - 1 / rates.without_exchange)
    return {"bytes": 4 * config.to_network().num_parameters, "exchange_s": max(0.0, lost),
            "step_s": config.global_batch / rates.compute}  # fmt: skip


def speed(found: Diagnosis) -> dict[str, Any] | None:
    """Return the model's FLOP per second, and its share of the device's peak."""
    config = found.resolved.config
    if found.peak is None:  # of a simulated device, or without PyTorch
        return None
    net, size = config.to_network(), config.image_shape
    per_image = 2 * net.macs(size) if config.only_inference else net.train_flops(size)
    rate = per_image * found.rates.both
    peak = found.peak * config.n  # each worker has its device
    return {"per_image": per_image, "per_second": rate, "peak": peak, "share_of_peak": rate / peak}


def text(found: Diagnosis) -> str:
    rates = found.rates
    lines = [found.verdict, "", f"  {'':22}{'img/s':>10}  {'ms per image':>12}"]
    rows = [
        ("loader alone", rates.loader),
        ("step alone", rates.compute),
        ("step without exchange", rates.without_exchange),
        ("both together", rates.both),
        (f"  predicted ({found.rates.formula})", found.predicted),
    ]
    for name, ips in rows:
        if ips != model.FREE and (ips != rates.compute or name == "step alone"):
            lines.append(f"  {name:22}{ips:10,.1f}  {1000 / ips:12.3f}")
    if lost := exchange(found):
        step, exchanged = 1000 * lost["step_s"], 1000 * lost["exchange_s"]
        lines.append(f"  a step of {step:.0f} ms loses {exchanged:.0f} ms to the exchange of"
                     f" {lost['bytes'] / 1e6:.1f} MB")  # fmt: skip
    if flop := speed(found):
        lines.append(
            f"  the model computes {flop['per_second'] / 1e9:,.0f} GFLOP/s,"
            f" {100 * flop['share_of_peak']:.0f}% of the fastest matrix product here"
        )
    for change in found.changes:
        lines.append(f"  with {change.flags}: {change.predicted:,.1f} img/s predicted")
    return "\n".join(lines)


# --- the figure -----------------------------------------------------------------------------------


def bar_parts(found: Diagnosis) -> list[tuple[str, dict[str, float]]]:
    """Return (bar, milliseconds per image by part) for the loader, the step and both together."""
    rates, bars = found.rates, []
    if rates.loader != model.FREE:
        bars.append(("loader alone", {"loading": 1000 / rates.loader}))
    arithmetic = 1000 / rates.without_exchange
    step = {"arithmetic": arithmetic, "exchange": 1000 / rates.compute - arithmetic}
    bars.append(("step alone", step))
    both = 1000 / rates.both
    scale = min(1.0, both * rates.compute / 1000)
    inside = {name: scale * value for name, value in step.items()}
    waiting = max(0.0, both - sum(inside.values()))
    bars.append(("both together", inside | {"waiting for input": waiting}))
    return bars


def bars(found: Diagnosis) -> Figure:
    """Return stacked bars in milliseconds per image; predicted changes are below, dashed."""
    from matplotlib.figure import Figure

    stacked, config = bar_parts(found), found.resolved.config
    names = [name for name, _ in stacked] + [f"with {c.flags}" for c in found.changes]
    with plot.style():
        figure = Figure(figsize=(9, 1.6 + 0.5 * len(names)))
        axes = figure.subplots()
        shown: set[str] = set()
        for at, (_, parts) in enumerate(stacked):
            left = 0.0
            for name, width in parts.items():
                label = name if width > 0 and name not in shown else None
                shown |= {label} if label else set()
                colour = plot.COLOURS[PARTS.index(name)]
                axes.barh(at, width, left=left, color=colour, label=label)
                left += width
            axes.text(left, at, f"  {left:.3g} ms, {1000 / left:,.0f} img/s", va="center")
        for at, change in enumerate(found.changes, start=len(stacked)):
            width = 1000 / change.predicted
            axes.barh(at, width, color="none", edgecolor="black", linestyle="--")
            axes.text(width, at, f"  {width:.3g} ms, predicted", va="center")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.margins(x=0.3)
        axes.set_xlim(left=0)
        axes.grid(axis="y", visible=False)
        computes = (
            config.to_network().name if config.step is None else f"simulated {config.step:g} img/s"
        )
        axes.set(
            title=f"{model.NAMES[found.bound.part]} bounds this run",
            xlabel=f"ms per image ({computes}, {config.image_shape} px, {config.dtype},"
            f" {config.n} x {config.batch_size})",
        )
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.25), ncols=4)
    return figure

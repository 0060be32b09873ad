"""The parts of an image's time as stacked bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rn50lib.tools import plot
from rn50lib.tools.diagnose import model
from rn50lib.tools.diagnose.diagnosis import Diagnosis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("read", "decode", "augment", "copy", "arithmetic", "exchange", "waiting for input")


def rows(found: Diagnosis) -> list[tuple[str, dict[str, float]]]:
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

    stacked = rows(found)
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

"""Figures of notebook 08 on the scaling model: its errors, and what it predicts, with controls.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rn50lib.tools import plot
from rn50lib.tools.scaling import Cluster, Step, Training, check, links, predict
from rn50lib.tools.scaling.command import large_batch
from rn50lib.tools.scaling.fit import MODEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
NETWORKS = (
    "pcie+10g", "pcie+25g", "nvlink+25g", "nvlink+100g", "nvlink3+8x200g", "nvlink4+8x400g"
)  # fmt: skip
V100 = (1442.6, 208)  # images per second and batch of one GPU: published, DGX-1, FP16


def held_out() -> tuple[Figure, str]:
    """How far each prediction of a row that was not fitted is from what was published."""
    from matplotlib.figure import Figure

    rows = [row for row in check.outcomes() if not row.fitted]
    with plot.style():
        figure = Figure(figsize=(10.5, 4.2))
        axes = figure.subplots()
        for i, name in enumerate(check.NAMES):
            label = f"{name} (the model)" if name == MODEL.name else name
            errors = [100 * row.error(name) for row in rows]
            axes.plot(
                errors,
                range(len(rows)),
                ls="",
                ms=9 if i == 0 else 7,
                label=label,
                zorder=3 - i / 9,
            )
        axes.axvline(0, color="black", lw=1, marker="")
        axes.set_yticks(
            range(len(rows)),
            [f"{row.series.name} {row.series.precision}, {row.gpus} GPUs" for row in rows],
        )
        axes.invert_yaxis()
        axes.set(title="Predictions of rows that were not fitted",
                 xlabel="predicted over published speed, less 1, per cent")  # fmt: skip
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure, check.verdict()


def steps(
    gpus: int, batch: int, network: str, overlap: bool, ips: float = V100[0],
    noise: float | None = None,
) -> list[Step]:  # fmt: skip
    """The predicted steps of 1 to `gpus` GPUs; `noise` is a share of a step, None as published."""
    if noise is None:
        noise = check.parameter("DGX-1", "mixed", MODEL)
    cluster = Cluster(*links.parse(network), overlap=overlap, noise=noise)
    return [predict(Training(ips, batch), cluster, n) for n in GPUS if n <= gpus]


def predicted(
    gpus: int = 64,
    batch: int = V100[1],
    network: str = "nvlink+100g",
    overlap: bool = True,
    price: float = 2.0,
    ips: float = V100[0],
    noise: float | None = None,
) -> tuple[Figure, str]:
    """Efficiency and the parts of a step up to `gpus` GPUs, and what 90 epochs take and cost.

    `ips` is what one GPU reaches, for every batch alike; `price` is that of a GPU for an hour.
    """
    from rn50lib.tools import plot_scaling

    found = steps(gpus, batch, network, overlap, ips, noise)
    figure, sentence = plot_scaling.prediction(found, chosen=gpus)
    return figure, f"{sentence} {bill(found[-1], price)}"


def bill(step: Step, price: float) -> str:
    """What 90 epochs of ImageNet take and cost."""
    hours = step.hours()
    took = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
    cost = f"{hours * step.gpus * price:,.0f} at {price:g} for each GPU and hour"
    return f"90 epochs of ImageNet: {took}, {cost}. {large_batch(step)}".rstrip()


def explore(ips: float = V100[0], batch: int = V100[1], noise: float | None = None) -> None:
    """The prediction with its controls: GPUs, batch, network, overlap and price."""
    import ipywidgets

    from workshop import output

    def draw(**values: Any) -> tuple[Figure, str]:
        return predicted(ips=ips, noise=noise, **values)

    def alt(**values: Any) -> str:
        found = steps(
            values["gpus"], values["batch"], values["network"], values["overlap"], ips, noise
        )
        shares = ", ".join(f"{s.gpus}: {100 * s.efficiency:.0f}" for s in found)
        return (
            "Predicted efficiency in per cent by GPUs, beside the parts of a step in milliseconds."
            f" {shares}."
        )

    output.explore(
        draw,
        alt,
        gpus=ipywidgets.SelectionSlider(options=GPUS, value=64, description="GPUs"),
        batch=ipywidgets.IntSlider(batch, 8, max(512, 2 * batch), 8, description="batch per GPU"),
        network=ipywidgets.Dropdown(options=NETWORKS, value="nvlink+100g"),
        overlap=ipywidgets.Checkbox(True, description="overlap with backward"),
        price=ipywidgets.FloatSlider(2.0, min=0.1, max=10, step=0.1, description="price per hour"),
    )

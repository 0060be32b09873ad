"""What notebook 08 predicts for more GPUs: the exchange, the step and its parts, time and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rn50 import plot
from rn50.published import load
from rn50.scaling import Cluster, PredictedStep, Training, links, predict
from rn50.scaling.command import large_batch
from rn50.scaling.model import all_reduce_s
from workshop.lessons.scaling import figures, readings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GPUS = tuple(2**i for i in range(10))  # 1 to 512
MANY_GPUS = tuple(2**i for i in range(13))
NETWORKS = (
    "pcie+10g", "pcie+25g", "nvlink+25g", "nvlink+100g", "nvlink3+8x200g", "nvlink4+8x400g"
)  # fmt: skip


def cluster(network: str, **changes: Any) -> Cluster:
    """Hosts of 8 on this network, with the noise that the published DGX-1 rows give."""
    noise = load()["DGX-1", "mixed"].noise
    return replace(Cluster(*links.parse(network), noise=noise), **changes)


# --- the parts ------------------------------------------------------------------------------------


def exchange(training: Training, network: str = "nvlink+100g") -> tuple[Figure, str]:
    """Milliseconds of an all-reduce of all gradients by ring and hierarchically; and what of it a
    step waits for, with and without overlap."""
    from matplotlib.figure import Figure

    size = sum(bucket.size for bucket in training.buckets)
    lines = {
        name: [1000 * all_reduce_s(cluster(network, algorithm=name), n, size) for n in GPUS]
        for name in ("ring", "hierarchical")
    }
    exposed = {
        overlap: [
            1000 * predict(training, cluster(network, overlap=overlap), n).exposed_s for n in GPUS
        ]
        for overlap in (False, True)
    }
    with plot.style():
        figure = Figure(figsize=(10.5, 3.7))
        left, right = figure.subplots(1, 2)
        for name, values in lines.items():
            left.plot(GPUS, values, ms=6, label=name)
        left.set_title(f"All-reduce of {size / 1e6:.0f} MB")
        for overlap, values in exposed.items():
            label = "while backward goes on" if overlap else "after the backward pass"
            right.plot(GPUS, values, ms=6, label=label)
        right.set_title("What a step waits for of it")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(GPUS, [str(n) for n in GPUS])
            axes.minorticks_off()
            axes.set(xlabel="GPUs", ylabel="milliseconds")
            axes.set_ylim(bottom=0)
            axes.legend()
    return figure, (
        f"With {GPUS[-1]} GPUs an all-reduce takes {lines['ring'][-1]:.0f} ms as one ring and"
        f" {lines['hierarchical'][-1]:.0f} ms hierarchically. A step of"
        f" {1000 * training.compute_s:.0f} ms waits {exposed[False][-1]:.0f} ms for it without"
        f" overlap, {exposed[True][-1]:.1f} ms with it."
    )


def strong_rows(training: Training, network: str, global_batch: int) -> list[list[Any]]:
    """(GPUs, times as fast with the batch kept, images per GPU where all share `global_batch`,
    times as fast so).

    One GPU is taken to reach the same images per second with every batch, which flatters small
    batches.
    """
    here = cluster(network)
    rows: list[list[Any]] = []
    for n in GPUS:
        share = global_batch // n
        strong = n * predict(replace(training, batch=share), here, n).efficiency if share else None
        rows.append([n, n * predict(training, here, n).efficiency, share or None, strong])
    return rows


# --- calibrated here ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    """What this machine's own one worker and own all-reduce predict for several: img/s."""

    predicted: PredictedStep
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.ips / self.measured - 1

    @property
    def exchange_share(self) -> float:
        """The exchange, hidden or not, over the measured step."""
        step = self.predicted
        took = step.gpus * step.batch / self.measured
        return (step.exposed_s + step.hidden_s) / took

    def rows(self) -> list[list[Any]]:
        """The parts of the predicted step beside the measured one, in milliseconds."""
        step, took = self.predicted, self.predicted.gpus * self.predicted.batch / self.measured
        return [
            ["computing, as one worker alone (measured)", 1000 * step.compute_s],
            ["the exchange in all (from your all-reduce)", 1000 * (step.exposed_s + step.hidden_s)],
            ["of which the model hides beneath the backward pass", 1000 * step.hidden_s],
            ["a step, predicted", 1000 * step.step_s],
            ["a step, measured", 1000 * took],
            ["what the model does not know of", 1000 * (took - step.step_s)],
        ]


def predict_here(
    training: Training, workers: int, latency_s: float, bytes_per_s: float, ips: float
) -> Here:
    """The model with nothing fitted: one worker's speed, the line through the times of `workers`
    workers' all-reduces, and no noise; beside the measured `ips`."""
    link = links.measured(workers, latency_s, bytes_per_s)
    own = Cluster(link, gpus_per_host=workers, start_s=0.0)
    return Here(predict(training, own, workers), ips)


# --- published rows -------------------------------------------------------------------------------


def held_out_rows() -> tuple[list[list[Any]], list[str]]:
    """(rows, columns): every row that was not fitted, and the error of each prediction in %."""
    rows = [
        [f"{o.series.name} {o.series.precision}", o.gpus, o.published,
         *(f"{o.error(name):+.1f}" for name in readings.NAMES)]
        for o in readings.outcomes() if not o.fitted
    ]  # fmt: skip
    return rows, ["measured by", "GPUs", "img/s published", *(f"{n}, %" for n in readings.NAMES)]


def by_reading(
    training: Training, network: str, gpus: Sequence[int]
) -> tuple[list[list[Any]], list[str]]:
    """(rows, columns): the efficiency in % by each reading of the published DGX-1 rows, with the
    float16 gradients of those rows."""
    training = replace(training, gradient_bytes=load()["DGX-1", "mixed"].gradient_bytes)
    rows: list[list[Any]] = []
    for reading in readings.READINGS:
        value = readings.parameter("DGX-1", "mixed", reading)
        entered = reading.enter(cluster(network), value)
        found = [100 * predict(training, entered, n).efficiency for n in gpus]
        rows.append([reading.name, reading.describe(value), *found])
    spread = [max(column) - min(column) for column in list(zip(*rows, strict=True))[2:]]
    rows.append(["between the highest and the lowest, points", "", *spread])
    return rows, ["time is lost to", "fitted", *(f"{n} GPUs" for n in gpus)]


def changes(training: Training, network: str, gpus: int) -> list[list[Any]]:
    """(what is changed, efficiency in %) of a prediction, one change for the worse at a time."""
    real = cluster(network)
    cases = {
        "as it is": (training, real),
        "a quarter of the batch": (replace(training, batch=max(1, training.batch // 4)), real),
        "no overlap with backward": (training, replace(real, overlap=False)),
        "one ring instead of hierarchical": (training, replace(real, algorithm="ring")),
        "loaders that deliver 8,000 img/s a host": (training, replace(real, input_ips=8000.0)),
    }
    return [[name, 100 * predict(*case, gpus).efficiency] for name, case in cases.items()]


# --- what more GPUs would do ----------------------------------------------------------------------


def steps(
    gpus: int, batch: int, network: str, overlap: bool, ips: float, noise: float | None = None
) -> list[PredictedStep]:
    """The predicted steps of 1 to `gpus` GPUs; `noise` is a share of a step, None as published."""
    changes: dict[str, Any] = {"overlap": overlap} | ({} if noise is None else {"noise": noise})
    here = cluster(network, **changes)
    return [predict(Training(ips, batch), here, n) for n in MANY_GPUS if n <= gpus]


def predicted(
    gpus: int, batch: int, network: str, overlap: bool, price: float, ips: float,
    noise: float | None = None,
) -> tuple[Figure, str]:  # fmt: skip
    """Efficiency and the parts of a step up to `gpus` GPUs, and what 90 epochs take and cost.

    `ips` is what one GPU reaches, for every batch alike; `price` is that of a GPU for an hour.
    """
    found = steps(gpus, batch, network, overlap, ips, noise)
    figure, sentence = figures.prediction(found)
    hours = found[-1].hours()
    took = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
    cost = f"{hours * gpus * price:,.0f} at {price:g} for each GPU and hour"
    bill = f"90 epochs of ImageNet: {took}, {cost}. {large_batch(found[-1])}".rstrip()
    return figure, f"{sentence} {bill}"


def explore(ips: float, batch: int, noise: float | None = None) -> None:
    """The prediction with its controls: GPUs, batch, network, overlap and price."""
    import ipywidgets

    from workshop import output

    def draw(**values: Any) -> tuple[Figure, str]:
        return predicted(ips=ips, noise=noise, **values)

    def alt(**values: Any) -> str:
        return "Predicted efficiency by GPUs, and the parts of a step. " + draw(**values)[1]

    output.explore(
        draw,
        alt,
        gpus=ipywidgets.SelectionSlider(options=MANY_GPUS, value=64, description="GPUs"),
        batch=ipywidgets.IntSlider(batch, 8, max(512, 2 * batch), 8, description="batch per GPU"),
        network=ipywidgets.Dropdown(options=NETWORKS, value="nvlink+100g"),
        overlap=ipywidgets.Checkbox(True, description="overlap with backward"),
        price=ipywidgets.FloatSlider(2.0, min=0.1, max=10, step=0.1, description="price per hour"),
    )

"""Figures of notebook 08 on what grows with the GPUs: the exchange, the speed, the batch.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.comm.measure import Measured
from rn50lib.tools import plot
from rn50lib.tools.scaling import Cluster, Step, Training, check, links, predict
from rn50lib.tools.scaling.calibrate import link
from rn50lib.tools.scaling.fit import MODEL
from rn50lib.tools.scaling.model import all_reduce_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GPUS = tuple(2**i for i in range(10))  # 1 to 512
BLUE, ORANGE, GREEN, PINK = plot.COLOURS[:4]
GREY = "#5b6b7a"


def cluster(network: str, **changes: Any) -> Cluster:
    """Hosts of 8 on this network, with the noise that the published DGX-1 rows give."""
    noise = check.parameter("DGX-1", "mixed", MODEL)
    return replace(Cluster(*links.parse(network), noise=noise), **changes)


def on_gpus(axes: Axes, at: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [str(n) for n in at])
    axes.minorticks_off()
    axes.set_xlabel("GPUs")


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
        for (name, values), mark in zip(lines.items(), "os", strict=True):
            left.plot(GPUS, values, marker=mark, ms=6, label=name)
        left.set(title=f"All-reduce of {size / 1e6:.0f} MB", ylabel="milliseconds")
        for (overlap, values), mark, colour in zip(
            exposed.items(), "^D", (GREEN, PINK), strict=True
        ):
            label = "while backward goes on" if overlap else "after the backward pass"
            right.plot(GPUS, values, marker=mark, ms=6, color=colour, label=label)
        right.set(title="What a step waits for of it", ylabel="milliseconds")
        for axes in (left, right):
            on_gpus(axes, GPUS)
            axes.set_ylim(bottom=0)
            axes.legend()
    return figure, (
        f"With {GPUS[-1]} GPUs an all-reduce takes {lines['ring'][-1]:.0f} ms as one ring and"
        f" {lines['hierarchical'][-1]:.0f} ms hierarchically. A step of"
        f" {1000 * training.compute_s:.0f} ms waits {exposed[False][-1]:.0f} ms for it without"
        f" overlap, {exposed[True][-1]:.1f} ms with it."
    )


def weak_against_strong(training: Training, network: str, global_batch: int) -> tuple[Figure, str]:
    """Speed-up over one GPU: every GPU keeps its batch, or all share `global_batch`.

    One GPU is taken to reach the same images per second with every batch, which flatters small
    batches.
    """
    from matplotlib.figure import Figure

    here = cluster(network)
    weak = [n * predict(training, here, n).efficiency for n in GPUS]
    at = [n for n in GPUS if n <= global_batch]
    strong = [
        n * predict(replace(training, batch=global_batch // n), here, n).efficiency for n in at
    ]
    with plot.style():
        figure = Figure(figsize=(10.5, 3.7))
        axes = figure.subplots()
        axes.plot(GPUS, GPUS, color=GREY, ls="--", lw=1.2, marker="", label="perfect")
        axes.plot(GPUS, weak, color=BLUE, marker="o", ms=6,
                  label=f"weak: {training.batch} images per GPU")  # fmt: skip
        axes.plot(at, strong, color=ORANGE, marker="s", ms=6,
                  label=f"strong: {global_batch:,} images in all")  # fmt: skip
        on_gpus(axes, GPUS)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set(title="Predicted speed-up over one GPU", ylabel="times as fast")
        axes.legend()
    most = max(range(len(at)), key=lambda i: strong[i])
    return figure, (
        f"Weak scaling reaches {weak[-1]:.0f} times the speed with {GPUS[-1]} GPUs and a global"
        f" batch of {GPUS[-1] * training.batch:,}. With {global_batch:,} images in all the speed-up"
        f" is at most {strong[most]:.0f} times, with {at[most]} GPUs of"
        f" {global_batch // at[most]} images each."
    )


# --- calibrated here ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    """What this machine's own one worker and own all-reduce predict for several: img/s."""

    predicted: Step
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.ips / self.measured - 1

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


def predict_here(training: Training, measured: Measured, ips: float) -> Here:
    """The model with nothing fitted: one worker's speed, the all-reduce, and no noise."""
    told = {"n": measured.n, "latency_s": measured.latency_s, "bytes_per_s": measured.bytes_per_s}
    own = Cluster(link(told, "measured here"), gpus_per_host=measured.n, start_s=0.0)
    return Here(predict(training, own, measured.n), ips)


# --- published rows -------------------------------------------------------------------------------


def held_out_rows() -> tuple[list[list[Any]], list[str]]:
    """(rows, columns): every row that was not fitted, and the error of each prediction in %."""
    rows = [
        [f"{o.series.name} {o.series.precision}", o.gpus, o.published,
         *(f"{100 * o.error(name):+.1f}" for name in check.NAMES)]
        for o in check.outcomes() if not o.fitted
    ]  # fmt: skip
    return rows, ["measured by", "GPUs", "img/s published", *(f"{n}, %" for n in check.NAMES)]


def why(training: Training, network: str, gpus: int) -> list[list[Any]]:
    """(what is changed, efficiency in %) of a prediction: one cause at a time taken away."""
    real = cluster(network)
    assert real.between is not None
    free = replace(real.between, bytes_per_s=1e18, latency_s=0.0)
    cases = {
        "as it is": (training, real),
        "without stragglers": (training, replace(real, noise=0.0)),
        "network between hosts infinitely fast": (training, replace(real, between=free)),
        "a quarter of the batch": (replace(training, batch=max(1, training.batch // 4)), real),
        "no overlap with backward": (training, replace(real, overlap=False)),
        "one ring instead of hierarchical": (training, replace(real, algorithm="ring")),
        "loaders that deliver 8,000 img/s a host": (training, replace(real, input_ips=8000.0)),
    }
    return [[name, 100 * predict(*case, gpus).efficiency] for name, case in cases.items()]


def accuracy(errors: Mapping[int, tuple[float, float]], others: Mapping[str, tuple[int, float]]
             ) -> tuple[Figure, str]:  # fmt: skip
    """Published top-1 over the global batch: `errors` is batch -> (error in %, its spread),
    `others` is a name -> (batch, top-1 in %)."""
    from matplotlib.figure import Figure

    at = sorted(errors)
    top1 = [100 - errors[b][0] for b in at]
    with plot.style():
        figure = Figure(figsize=(10.5, 3.7))
        axes = figure.subplots()
        axes.errorbar(at, top1, [errors[b][1] for b in at], color=BLUE, marker="o", ms=6, capsize=4,
                      label="SGD, rate scaled linearly, 5 epochs of warm-up")  # fmt: skip
        for (name, (b, value)), mark, colour in zip(
            others.items(), "*Xs", (GREEN, ORANGE, PINK), strict=False
        ):
            axes.plot(b, value, ls="", marker=mark, ms=13, color=colour, label=name)
        on_gpus(axes, at)
        axes.set_xticks(at, [f"{b:,}" for b in at], rotation=30)
        axes.set(title="ResNet-50 on ImageNet, published", xlabel="global batch",
                 ylabel="top-1, per cent")  # fmt: skip
        axes.legend(loc="lower left")
    small = errors[at[0]][0]
    kept = max(b for b in at if errors[b][0] - small < 0.5)
    return figure, (
        f"Up to a global batch of {kept:,} the published top-1 stays within half a point of that"
        f" of {at[0]:,}; at {at[-1]:,} it is {errors[at[-1]][0] - small:.1f} points lower."
    )


def layer_rates(
    weights: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]
) -> tuple[Figure, str]:
    """LARS looks at this: the norm of each layer's weights over that of its gradient."""
    from matplotlib.figure import Figure

    ratio = [
        float(np.linalg.norm(weights[name])) / max(float(np.linalg.norm(gradients[name])), 1e-12)
        for name in weights
    ]
    with plot.style():
        figure = Figure(figsize=(10.5, 3.2))
        axes = figure.subplots()
        axes.bar(range(1, len(ratio) + 1), ratio, color=BLUE)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_yscale("log")
        axes.set(title="Norm of the weights over norm of the gradient",
                 xlabel="layer, from the first to the last", ylabel="ratio")  # fmt: skip
        axes.grid(axis="x", visible=False)
    names = list(weights)
    low, high = int(np.argmin(ratio)), int(np.argmax(ratio))
    return figure, (
        f"The ratio is {ratio[low]:.3g} in {names[low]} and {ratio[high]:.3g} in {names[high]}:"
        f" a step that is right for one is {ratio[high] / ratio[low]:.0f} times off for the other."
    )

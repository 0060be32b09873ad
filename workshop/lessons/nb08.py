"""Notebook 08: predictions for more GPUs, next to the published rows.

Compute comes from the row of one GPU; bandwidths, latencies and buckets have sources and are never
fitted. Rows of images per second cannot show why a step gets longer, so each reading
attributes all of the loss to one cause, with one parameter fitted to the rows with few GPUs:

- "stragglers": the step times of the GPUs vary, and all wait for the slowest;
- "communication": nothing overlaps, and the links reach only a share of their bandwidth.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

from scipy.optimize import minimize_scalar

from rn50.published import Series, load
from rn50.scaling import Cluster, Training, links, predict


def stragglers(training: Training, cluster: Cluster, noise: float, gpus: int) -> float:
    """Return the images per second if a step's relative standard deviation is `noise`."""
    return predict(training, replace(cluster, noise=noise), gpus).ips


def communication(training: Training, cluster: Cluster, share: float, gpus: int) -> float:
    """Return the images per second without overlap, with a share of the bandwidth."""
    slower = replace(
        cluster, noise=0.0, overlap=False, local=cluster.local.slower(share),
        between=cluster.between.slower(share) if cluster.between else None,
    )  # fmt: skip
    return predict(training, slower, gpus).ips


def amdahl(training: Training, cluster: Cluster, serial: float, gpus: int) -> float:
    """Return the images per second if a share of the work does not get faster (Amdahl's law)."""
    return training.compute_ips / (serial + (1 - serial) / gpus)


READINGS = {  # with the lowest value of the parameter; the highest is 1
    "stragglers": (stragglers, 0.0),
    "communication": (communication, 1e-4),
    "Amdahl": (amdahl, 0.0),
}


def published(series: Series) -> tuple[Training, Cluster]:
    """Return the training on one GPU, from its published row, and the hosts of the publication."""
    training = Training(series.ips[1], series.batch, series.gradient_bytes)
    return training, Cluster(*links.parse(series.network), gpus_per_host=series.gpus_per_host)


@functools.cache
def parameter(name: str, precision: str, reading: str) -> float:
    """Return a reading's parameter for a series, fitted to its rows or to those of another series.

    The fit minimises the squared logarithm of predicted over measured speed.
    """
    series, (ips, low) = load()[name, precision], READINGS[reading]
    if series.parameters_of:
        return parameter(*series.parameters_of, reading)
    of = published(series)
    rows = [(n, series.ips[n]) for n in series.fit_on if n > 1]

    def loss(value: float) -> float:
        return sum(math.log(ips(*of, value, n) / measured) ** 2 for n, measured in rows)

    options = {"xatol": 1e-10}
    return float(minimize_scalar(loss, bounds=(low, 1.0), method="bounded", options=options).x)


def predictions(key: tuple[str, str], gpus: int) -> dict[str, float]:
    """Return images per second on so many GPUs of a published series, by the name of the model."""
    of = published(load()[key])
    found = {name: ips(*of, parameter(*key, name), gpus) for name, (ips, _) in READINGS.items()}
    return found | {"perfect": gpus * of[0].compute_ips, "wires only": predict(*of, gpus).ips}


def held_out(*names: str) -> tuple[list[list[Any]], dict[str, str]]:
    """Return a row per published row that was not fitted, and what two models have to assume.

    A row has the series, GPUs, img/s, and the error of each named model in percent.
    """
    rows: list[list[Any]] = []
    words = {"communication": "this share of the bandwidth", "stragglers": "steps that vary by"}
    fitted = {" ".join(key): key for key, series in load().items() if series.fit_on}
    for key, series in load().items():
        for gpus in [n for n in series.ips if n > 1 and n not in series.fit_on]:
            ips, found = series.ips[gpus], predictions(key, gpus)
            errors = [100 * (found[name] / ips - 1) for name in names]  # 2 is 2% too fast
            rows.append([f"{series.name} {series.precision}", gpus, ips, *errors])
    shares = {model: ", ".join(f"{100 * parameter(*key, model):.0f}% ({name})"
                               for name, key in fitted.items()) for model in words}  # fmt: skip
    return rows, {model: f"{words[model]}: {text}" for model, text in shares.items()}


def efficiency(
    gpus: int, reading: str, batch: int, ips: float, network: str, fitted: str = "DGX-1"
) -> float:
    """Return the predicted share of perfect speed, from 0 to 1.

    Gradients are sent in 2 bytes each, as rung 5 does, and as the DGX-1 did in mixed precision.

    Args:
        gpus: How many GPUs, in hosts of 8.
        reading: The cause of the loss.
        batch: Images per GPU.
        ips: Images per second of one GPU with that batch.
        network: Within and between the hosts, as for `rn50 scale`.
        fitted: The published series whose mixed-precision rows give the parameter.
    """
    one, hosts = Training(ips, batch, gradient_bytes=2), Cluster(*links.parse(network))
    value = parameter(fitted, "mixed", reading)
    return READINGS[reading][0](one, hosts, value, gpus) / (gpus * ips)

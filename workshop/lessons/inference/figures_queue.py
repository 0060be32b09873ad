"""Figures of notebook 07 about waiting: percentiles of latencies, and a queue to play with.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rn50lib.tools import plot
from rn50lib.tools.benchmark.result import PERCENTILES, percentile
from workshop.lessons.inference.queueing import Service, play, poisson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from workshop.lessons.inference.serving import Load

BLUE, ORANGE, GREEN = plot.COLOURS[:3]
GREY = "#5b6b7a"
REQUESTS = 3000  # that a simulation plays through
LOADS = np.array([0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95])  # of what can be answered


def latencies(seconds: np.ndarray) -> tuple[Figure, str]:
    """How many requests took how long, with the mean and the percentiles; and all of them in the
    order in which they came."""
    from matplotlib.figure import Figure

    ordered, mean = sorted(1000 * seconds), 1000 * float(np.mean(seconds))
    found = {p: percentile(ordered, p) for p in PERCENTILES}
    with plot.style():
        figure = Figure(figsize=(10.5, 3.6))
        left, right = figure.subplots(1, 2)
        left.plot(1000 * seconds, ls="", ms=4, color=BLUE)
        left.set(title="Requests in their order", xlabel="request", ylabel="milliseconds")
        share = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
        right.step(ordered, share, where="post", color=BLUE, marker="", lw=1.8)
        right.axvline(mean, color=GREY, ls=":", marker="", lw=1.6, label=f"mean {mean:.1f} ms")
        for p, value in found.items():
            right.plot([value], [p], "s", color=ORANGE, ms=6)
            above = p == PERCENTILES[-1]
            right.annotate(f"p{p}", (value, p), xytext=(2, 5) if above else (6, -11),
                           textcoords="offset points", fontsize=8.5)  # fmt: skip
        right.set_ylim(-3, 112)
        right.set(title="How many were answered by then", xlabel="milliseconds",
                  ylabel="per cent of the requests")  # fmt: skip
        right.set_xlim(min(ordered) * 0.9, 1.1 * max(found[99], 1.5 * found[50]))
        right.legend(loc="lower right")
        left.set_ylim(bottom=0)
    told = ", ".join(f"{p} % within {value:.1f} ms" for p, value in found.items())
    return figure, f"The mean is {mean:.1f} ms; {told}."


def queue(service: Service, rate: float, limit: int, wait: float) -> tuple[Figure, str]:
    """Latency of every request, and p50 and p99 over the load, for a server with this batch limit.

    `rate` in requests per second, `wait` in milliseconds.
    """
    from matplotlib.figure import Figure

    most = service.capacity(limit)
    held = wait / 1000
    served = play(poisson(rate, REQUESTS), service, limit, held)
    p50, p99 = (1000 * served.percentile(p) for p in (50, 99))
    rates = most * LOADS
    curves = [play(poisson(r, REQUESTS), service, limit, held) for r in rates]
    with plot.style():
        figure = Figure(figsize=(10.5, 3.9))
        left, right = figure.subplots(1, 2)
        left.plot(served.arrived, 1000 * served.latencies, ls="", ms=2, color=BLUE)
        left.axhline(p50, color=GREEN, marker="", lw=1.6, label=f"p50 {p50:,.1f} ms")
        left.axhline(p99, color=ORANGE, marker="", lw=1.6, ls="--", label=f"p99 {p99:,.1f} ms")
        left.set(title=f"{REQUESTS:,} requests", xlabel="arrived at second",
                 ylabel="milliseconds to the answer")  # fmt: skip
        left.set_ylim(0, 1.35 * 1000 * float(served.latencies.max()))
        left.legend(loc="upper left", ncols=2)
        for p, colour, dashes in ((50, GREEN, "-"), (99, ORANGE, "--")):
            values = [1000 * one.percentile(p) for one in curves]
            right.plot(rates, values, color=colour, ls=dashes, ms=5, label=f"p{p}")
        right.axvline(most, color="black", lw=1.2, ls=":", marker="")
        right.text(most, 0.02, " at most", transform=right.get_xaxis_transform(), fontsize=9)
        right.plot([rate, rate], [p50, p99], ls="", marker="*", ms=12, color="black", label="yours")
        right.set(title="Latency over the load", xlabel="requests per second", yscale="log",
                  ylabel="milliseconds")  # fmt: skip
        right.set_xlim(0, 1.25 * max(most, rate))
        plot.plain_numbers(right.yaxis)
        right.legend(loc="upper left")
    return figure, queue_sentence(rate, most, p50, p99, served.utilisation, served.mean_batch)


def queue_sentence(
    rate: float, most: float, p50: float, p99: float, utilisation: float, batch: float
) -> str:
    told = (
        f"{rate:,.0f} requests per second, of at most {most:,.0f}: half of them wait up to"
        f" {p50:,.1f} ms, and 1 of 100 more than {p99:,.1f} ms. The server works"
        f" {100 * utilisation:.0f} % of the time, on {batch:.1f} requests at once in the mean."
    )
    if rate >= most:
        told += " That is more than it can answer: the longer it lasts, the longer one waits."
    return told


def load_rows(loads: Sequence[Load], service: Service) -> list[list[object]]:
    """(requests per second, batch limit, p50 measured, played; p99 measured, played; requests at
    once; per cent of the time at work), latencies in milliseconds."""
    rows: list[list[object]] = []
    for load in loads:
        real, played = load.served, play(load.served.arrived, service, load.limit)
        rows.append([
            load.rate, load.limit,
            *(1000 * one.percentile(p) for p in (50, 99) for one in (real, played)),
            real.mean_batch, 100 * real.utilisation,
        ])  # fmt: skip
    return rows

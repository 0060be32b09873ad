"""A diagnosis as text and as the content of a JSON file."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any

from rn50lib.hardware import machine
from rn50lib.tools.diagnose import model
from rn50lib.tools.diagnose.bench import flops
from rn50lib.tools.diagnose.diagnosis import Diagnosis, memory_of

GB = 1e9


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
            "formula": found.sharing.words,
        },
        "utilisation": {
            name: {"cores": run.cores, "of": found.sharing.cores, "gpu_percent": run.gpu}
            for name, run in found.measured.items()
        },
        "stages": found.stages,
        "exchange": found.exchange,
        "memory": memory_of(found),
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
    peak = max(found.peak.values()) * workers_devices(found) if found.peak else None
    return {
        "per_image": each,
        "per_second": rate,
        "peaks": found.peak,
        "peak": peak,
        "share_of_peak": rate / peak if peak else None,
    }


def workers_devices(found: Diagnosis) -> int:
    """How many times the measured peak the workers have: each has its own GPU, or its threads."""
    return found.done.n


def text(found: Diagnosis) -> str:
    """The findings as lines, the sentence first."""
    rates, done = found.rates, found.done
    lines = [found.verdict, "", f"  {'':22}{'img/s':>10}  {'ms per image':>12}  in use"]
    rows = [("loader alone", "loader", rates.loader), ("step alone", "step", rates.compute)]
    if rates.without_exchange != rates.compute:
        rows.append(("step without exchange", "", rates.without_exchange))
    if rates.loader != model.FREE:
        rows += [("both together", "both", rates.both), ("  predicted", "", found.predicted)]
    for name, part, ips in rows:
        if ips != model.FREE:
            lines.append(f"  {name:22}{ips:10,.1f}  {1000 / ips:12.3f}  {in_use(found, part)}")
    if rates.loader != model.FREE:
        lines[-1] += f"{found.sharing.words}: {percent(found.predicted / rates.both - 1)}"
    if found.stages:
        parts = ", ".join(f"{name} {1000 * s:.3g} ms" for name, s in found.stages.items())
        lines.append(f"  an image on one core: {parts}")
    if found.exchange:
        lines.append(
            f"  a step of {1000 * found.exchange['step_s']:.0f} ms loses"
            f" {1000 * found.exchange['exchange_s']:.0f} ms to the exchange of"
            f" {found.exchange['bytes'] / 1e6:.1f} MB; the all-reduce by itself takes"
            f" {1000 * found.exchange['all_reduce_s']:.0f} ms"
        )
    taken = memory_of(found)
    if taken:
        peak, most = taken["measured_peak"], taken["largest_batch"]
        lines.append(
            f"  memory: {taken['predicted']['total'] / GB:.2f} GB predicted"
            + (f", {peak / GB:.2f} GB measured ({taken['of']})" if peak else "")
            + (f"; the largest batch that should fit is {most:,}" if most is not None else "")
        )
    flop = speed(found)
    if flop:
        line = f"  the model computes {flop['per_second'] / 1e9:,.0f} GFLOP/s"
        if flop["share_of_peak"]:
            line += (
                f", {100 * flop['share_of_peak']:.0f} % of the {flop['peak'] / 1e9:,.0f} that"
                f" {best_of(found)} reaches here in {done.dtype}"
            )
        lines.append(line)
    for change in found.changes:
        line = f"  with {change.flags}: {change.predicted:,.1f} img/s predicted"
        if change.measured is not None and change.error is not None:
            line += f", {change.measured:,.1f} measured ({percent(change.error)})"
        lines.append(line)
    return "\n".join(lines)


def in_use(found: Diagnosis, part: str) -> str:
    """Cores and GPU that a part kept busy."""
    run = found.measured.get(part)
    told = []
    if run and run.cores is not None:
        told.append(f"{run.cores:.1f} of {found.sharing.cores} cores")
    if run and run.gpu is not None:
        told.append(f"GPU {run.gpu:.0f} %")
    return ", ".join(told)


def best_of(found: Diagnosis) -> str:
    """Which operation reached the peak."""
    assert found.peak
    return "a " + max(found.peak, key=lambda name: found.peak[name])  # type: ignore[index]


def percent(error: float) -> str:
    """How far a prediction is off, in words."""
    return f"{abs(100 * error):.0f} % too {'high' if error > 0 else 'low'}"

"""A diagnosis as text."""

from __future__ import annotations

from dataclasses import dataclass

from rn50.diagnose import model
from rn50lib.config import TrainConfig


@dataclass
class Diagnosis:
    """The findings; `peak`, in FLOP per second, may be None."""

    config: TrainConfig
    rates: model.Rates
    changes: list[model.Change]
    verdict: str
    peak: float | None


def text(found: Diagnosis) -> str:
    """Return the verdict, the rates of the parts, and the predictions, as lines."""
    config, rates = found.config, found.rates
    predicted = model.together(rates.loader, rates.compute, rates.formula)
    lines = [found.verdict, "", f"  {'':22}{'img/s':>10}  {'ms per image':>12}"]
    rows = [
        ("loader alone", rates.loader),
        ("step alone", rates.compute),
        ("step without exchange", rates.without_exchange),
        ("both together", rates.both),
        (f"  predicted ({rates.formula})", predicted),
    ]
    for name, ips in rows:
        if ips != model.FREE and (ips != rates.compute or name == "step alone"):
            lines.append(f"  {name:22}{ips:10,.1f}  {1000 / ips:12.3f}")
    if config.n > 1 and config.trains:
        step, alone = (
            1000 * config.global_batch / ips for ips in (rates.compute, rates.without_exchange)
        )
        megabytes = 4e-6 * config.to_network().num_parameters
        lines.append(
            f"  a step of {step:.0f} ms loses {max(0.0, step - alone):.0f} ms to the exchange of"
            f" {megabytes:.1f} MB"
        )
    if found.peak is not None:
        rate = flops_per_image(config) * rates.both
        share = rate / (found.peak * config.n)  # each worker has its device
        lines.append(
            f"  the model computes {rate / 1e9:,.0f} GFLOP/s,"
            f" {100 * share:.0f}% of the fastest matrix product here"
        )
    for change in found.changes:
        lines.append(f"  with {change.flags}: {change.predicted:,.1f} img/s predicted")
    return "\n".join(lines)


def flops_per_image(config: TrainConfig) -> float:
    net, size = config.to_network(), config.image_shape
    return 2 * net.macs(size) if config.only_inference else net.train_flops(size)

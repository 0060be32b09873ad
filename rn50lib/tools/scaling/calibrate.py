"""What measurements say about the model: reports, benchmarks, all-reduces, diagnoses.

`rn50 scale --calibrate FILE` reads any of these, told apart by what they hold:

- a report of a run (`rn50 run --report`): batch, precision and img/s, of one worker or of several;
- a benchmark (`metric_keys`, `bs`, `ngpus`, `metrics`): the same for several numbers of workers;
- a measured all-reduce (`rn50 doctor --allreduce`): latency and bandwidth of the link;
- a diagnosis (`rn50 diagnose --json`): loader and step alone, with and without exchange, and one
  bare all-reduce;
- plain numbers, at the top of the file or under its key `scaling`: any of batch, dtype,
  compute_ips, input_ips (a host's loaders), noise (of a step's time, as a share) and allreduce (as
  above).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import read_json
from rn50lib.tools.scaling.links import Link

NUMBERS = ("compute_ips", "input_ips", "noise")
SEEN = "train.total_ips"
AXES: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (  # ours, the report's, its type
    ("batch", "batch_size", int),
    ("dtype", "dtype", str),
    ("image_shape", "image_shape", int),
    ("num_classes", "num_classes", int),
)


@dataclass
class Measured:
    """What files told; None where they did not. `rows`: images per second by workers; `model`,
    `image_shape` and `num_classes` are those of a report."""

    batch: int | None = None
    dtype: str | None = None
    compute_ips: float | None = None
    input_ips: float | None = None
    noise: float | None = None
    model: str | None = None
    image_shape: int | None = None
    num_classes: int | None = None
    link: Link | None = None
    rows: dict[int, float] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def read(paths: list[str], batch: int | None = None) -> Measured:
    """All files together; `batch` chooses among the batches of a benchmark.

    Raises UserError for a file that is none of the kinds, or that contradicts one before it.
    """
    found = Measured(batch=batch)
    for path in paths:
        try:
            told = read_json(path)
        except (OSError, ValueError) as error:
            raise UserError(f"--calibrate {path} cannot be read as JSON: {error}") from None
        try:
            take(found, told, path)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"--calibrate {path}: {why(error)}; it takes a report of a run, a benchmark, a"
                " measured all-reduce (`rn50 doctor --allreduce`) or a diagnosis"
            ) from None
        found.files.append(Path(path).name)
    if found.rows and found.compute_ips is None:
        if 1 not in found.rows:
            raise UserError(
                f"--calibrate {', '.join(paths)}: no run of one worker in there, from which its"
                " compute would be known; add a report of `rn50 run -n 1`"
            )
        found.compute_ips = found.rows[1]
    return found


def take(found: Measured, told: Any, path: str) -> None:
    """Put what one file tells into `found`."""
    if not isinstance(told, dict):
        raise ValueError("its JSON is no object")
    if "metric_keys" in told:
        found.batch = found.batch or best_batch(told)
        for n, cells in told["metrics"].items():
            ips = (cells.get(str(found.batch)) or {}).get(SEEN)
            if ips is not None:
                found.rows[int(n)] = positive(ips, SEEN)
        if not found.rows:
            raise ValueError(f"no {SEEN} at batch {found.batch}")
    elif "metrics" in told and "ngpus" in told:
        found.model = agreed("model", found.model, str(told["model"]))
        axes = told.get("env", {}).get("axes", {})
        for name, axis, kind in AXES:
            if axis in axes:
                value = agreed(name, getattr(found, name), kind(axes[axis]["value"]))
                setattr(found, name, value)
        speeds = [ips for ips in told["metrics"][SEEN] if ips]
        found.rows[int(told["ngpus"])] = positive(statistics.median(speeds[1:] or speeds), SEEN)
    elif "latency_s" in told and "bytes_per_s" in told:
        found.link = link(told, path)
    elif "rates" in told and "experiment" in told:
        diagnosis(found, told, path)
    else:
        plain(found, told.get("scaling", told), path)


def diagnosis(found: Measured, told: Mapping[str, Any], path: str) -> None:
    """Rates are of all workers of the one host; its loaders' is what they get from its CPUs."""
    done, rates, exchange = told["experiment"], told["rates"], told.get("exchange")
    n = int(done["n"])
    for name, axis, kind in AXES:
        if done.get(axis) is not None:
            setattr(found, name, agreed(name, getattr(found, name), kind(done[axis])))
    tiny = done.get("network") == "tiny"
    model = "resnet-tiny" if tiny else f"resnet{done.get('num_layers') or 50}"
    found.model = agreed("model", found.model, model)
    found.compute_ips = positive(rates["without_exchange"], "without_exchange") / n
    if rates.get("loader") is not None:
        found.input_ips = positive(rates["loader"], "loader")
    if exchange and n > 1:  # one size: all of its time is put down to the bandwidth
        found.rows[n] = positive(rates["compute"], "compute")
        rate = exchange["bytes"] / positive(exchange["all_reduce_s"], "all_reduce_s")
        found.link = link({"n": n, "latency_s": 0, "bytes_per_s": rate}, path)


def plain(found: Measured, told: Mapping[str, Any], path: str) -> None:
    if not any(told.get(key) is not None for key in (*NUMBERS, "batch", "allreduce")):
        raise ValueError("there is none of " + ", ".join((*NUMBERS, "batch", "allreduce")))
    for key in NUMBERS:
        if told.get(key) is not None:
            least = 0.0 if key == "noise" else None
            setattr(found, key, positive(told[key], key, least))
    if told.get("batch") is not None:
        found.batch = agreed("batch", found.batch, int(told["batch"]))
    if told.get("dtype") is not None:
        found.dtype = agreed("dtype", found.dtype, str(told["dtype"]))
    if told.get("allreduce") is not None:
        found.link = link(told["allreduce"], path)


def link(told: Mapping[str, Any], path: str) -> Link:
    """The link between two neighbours of the ring that took latency_s + size / bytes_per_s."""
    n, steps = int(told["n"]), 2 * (int(told["n"]) - 1)
    if n < 2:
        raise ValueError(f"n is {n}: an all-reduce takes two")
    rate = positive(told["bytes_per_s"], "bytes_per_s") * steps / n
    latency = positive(told["latency_s"], "latency_s", 0.0) / steps
    return Link("measured", rate, latency, f"all-reduce of {n} workers, {Path(path).name}")


def best_batch(told: Mapping[str, Any]) -> int:
    """The largest batch of a benchmark that one worker ran."""
    return max(int(b) for b, cell in told["metrics"]["1"].items() if (cell or {}).get(SEEN))


def why(error: Exception) -> str:
    """A short reason: Python names only the key of a KeyError."""
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def agreed(what: str, before: Any, now: Any) -> Any:
    if before is not None and before != now:
        raise ValueError(f"{what} is {now} here and {before} elsewhere")
    return now


def positive(value: Any, what: str, least: float | None = None) -> float:
    number = float(value)
    if not (number > 0 or number == least) or number == float("inf"):
        raise ValueError(f"{what} is {value}")
    return number

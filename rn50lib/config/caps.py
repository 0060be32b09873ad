"""The caps of `--profile ci`: any experiment in seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rn50lib import recipe as recipes
from rn50lib.config.experiment import Experiment, flag_name


def cap_for_ci(experiment: Experiment, started: bool = False) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment made small enough for a test, and a line for each value that changed. Workers
    that are `started` are as many as they are."""
    limits: dict[str, Any] = {
        "n": experiment.n if started else min(experiment.n, 2),
        "batch_size": min(experiment.batch_size, 4),
        "image_shape": 32,
        "val_resize": recipes.val_resize(32),
        "network": "tiny",
        "num_layers": None,
        "num_epochs": min(experiment.num_epochs, 2),
        "benchmark_iters": min(experiment.benchmark_iters or 2, 2),
        "data_nthreads": 0,
        "threads": 1,  # two would wait for each other more than they compute
        "dtype": "float32" if experiment.dtype == "tf32" else experiment.dtype,
    }
    if experiment.macrobatch_size is not None:
        at_once = min(experiment.micro_batches, limits["benchmark_iters"])
        limits["macrobatch_size"] = limits["batch_size"] * at_once
    changed = {name: value for name, value in limits.items() if value != getattr(experiment, name)}
    lines = tuple(
        f"profile ci: {flag_name(name)} {getattr(experiment, name)} "
        + ("left out" if value is None else f"capped to {value}")
        for name, value in changed.items()
    )
    return replace(experiment, **changed), lines

"""Named runs: the reference's standard configurations, and the recipes for large batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rn50lib.recipe import LARGE_BATCH


@dataclass(frozen=True)
class Preset:
    """A named run: the verb that it belongs to, and values of its flags by name."""

    command: str
    values: Mapping[str, Any]


def _presets() -> dict[str, Preset]:
    presets = {}
    for short, dtype, batch in (("FP16", "float16", 208), ("FP32", "float32", 96)):
        run = {"batch_size": batch, "dtype": dtype, "recipe": "reference", "model_prefix": "model"}
        for n in (1, 4, 8):
            presets[f"RN50_{short}_{n}GPU"] = Preset("run", {"n": n, **run})
    for short, dtype, batch in (("FP16", "float16", 128), ("FP32", "float32", 64)):
        once = {"n": 1, "num_epochs": 1, "only_inference": True}
        presets[f"SCORE_{short}"] = Preset("score", {"batch_size": batch, "dtype": dtype, **once})
    train, infer = {"num_epochs": 2}, {"num_epochs": 3, "only_inference": True}
    sweeps: tuple[tuple[str, list[int], list[int], dict[str, Any]], ...] = (
        ("BENCHMARK_FP16", [1, 4, 8], [64, 128, 192, 208], train),
        ("BENCHMARK_FP32", [1, 4, 8], [32, 64, 96], train),
        ("INFER_BENCHMARK_FP16", [1], [1, 2, 4, 64, 128, 192, 208], infer),
        ("INFER_BENCHMARK_FP32", [1], [1, 2, 4, 32, 64, 96], infer),
    )
    for name, n_list, batches, more in sweeps:
        dtype = "float16" if name.endswith("FP16") else "float32"
        sweep = {"n": n_list, "batch_size": batches, "benchmark_iters": 100, "warmup": 1}
        values = {**sweep, "dtype": dtype, "recipe": "reference", **more}
        presets[name] = Preset("benchmark", values)
    for recipe in LARGE_BATCH:
        assert recipe.global_batch is not None
        workers = {"n": recipe.global_batch // recipe.batch_size, "batch_size": recipe.batch_size}
        presets[recipe.name] = Preset("run", {**workers, "recipe": recipe.name})
    for name in ("reference", "roadsigns"):
        presets[name] = Preset("run", {"recipe": name})
    return presets


PRESETS = _presets()

"""Named runs: the reference's standard configurations, and the recipes for large batches."""

from __future__ import annotations

from dataclasses import dataclass

from rn50lib.recipe import LARGE_BATCH


@dataclass(frozen=True)
class Preset:
    """A named run: the verb that it belongs to and the flags that it sets."""

    command: str
    flags: tuple[str, ...]


def _presets() -> dict[str, Preset]:
    presets = {}
    for dtype, batch in (("FP16", 208), ("FP32", 96)):
        flags = ["-b", str(batch), "--dtype", "float16" if dtype == "FP16" else "float32"]
        for n in (1, 4, 8):
            presets[f"RN50_{dtype}_{n}GPU"] = Preset(
                "run", ("-n", str(n), *flags, "--recipe", "reference", "--model-prefix", "model")
            )
    for dtype, batch in (("FP16", 128), ("FP32", 64)):
        name = "float16" if dtype == "FP16" else "float32"
        presets[f"SCORE_{dtype}"] = Preset(
            "score", ("-n", "1", "-b", str(batch), "--dtype", name, "-e", "1", "--only-inference")
        )
    sweeps = (
        ("BENCHMARK_FP16", "1,4,8", "64,128,192,208", ("-e", "2")),
        ("BENCHMARK_FP32", "1,4,8", "32,64,96", ("-e", "2")),
        ("INFER_BENCHMARK_FP16", "1", "1,2,4,64,128,192,208", ("-e", "3", "--only-inference")),
        ("INFER_BENCHMARK_FP32", "1", "1,2,4,32,64,96", ("-e", "3", "--only-inference")),
    )
    for name, n_list, batches, more in sweeps:
        dtype = "float16" if name.endswith("FP16") else "float32"
        flags = ["-n", n_list, "-b", batches, "-i", "100", "-w", "1", "--dtype", dtype, *more]
        presets[name] = Preset("benchmark", (*flags, "--recipe", "reference"))
    for recipe in LARGE_BATCH:
        assert recipe.global_batch is not None
        n = recipe.global_batch // recipe.batch_size
        workers = ("-n", str(n), "-b", str(recipe.batch_size))
        presets[recipe.name] = Preset("run", (*workers, "--recipe", recipe.name))
    presets["reference"] = Preset("run", ("--recipe", "reference"))
    presets["roadsigns"] = Preset("run", ("--recipe", "roadsigns"))
    return presets


PRESETS = _presets()

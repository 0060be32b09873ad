"""A diagnosis of a run's input, and DALI graphs on the CPU for the exercises of notebook 05."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workshop import output, paths
from workshop.programs import program

if TYPE_CHECKING:
    from nvidia.dali import Pipeline


def diagnose(folder: Path, name: str, *arguments: object) -> dict[str, Any]:
    """Run `rn50 diagnose` in `folder`, show what it prints and its figure; return its JSON.

    `arguments` are flags; a mapping among them is a configuration, which is passed as a file.
    Raises RunFailed if the program fails.
    """
    paths.set_environment()
    flags = []
    for argument in arguments:
        if isinstance(argument, Mapping):
            (folder / f"{name}.config.json").write_text(json.dumps(argument))
            argument = f"--config={name}.config.json"
        flags.append(argument)
    result, drawn = folder / f"{name}.json", folder / f"{name}.png"
    program("rn50", "diagnose", *flags, "--json", result.name, "-o", drawn.name, folder=folder)
    found = dict(json.loads(result.read_text(encoding="utf-8")))
    alt = f"Milliseconds an image: loader, step, both. {found['verdict']}"
    output.Slot().update(output.picture_bundle(drawn.read_bytes(), alt))
    return found


def graph(outputs: Callable[[], Any], batch: int = 1, seed: int = 0) -> Pipeline:
    """Return a built pipeline of one thread on the CPU that outputs what `outputs` returns."""
    from nvidia.dali import pipeline_def

    @pipeline_def
    def described() -> Any:
        found = outputs()
        return tuple(found) if isinstance(found, list) else found

    built = described(
        batch_size=batch, num_threads=1, device_id=None, seed=seed,
        exec_async=False, exec_pipelined=False,
    )  # fmt: skip
    built.build()
    return built

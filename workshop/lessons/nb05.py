"""A diagnosis of a run's input, and DALI graphs on the CPU for the exercises of notebook 05."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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


def padded(files: Sequence[str], rank: int, size: int, batch: int) -> list[list[int]]:
    """Return the file numbers in each batch of a rank in one epoch, the last batch filled up."""
    from nvidia.dali import fn

    def numbers() -> Any:
        _, number = fn.readers.file(
            files=list(files), labels=list(range(len(files))), shard_id=rank, num_shards=size,
            pad_last_batch=True, name="reader",
        )  # fmt: skip
        return number

    built = graph(numbers, batch)
    most = built.reader_meta("reader")["epoch_size_padded"] // size
    return [np.array(built.run()[0].as_array()).ravel().tolist() for _ in range(-(-most // batch))]

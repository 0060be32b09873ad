"""Functions with the mistakes that many scripts for several workers make, for notebook 03.

    override = mistakes.put(no_shard)      # "shard=RUNS/<time>-no_shard/mistakes.py:no_shard"

A worker is a process of its own and imports what it runs from a file, so `put` copies this one into
a folder of its own. There the functions also write down what each rank was given.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SEAM = {"no_shard": "shard", "own_start": "broadcast_start"}


# --- the mistakes, as they run in the workers -----------------------------------------------------


def no_shard(order: np.ndarray, rank: int, size: int, batch: int) -> np.ndarray:
    """Wrong: `rank` is not used, so every rank reads the same images."""
    steps = len(order) // (size * batch)
    rows = order[: steps * batch].reshape(steps, batch)
    note(rank, rows)
    return rows


def own_start(arrays: dict[str, np.ndarray], comm: Any) -> dict[str, np.ndarray]:
    """Wrong: every rank draws initial weights of its own, as a script without a seed does, and
    nobody broadcasts."""
    rng = np.random.default_rng(comm.rank)
    return {
        name: rng.normal(0, a.std(), a.shape).astype(a.dtype) if a.ndim > 1 else a
        for name, a in arrays.items()
    }


def note(rank: int, rows: np.ndarray) -> None:
    """Keep what a rank was given first, beside this file."""
    path = Path(__file__).with_name(f"rows-{rank}.npy")
    if not path.exists():
        np.save(path, rows)


# --- in the notebook ------------------------------------------------------------------------------


def put(function: Callable[..., Any]) -> str:
    """Copy this file into a new folder among the runs; returns the --override that uses
    `function` from there."""
    from rn50lib import launch

    name = function.__name__
    path = launch.new_run(name) / "mistakes.py"
    shutil.copyfile(__file__, path)
    return f"{SEAM[name]}={path}:{name}"


def noted(override: str) -> list[np.ndarray]:
    """What each rank was given in the first epoch, int64 (steps, batch), of the run that had this
    override; in the order of the ranks."""
    folder = Path(override.partition("=")[2].rpartition(":")[0]).parent
    files = sorted(folder.glob("rows-*.npy"), key=lambda path: int(path.stem.partition("-")[2]))
    return [np.load(path) for path in files]


def seen(rows: list[np.ndarray]) -> tuple[int, int]:
    """(images read by all ranks together, distinct ones among them)."""
    together = np.concatenate([part.ravel() for part in rows])
    return len(together), len(np.unique(together))

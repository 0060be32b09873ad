"""`rn50 workshop try SCRIPT --headroom`: the speed of a loop with a perfect loader, or step.

The script runs in one process and in a copy of its folder. It is not changed, except for its
PyTorch DataLoader, or DALI's iterator for PyTorch, which works in three modes that take turns:

    whole     as always
    cached    it gives one batch again and again, which costs nothing
    loader    its batches are read and dropped, so that the step costs nothing

The timed batches are those between which an optimizer steps; the first of a turn and of an epoch,
and the last of an epoch, for which workers do less or more than one batch of work, are left out.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rn50.launch import with_library
from rn50lib.errors import UserError
from workshop.errors import RunFailed
from workshop.observe.run import copy_folder, in_copy
from workshop.ratio import LEAST, ratio

VARIABLE = "RN50_HEADROOM"
MODES = {
    "whole": "as it is",
    "cached": "with a perfect loader (one batch again and again)",
    "loader": "with a perfect step (the loader alone)",
}
# LEAST turns of each mode, every other time backwards, against a drift. What comes twice in a row
# settles once, so the loader, which is usually fast, is in the middle.
SCHEDULE = [
    mode
    for turn in range(LEAST)
    for mode in ("whole", "loader", "cached")[:: -1 if turn % 2 else 1]
]
# First batches of an epoch that are not timed: caches fill, and a script of the ladder warms up for
# three steps, starts its profiler in one, and traces three.
SETTLE = 7
SHORTEST, ENOUGH = 3, 200  # batches of a turn
LIMIT_S = 600.0


def report(rates: Sequence[float]) -> str:
    """Return what bounds the loop, from the images per second of each turn of the schedule."""
    turns = {mode: np.array([r for r, m in zip(rates, SCHEDULE, strict=True) if m == mode])
             for mode in MODES}  # fmt: skip
    whole, cached, loader = turns.values()
    faster, together = ratio(loader / cached), ratio(whole / cached + whole / loader)
    headroom = ratio(cached / whole)
    bound = ("The step" if faster.median > 1 else "The loader") if faster.clear else "Neither part"
    said = f"{bound} bounds this loop."
    if faster.median > 1 and headroom.low > 1.1:
        said = "Loader and step both count: they take turns (no workers?), or share the cores."
    lines = [
        f"{said} The loader's speed over the step's: {faster}",
        f"Headroom, the gain from a perfect loader: {headroom}",
    ]
    if together.clear and together.median < 1:
        lines += [f"Slower than loader and step in turn, so they disturb each other: {together}"]
    for mode, name in MODES.items():
        low, middle, high = np.quantile(turns[mode], (0, 0.5, 1))
        lines += [f"  {name:50}{middle:10,.1f} img/s ({low:,.1f} to {high:,.1f})"]
    return "\n".join(lines)


def measure(script: Path, arguments: list[str], seconds: float, folder: Path) -> str:
    """Run a script in `folder`; time each mode for `seconds` in all; return the rates as text.

    Raises RunFailed, with what the script printed as `log`, if it fails, ends too early, or has no
    training loop over a PyTorch DataLoader or a DALI iterator; UserError if there is no such
    script.
    """
    if not script.is_file():
        raise UserError(f"no such script: {script}")
    with tempfile.TemporaryDirectory(prefix="rn50-headroom-") as top:
        copy, result = Path(top).resolve() / "work", Path(top, "result.json")
        copy_folder(folder, copy)
        words = [in_copy(word, folder, copy) for word in [str(script), *arguments]]
        setting = {"seconds": seconds / LEAST, "out": str(result)}
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # fmt: skip
        env = {**with_library(dict(os.environ)), **rank, VARIABLE: json.dumps(setting)}
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "workshop.headroom", *words],
                cwd=copy, env=env, stdin=subprocess.DEVNULL, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S + 3 * seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RunFailed(
                f"{script.name}: no {seconds:g} s of training in {LIMIT_S:g} s"
            ) from None
        if ended.returncode or not result.exists():
            raise RunFailed(f"{script.name} failed", ended.stdout)
        return report(json.loads(result.read_text()))


# --- in the script's process ----------------------------------------------------------------------


class Clock:
    """Times the batches of the loader that trains, `seconds` of each turn; ends the process."""

    def __init__(self, seconds: float, out: str) -> None:
        self.modes, self.seconds, self.out = list(SCHEDULE), seconds, out
        self.trains: Any = None  # the loader between whose batches an optimizer steps
        self.latest: Any = None  # the loader that gave the latest batch
        self.steps = False  # an optimizer has stepped since then
        self.batches, self.images, self.time = 0, 0, 0.0  # in this turn
        self.rates: list[float] = []

    def identify(self, loader: Any) -> Any:
        """Return what a loader has in common with the one for the same data in the next epoch."""
        data: Any = getattr(loader, "dataset", None)
        try:
            return type(data), len(data)
        except TypeError:  # DALI's iterator, or an IterableDataset
            return loader

    def wrap(self, iterate: Any) -> Any:
        """Return the `__iter__` of a loader class with the batches timed."""

        def batches(loader: Any) -> Iterator[Any]:
            this, made = self.identify(loader), iterate(loader)
            try:
                length = len(loader) or sys.maxsize  # 0: a DALI iterator that never ends
            except TypeError:  # an IterableDataset
                length = sys.maxsize
            ahead = getattr(loader, "num_workers", 0) * (getattr(loader, "prefetch_factor", 0) or 0)
            last = length - min(ahead, length // 3)
            mode, first, of_mode, read, given, before = "", 0, 0, 0, 0, 0.0
            batch: Any = None
            images, seconds = 0, 0.0  # since the optimizer stepped, which it may not in each batch
            while given < length:
                if mode != self.modes[0]:
                    first = min((1 if mode else SETTLE) + ahead, (length - 1) // 2)
                    mode, of_mode = self.modes[0], 0
                trains = this == self.trains
                if mode != "cached" or not trains or not read:
                    try:
                        batch = next(made)  # not by `for`: DALI's `__iter__` is wrapped
                    except StopIteration:
                        return
                    read += 1
                now = self.now()
                settled = of_mode > first and (mode == "cached" or read <= last)
                if settled and self.latest == this:
                    images, seconds = images + size(batch), seconds + now - before
                    if self.steps or (mode == "loader" and trains):
                        self.add(this, images, seconds)
                        images, seconds = 0, 0.0
                else:
                    images, seconds = 0, 0.0
                of_mode += 1
                self.steps, self.latest, before = False, this, now
                if mode != "loader" or not trains:
                    given += 1
                    yield batch

        return batches

    def step(self, *_: Any) -> None:
        self.steps = True

    def now(self) -> float:
        """Return the time when a GPU, which works through a queue, has finished it."""
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()

    def add(self, loader: Any, images: int, seconds: float) -> None:
        """Add the time of a batch; begin the next turn, or end the process, if it is enough."""
        self.trains, self.images, self.time = loader, self.images + images, self.time + seconds
        self.batches += 1
        if self.batches >= (SHORTEST if self.time >= self.seconds else ENOUGH):
            del self.modes[0]
            self.rates.append(self.images / self.time)
            self.batches, self.images, self.time = 0, 0, 0.0
            if not self.modes:
                Path(self.out).write_text(json.dumps(self.rates))
                sys.stdout.flush()
                os._exit(0)


def size(batch: Any) -> int:
    """Return the number of images in a batch: the length of its first tensor or list of names."""
    while isinstance(batch, (list, tuple, dict)):
        parts = [*batch.values()] if isinstance(batch, dict) else batch
        if isinstance(parts[0], str):
            return len(parts)
        batch = parts[0]
    return len(batch)


def main() -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    clock = Clock(**json.loads(os.environ[VARIABLE]))
    script = Path(sys.argv[1])
    loaders: list[Any] = [torch.utils.data.DataLoader]
    if "dali" in script.read_text(encoding="utf-8").lower():
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        loaders.append(DALIGenericIterator)
    for loader in loaders:
        loader.__iter__ = clock.wrap(loader.__iter__)
    register_optimizer_step_post_hook(clock.step)
    sys.argv, sys.path[0] = sys.argv[1:], str(script.parent)
    runpy.run_path(str(script), run_name="__main__")
    if clock.trains is None:
        sys.exit(
            "no optimizer stepped between the batches of a PyTorch DataLoader or a DALI iterator,"
            " or an epoch has too few batches to time"
        )
    sys.exit(
        f"it ended after {len(clock.rates)} of {len(SCHEDULE)} turns: let it train for more steps"
        " or epochs, or pass fewer --seconds"
    )


if __name__ == "__main__":
    main()

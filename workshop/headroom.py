"""`rn50 workshop try SCRIPT --headroom`: the speed of a loop with a perfect loader, or step.

The script runs three times for a few seconds, in one process and in a copy of its folder. It is not
changed, except for its PyTorch DataLoader, or DALI's iterator for PyTorch:

    whole     it works as always
    cached    it gives its first batch again and again, which costs nothing
    loader    its batches are read and dropped, so that the step costs nothing

The timed batches are those between which an optimizer steps; the first and last of an epoch, for
which workers do less or more than one batch of work, are left out.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50.launch import with_library
from rn50lib.errors import UserError
from workshop.errors import RunFailed
from workshop.observe.run import copy_folder, in_copy

VARIABLE = "RN50_HEADROOM"
SETTLE = 3  # first batches that are not timed: caches and the allocator fill
LIMIT_S = 300.0


@dataclass(frozen=True)
class Headroom:
    """Images per second of a script as it is, with a perfect loader, and with a perfect step."""

    whole: float
    cached: float
    loader: float

    def __str__(self) -> str:
        part = "loader" if self.cached > self.loader else "step"
        gain = max(self.cached, self.loader) / self.whole
        rows = (
            ("as it is", self.whole),
            ("with a perfect loader (one batch again and again)", self.cached),
            ("with a perfect step (the loader alone)", self.loader),
        )
        lines = [f"  {name:50}{rate:10,.1f} img/s" for name, rate in rows]
        return "\n".join(
            [f"The {part} bounds this loop: without it, {gain:.2g} times as fast.", *lines]
        )


def measure(script: Path, arguments: list[str], seconds: float, folder: Path) -> Headroom:
    """Run a script in `folder` three times; each is timed for `seconds`.

    Raises RunFailed, with what the script printed as `log`, if it fails or has no training loop
    over a PyTorch DataLoader or a DALI iterator; UserError if there is no such script.
    """
    if not script.is_file():
        raise UserError(f"no such script: {script}")
    rates, loader = {}, 0
    for mode in ("whole", "cached", "loader"):
        with tempfile.TemporaryDirectory(prefix="rn50-headroom-") as top:
            copy, result = Path(top).resolve() / "work", Path(top, "result.json")
            copy_folder(folder, copy)
            words = [in_copy(word, folder, copy) for word in [str(script), *arguments]]
            setting = {"mode": mode, "loader": loader, "seconds": seconds, "out": str(result)}
            with socket.create_server(("localhost", 0)) as server:
                port = server.getsockname()[1]
            rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
                    "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}  # fmt: skip
            env = {**with_library(dict(os.environ)), **rank, VARIABLE: json.dumps(setting)}
            command = [sys.executable, "-m", "workshop.headroom", *words]
            try:
                ended = subprocess.run(
                    command, cwd=copy, env=env, stdin=subprocess.DEVNULL, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S + seconds,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise RunFailed(
                    f"{script.name}: no {seconds:g} s of training in {LIMIT_S:g} s"
                ) from None
            if ended.returncode or not result.exists():
                raise RunFailed(f"{script.name} failed", ended.stdout)
            rates[mode], loader = json.loads(result.read_text())
    return Headroom(**rates)


# --- in the script's process ----------------------------------------------------------------------


class Clock:
    """Times the batches of the loader that trains, and ends the process after `seconds`."""

    def __init__(self, mode: str, loader: int, seconds: float, out: str) -> None:
        self.mode, self.loader, self.seconds, self.out = mode, loader, seconds, out
        self.loaders: list[Any] = []  # in the order of their first use
        self.latest = 0  # the loader that gave the latest batch
        self.steps = False  # an optimizer has stepped since then
        self.images, self.time = 0, 0.0

    def wrap(self, iterate: Any) -> Any:
        """Return the `__iter__` of a loader class with the batches timed."""

        def batches(loader: Any) -> Iterator[Any]:
            if not any(loader is known for known in self.loaders):
                self.loaders.append(loader)
            number = next(i for i, known in enumerate(self.loaders) if loader is known)
            made, chosen = iterate(loader), number == self.loader
            try:
                length = len(loader) or sys.maxsize  # 0: a DALI iterator that never ends
            except TypeError:  # an IterableDataset
                length = sys.maxsize
            if self.mode == "cached" and chosen:
                made = itertools.repeat(next(made), length)
            ahead = getattr(loader, "num_workers", 0) * (getattr(loader, "prefetch_factor", 0) or 0)
            first, last = min(SETTLE + ahead, length // 3), length - min(ahead, length // 3)
            before = 0.0
            for i, batch in enumerate(every(made)):
                now = time.perf_counter()
                if first < i < last and (
                    self.steps and self.latest == number or self.mode == "loader" and chosen
                ):
                    self.add(number, size(batch), now - before)
                self.steps, self.latest, before = False, number, now
                if self.mode != "loader" or not chosen:
                    yield batch

        return batches

    def step(self, *_: Any) -> None:
        self.steps = True

    def add(self, number: int, images: int, seconds: float) -> None:
        """Add the time of a batch; end the process when there is enough."""
        self.loader, self.images, self.time = number, self.images + images, self.time + seconds
        if self.time >= self.seconds:
            self.end()

    def end(self) -> None:
        """Write the images per second and which loader it was, and end this process."""
        if not self.time:
            sys.exit(
                "no optimizer stepped between the batches of a PyTorch DataLoader or a DALI"
                " iterator, or an epoch has too few batches to time"
            )
        Path(self.out).write_text(json.dumps([self.images / self.time, self.loader]))
        sys.stdout.flush()
        os._exit(0)


def every(made: Iterator[Any]) -> Iterator[Any]:
    """Yield what an iterator gives without its `__iter__`, which is wrapped if it is DALI's."""
    with contextlib.suppress(StopIteration):
        while True:
            yield next(made)


def size(batch: Any) -> int:
    """Return the number of images in a batch: the length of its first tensor."""
    while isinstance(batch, (list, tuple, dict)):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return len(batch)


def main() -> None:
    """Run the script named on the command line, timed."""
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
    clock.end()


if __name__ == "__main__":
    main()

"""A training script run under observation, the process behind `checks.capstone`.

python -m workshop.checks.watch DATA FILE OUT [FILE OUT ...]

Runs `train(DATA, OUT)` of each FILE and writes OUT/seen.npz and OUT/seen.json: what went into the
network and came out, pass by pass, the learning rate of every step, and the seconds. It listens at
hooks that PyTorch has for this, so the script neither helps nor knows. One that fails leaves
OUT/failed.json with the error and the innermost of its own lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from workshop import processes
from workshop.checks import alone

CELLS = 8  # a picture is known again by the means of so many cells a side


class Watch:
    """Notes every pass of pictures (N, 3, H, W) through a network to logits (N, classes)."""

    def __init__(self) -> None:
        self.depth = 0
        self.passes: list[dict[str, Any]] = []
        self.rates: list[float] = []
        self.prints: list[Tensor] = []
        self.details: list[Tensor] = []
        self.logits: list[Tensor] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        handles = [
            modules.register_module_forward_pre_hook(self.enter),
            modules.register_module_forward_hook(self.leave, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self.step),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def enter(self, module: Any, inputs: Any) -> None:
        self.depth += 1

    def leave(self, module: Any, inputs: Any, output: Any) -> None:
        self.depth -= 1
        x: Any = inputs[0] if inputs else None
        pictures = isinstance(x, Tensor) and x.ndim == 4 and x.shape[1] == 3
        if self.depth or not pictures or not isinstance(output, Tensor) or output.ndim != 2:
            return
        entry = {
            "rows": len(x),
            "size": list(x.shape[2:]),
            "dtype": str(x.dtype).removeprefix("torch."),
            "evaluating": not module.training,
            "parameters": sum(p.numel() for p in module.parameters()),
            "step": len(self.rates),
            "trained": False,
        }
        if output.requires_grad:  # called when a backward pass comes through
            output.register_hook(lambda gradient: entry.update(trained=True))
        self.passes.append(entry)
        with torch.no_grad():
            seen = x.detach().float()
            self.prints.append(F.adaptive_avg_pool2d(seen, CELLS).flatten(1))
            self.details.append((seen[..., 1:] - seen[..., :-1]).abs().mean((1, 2, 3)))
            self.logits.append(output.detach().double().clone())

    def step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.rates.append(float(optimizer.param_groups[0]["lr"]))

    def write(self, out: Path, seconds: float) -> None:
        together: dict[str, Any] = {
            name: torch.cat(parts).cpu().numpy() if parts else np.zeros((0, 1))
            for name, parts in (
                ("prints", self.prints),
                ("details", self.details),
                ("logits", self.logits),
            )
        }
        np.savez(out / "seen.npz", **together)
        told = {"seconds": seconds, "passes": self.passes, "rates": self.rates}
        (out / "seen.json").write_text(json.dumps(told))


def observe(data: str, file: str, out: Path) -> None:
    """Run the script, its import too, and write what was seen."""
    watch = Watch()
    try:
        with watch.listening():
            began = time.perf_counter()
            alone.load(Path(file)).train(data, str(out))
            seconds = time.perf_counter() - began
    except (Exception, SystemExit) as error:
        own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        told = {"error": f"{type(error).__name__}: {str(error).strip() or 'without a message'}"}
        if own:
            told |= {
                "function": own[-1].name,
                "line": str(own[-1].lineno),
                "text": own[-1].line or "",
            }
        (out / "failed.json").write_text(json.dumps(told))
        return
    watch.write(out, seconds)


def main(argv: list[str]) -> int:
    processes.die_with_parent()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    # PyTorch makes itself ready in its first steps; that is no work of the script
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    net(torch.zeros(2, 3, 8, 8)).sum().backward()
    for file, out in zip(argv[1::2], argv[2::2], strict=True):
        observe(argv[0], file, Path(out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The process behind `checks.capstone`: runs a training script and notes what its network saw.

`python -m workshop.checks.watch DATA FILE OUT` calls `train(DATA, OUT)` of FILE and writes
OUT/seen.npz, the arrays of `checks.capstone.Seen`. A script that fails leaves its traceback in
OUT/failed.txt.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_pre_hook

from workshop.checks import alone

CELLS = 8  # an image is recognised by the means of this many cells a side


class Watch:
    """The passes of images (N, 3, H, W) through a network to logits (N, classes)."""

    def __init__(self) -> None:
        self.passes: list[dict[str, Any]] = []
        self.rates: list[float] = []
        self.prints, self.logits = [torch.zeros(0, 3 * CELLS**2)], [torch.zeros(0)]
        self.inside = 0  # how many forward passes are inside each other

    def enter(self, module: Any, inputs: Any) -> None:
        self.inside += 1

    def leave(self, module: Any, inputs: Any, output: Any) -> None:
        self.inside -= 1
        x: Any = inputs[0] if inputs and not self.inside else None
        images = isinstance(x, Tensor) and x.ndim == 4 and x.shape[1] == 3
        if not images or not isinstance(output, Tensor) or output.ndim != 2:
            return
        entry = {
            "of": len(self.passes),
            "size": tuple(x.shape[2:]),
            "evaluating": not module.training,
            "parameters": sum(p.numel() for p in module.parameters()),
            "step": len(self.rates),
            "trained": False,  # until a backward pass goes through its output
        }
        if output.requires_grad:
            output.register_hook(lambda gradient: entry.update(trained=True))
        self.passes.append(entry)
        with torch.no_grad():
            self.prints.append(F.adaptive_avg_pool2d(x.float(), CELLS).flatten(1))
            self.logits.append(output.double().clone())

    def on_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.rates.append(float(optimizer.param_groups[0]["lr"]))

    def arrays(self) -> dict[str, Any]:
        """Return all that was noted, with a row for each image of each pass."""
        rows = np.array([len(logits) for logits in self.logits[1:]], int)
        found = {
            key: np.repeat(np.array([entry[key] for entry in self.passes]), rows, axis=0)
            for key in ("of", "size", "evaluating", "parameters", "step", "trained")
        }
        prints, logits = (torch.cat(parts).numpy() for parts in (self.prints, self.logits))
        return found | {"prints": prints, "logits": logits, "rates": np.array(self.rates)}


def run(data: str, file: Path, out: Path) -> None:
    """Run a script, its import included, and write what was seen."""
    watch = Watch()
    hooks = [
        modules.register_module_forward_pre_hook(watch.enter),
        modules.register_module_forward_hook(watch.leave, always_call=True),
        register_optimizer_step_pre_hook(watch.on_step),
    ]
    began = time.perf_counter()
    try:
        alone.load(file).train(data, str(out))
    except (Exception, SystemExit):
        (out / "failed.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return
    finally:
        seconds = time.perf_counter() - began
        for hook in hooks:
            hook.remove()
    np.savez(out / "seen.npz", seconds=seconds, **watch.arrays())


if __name__ == "__main__":
    torch.nn.Linear(2, 2)(torch.zeros(2, 2)).sum().backward()  # PyTorch's own start does not count
    run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

"""One rank behind `checks.capstone`: runs a training script and notes what its network saw.

`python -m workshop.checks.watch DATA FILE OUT NOTES [TRACE]` calls `train(DATA, OUT)` of FILE and
writes NOTES/seen-RANK.npz, arrays of `checks.capstone.Seen`. A script that fails leaves its
traceback in NOTES/failed-RANK.txt. With TRACE, rank 0 writes a trace of a few steps to that file.
"""

from __future__ import annotations

import functools
import os
import runpy
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
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from rn50lib.distributed.launch_env import LaunchEnv

CELLS = 8  # an image is recognised by the means of this many cells a side
FIRST, TRACED = 14, 6  # the steps in a trace: of the second epoch, when everything is warm


class Watch:
    """The passes of images (N, 3, H, W) through a network to logits (N, classes), and the steps."""

    def __init__(self, trace: Path | None = None) -> None:
        self.passes: list[dict[str, Any]] = []
        self.rates: list[float] = []
        self.prints, self.logits = [torch.zeros(0, 3 * CELLS**2)], [torch.zeros(0)]
        self.inside = 0  # how many forward passes are inside each other
        self.stepping = False
        self.weights: list[Tensor] = []  # before each step: two sums
        self.grads: list[Tensor] = []  # of a bias: its own gradient, and the one it used
        self.local: dict[int, Tensor] = {}  # by parameter: its gradient before any exchange
        self.hooked: set[int] = set()
        self.group = ""  # what exchanges the gradients
        self.trace, self.profiler, self.marks = trace, None, []  # type: ignore[var-annotated]

    def mark(self, name: str) -> None:
        """Begin a named range of the trace, and end the one before; an empty name begins none."""
        while self.marks:
            self.marks.pop().__exit__(None, None, None)
        if self.profiler and name:
            self.marks.append(record_function(name))
            self.marks[-1].__enter__()

    def enter(self, module: Any, inputs: Any) -> None:
        self.inside += 1
        if self.inside == 1:
            self.mark("forward")

    def leave(self, module: Any, inputs: Any, output: Any) -> None:
        self.inside -= 1
        if self.inside:
            return
        self.mark("" if torch.is_grad_enabled() else "input")  # a pass that is not trained on
        x: Any = inputs[0] if inputs else None
        images = isinstance(x, Tensor) and x.ndim == 4 and x.shape[1] == 3
        if not images or not isinstance(output, Tensor) or output.ndim != 2:
            return
        norms = [part for part in module.modules() if isinstance(part, _BatchNorm)] or [module]
        entry = {
            "of": len(self.passes),
            "size": tuple(x.shape[2:]),
            "evaluating": not any(norm.training for norm in norms),
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

    def added(self, optimizer: Any) -> None:
        """Note the gradients of an optimizer's last parameter, a bias, before any exchange."""
        self.hear_horovod()
        last = optimizer.param_groups[-1]["params"][-1]
        if id(last) in self.hooked or not last.requires_grad:
            return
        self.hooked.add(id(last))

        def keep(gradient: Tensor) -> None:
            self.local[id(last)] = self.local.get(id(last), 0) + gradient.detach().double()

        last.register_hook(keep)

    def hear_horovod(self) -> None:
        """Have the trace show Horovod's all-reduces, with the numbers that they exchange."""
        names = ("allreduce_async_", "allreduce_async", "grouped_allreduce_async_",
                 "grouped_allreduce_async")  # fmt: skip
        for module in ("horovod.torch.mpi_ops", "horovod.torch.optimizer"):
            for name in names:
                original = getattr(sys.modules.get(module), name, None)
                if original is not None and not hasattr(original, "__wrapped__"):
                    setattr(sys.modules[module], name, shown(original))

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.mark("update")
        if self.stepping or not self.passes:  # Horovod's broadcast of an optimizer makes a step too
            return
        self.stepping = True
        with torch.no_grad():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            sums = torch.stack([p.double().sum() for p in parameters])
            self.weights.append(torch.stack([sums.sum(), sums.abs().sum()]))

    def step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note a step. With Horovod, whose step calls that of the optimizer, note the inner one."""
        if not self.stepping:
            return
        self.stepping = False
        self.rates.append(float(optimizer.param_groups[0]["lr"]))
        with torch.no_grad():
            last = optimizer.param_groups[-1]["params"][-1]
            own = self.local.pop(id(last), torch.zeros_like(last))
            used = torch.zeros_like(last) if last.grad is None else last.grad
            self.grads.append(torch.cat([own.flatten().double(), used.flatten().double()]))
        if len(self.rates) == 1:
            self.group = group_of()
        self.follow()

    def follow(self) -> None:
        """Trace a few steps, from the end of one update to the end of the next."""
        if self.trace and len(self.rates) == FIRST:
            when = schedule(wait=0, warmup=1, active=TRACED, repeat=1)
            file = str(self.trace)
            self.profiler = profile(  # type: ignore[assignment]
                activities=[ProfilerActivity.CPU], schedule=when, record_shapes=True,
                on_trace_ready=lambda done: done.export_chrome_trace(file),
            )  # fmt: skip
            self.profiler.start()  # type: ignore[attr-defined]
        elif self.profiler:
            self.mark("")
            self.profiler.step()
            if len(self.rates) > FIRST + TRACED:
                self.profiler.stop()
                self.profiler = None
        self.mark("input")

    def arrays(self) -> dict[str, Any]:
        """Return all that was noted, with a row for each image of each pass."""
        rows = np.array([len(logits) for logits in self.logits[1:]], int)
        found = {
            key: np.repeat(np.array([entry[key] for entry in self.passes]), rows, axis=0)
            for key in ("of", "size", "evaluating", "parameters", "step", "trained")
        }
        prints, logits = (torch.cat(parts).numpy() for parts in (self.prints, self.logits))
        steps = {"weights": self.weights, "grads": self.grads}
        noted = {key: torch.stack(all_of).numpy() for key, all_of in steps.items() if all_of}
        noted |= {"rates": np.array(self.rates), "group": np.array(self.group)}
        return found | noted | {"prints": prints, "logits": logits}


def shown(exchange: Any) -> Any:
    """Wrap a function of Horovod so that it leaves its count of numbers in a trace."""

    @functools.wraps(exchange)
    def named(tensors: Any, *args: Any, **keywords: Any) -> Any:
        count = sum(t.numel() for t in ([tensors] if isinstance(tensors, Tensor) else tensors))
        with record_function(f"horovod:all_reduce {count}"):
            return exchange(tensors, *args, **keywords)

    return named


def group_of() -> str:
    """Return which library connects the ranks of this process, empty if none does."""
    horovod = sys.modules.get("horovod.torch")
    if horovod is not None and horovod.is_initialized() and horovod.size() > 1:
        return "Horovod"
    dist = torch.distributed
    joined = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return "torch.distributed" if joined else ""


def run(data: str, file: Path, out: Path, notes: Path, trace: Path | None = None) -> bool:
    """Run a script, its import included, and write what was seen. Return False if it failed.

    The process is the script's own: the hooks stay.
    """
    me = LaunchEnv.detect()
    rank = me.rank if me else 0
    watch = Watch(trace if rank == 0 else None)
    add, optimizer = torch.optim.Optimizer.add_param_group, torch.optim.Optimizer

    def added(self: Any, group: Any) -> None:
        add(self, group)
        watch.added(self)

    optimizer.add_param_group = added  # type: ignore[method-assign]
    modules.register_module_forward_pre_hook(watch.enter)
    modules.register_module_forward_hook(watch.leave, always_call=True)
    register_optimizer_step_pre_hook(watch.step_begins)
    register_optimizer_step_post_hook(watch.step_ends)
    began = time.perf_counter()
    try:
        runpy.run_path(str(file))["train"](data, str(out))
    except (Exception, SystemExit):
        (notes / f"failed-{rank}.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return False
    seconds = time.perf_counter() - began
    watch.mark("")
    np.savez(notes / f"seen-{rank}.npz", seconds=seconds, **watch.arrays())
    return True


if __name__ == "__main__":
    torch.nn.Linear(2, 2)(torch.zeros(2, 2)).sum().backward()  # PyTorch's own start does not count
    file, out, notes, *rest = map(Path, sys.argv[2:])
    if not run(sys.argv[1], file, out, notes, rest[0] if rest else None):
        sys.stdout.flush()
        os._exit(1)  # the launcher ends the other ranks, which may wait for this one
    os._exit(0)  # what the script has left open, such as a process group, does not matter

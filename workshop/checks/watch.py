"""One rank behind `checks.capstone`: what goes through the network of a script that `try` records.

`run` calls `train(DATA, OUT)` of a script and writes NOTES/seen-RANK.npz, arrays of
`checks.capstone.Seen`; the arguments of the process are SCRIPT DATA OUT NOTES [TRACE]. With TRACE,
rank 0 writes a trace of a few steps to that file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import sys
import time
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
        self.prints, self.logits = [torch.zeros(0, 3 * CELLS**2)], [torch.zeros(0)]
        self.inside = 0  # how many forward passes are inside each other
        self.steps = 0
        self.in_step = False  # after a backward pass
        self.trace, self.range = trace, contextlib.ExitStack()
        self.profiler: profile | None = None

    def mark(self, name: str) -> None:
        """Begin a named range of the trace, and end the one before; an empty name begins none."""
        self.range.close()
        if self.profiler and name:
            self.range.enter_context(record_function(name))

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
            "step": self.steps,
            "trained": False,  # until a backward pass goes through its output
        }
        if output.requires_grad:
            output.register_hook(lambda gradient: self.trained(entry))
        self.passes.append(entry)
        with torch.no_grad():
            self.prints.append(F.adaptive_avg_pool2d(x.float(), CELLS).flatten(1))
            self.logits.append(output.double().clone())

    def trained(self, entry: dict[str, Any]) -> None:
        entry["trained"] = self.in_step = True

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

    def step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Count a step. With Horovod, whose step calls that of the optimizer, count the inner one.

        Horovod's broadcast of an optimizer makes a step too, before any backward pass.
        """
        if self.in_step:
            self.in_step = False
            self.steps += 1
            self.follow()

    def follow(self) -> None:
        """Trace a few steps, from the end of one update to the end of the next."""
        if self.trace and self.steps == FIRST:
            self.hear_horovod()
            when = schedule(wait=0, warmup=1, active=TRACED, repeat=1)
            file = str(self.trace)
            self.profiler = profile(
                activities=[ProfilerActivity.CPU], schedule=when, record_shapes=True,
                on_trace_ready=lambda done: done.export_chrome_trace(file),
            )  # fmt: skip
            self.profiler.start()
        elif self.profiler:
            self.mark("")
            self.profiler.step()
            if self.steps > FIRST + TRACED:
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
        return found | {"prints": prints, "logits": logits}


def shown(exchange: Any) -> Any:
    """Wrap a function of Horovod so that it leaves its count of numbers in a trace."""

    @functools.wraps(exchange)
    def named(tensors: Any, *args: Any, **keywords: Any) -> Any:
        count = sum(t.numel() for t in ([tensors] if isinstance(tensors, Tensor) else tensors))
        with record_function(f"horovod:all_reduce {count}"):
            return exchange(tensors, *args, **keywords)

    return named


def run() -> None:
    """Run a script, its import included, write what was seen, and end the process."""
    script, data, out, notes, *trace = sys.argv[1:]
    me = LaunchEnv.detect()
    rank = me.rank if me else 0
    torch.nn.Linear(2, 2)(torch.zeros(2, 2)).sum().backward()  # PyTorch's own start does not count
    watch = Watch(Path(trace[0]) if trace and rank == 0 else None)
    modules.register_module_forward_pre_hook(watch.enter)
    modules.register_module_forward_hook(watch.leave, always_call=True)
    register_optimizer_step_pre_hook(watch.step_begins)
    register_optimizer_step_post_hook(watch.step_ends)
    began = time.perf_counter()
    try:
        runpy.run_path(script)["train"](data, out)
    except SystemExit as error:
        raise RuntimeError("train calls exit, and should return") from error
    seconds = time.perf_counter() - began
    watch.mark("")
    np.savez(Path(notes, f"seen-{rank}.npz"), seconds=seconds, **watch.arrays())
    sys.stdout.flush()
    sys.modules["rn50_recorder.lifetime"].record_end(0)
    os._exit(0)  # what the script has left open, such as a process group, does not matter

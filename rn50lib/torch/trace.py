"""A Chrome trace of a few training steps, by PyTorch's profiler."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import profiler

from rn50lib.errors import UserError
from rn50lib.files import replacing

TRACED_STEPS = 3


@contextlib.contextmanager
def named(device: str, part: str) -> Iterator[None]:
    """Name a part of a step in the trace and, on a GPU, in Nsight Systems."""
    with profiler.record_function(part):
        with torch.cuda.nvtx.range(part) if device == "cuda" else contextlib.nullcontext():
            yield


@contextlib.contextmanager
def recording(file: Path, steps: int, step: Any) -> Iterator[Any]:
    """Record a few of the next `steps` of a TorchStep, without the slow first two.

    Raises UserError if the file cannot be written.
    """
    skip = min(2, steps - 1)
    active = min(TRACED_STEPS, steps - skip)
    plan = profiler.schedule(wait=skip // 2, warmup=min(skip, 1), active=active, repeat=1)
    activities = [profiler.ProfilerActivity.CPU]
    if step.device == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    ready = functools.partial(write, file=file)
    with profiler.profile(activities=activities, schedule=plan, on_trace_ready=ready) as profile:
        step.span, unnamed = functools.partial(named, step.device), step.span
        try:
            yield profile
        finally:
            step.span = unnamed


def write(profile: profiler.profile, file: Path) -> None:
    """Write a trace, gzipped if the name ends in .gz. Raise UserError if it cannot be written."""
    try:
        with replacing(file) as draft:
            profile.export_chrome_trace(str(draft))
    except OSError as error:
        raise UserError(
            f"--set profile_trace={file} cannot be written: {error.strerror}"
        ) from error

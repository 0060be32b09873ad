"""A Chrome trace of a few training steps, by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import profiler

from rn50lib.errors import UserError

TRACED_STEPS = 3


@contextmanager
def recording(file: Path, steps: int, device: str) -> Iterator[Any]:
    """Record a few of the next `steps`, the first ones left out: they are no example of the others.

    Raises UserError where the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:  # the profiler would only log it, and be slow to
        raise UserError(f"--profile-trace {file}: {error.strerror}") from error
    left_out = min(2, steps - 1)
    plan = profiler.schedule(
        wait=left_out // 2,
        warmup=min(left_out, 1),
        active=min(TRACED_STEPS, steps - left_out),
        repeat=1,
    )
    activities = [profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    with profiler.profile(
        activities=activities,
        schedule=plan,
        on_trace_ready=lambda done: done.export_chrome_trace(str(file)),
    ) as profile:
        yield profile

"""A Chrome trace of a few training steps, by PyTorch's profiler, and the names in it."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import profiler

from rn50lib.errors import UserError
from rn50lib.files import replacing

TRACED_STEPS = 3


class Spans:
    """Names for the parts of a step, in a trace: nothing unless one is being made."""

    def __init__(self, device: str) -> None:
        self.nvtx = device == "cuda"
        self.on = False

    def __call__(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return self.named(name) if self.on else contextlib.nullcontext()

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[None]:
        with torch.profiler.record_function(name):
            if not self.nvtx:
                yield
                return
            with torch.cuda.nvtx.range(name):  # for Nsight Systems
                yield


@contextlib.contextmanager
def recording(file: Path, steps: int, device: str, spans: Spans) -> Iterator[Any]:
    """Record a few of the next `steps`, the first ones left out: they are no example of the others.

    Raises UserError where the file cannot be written.
    """
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
        on_trace_ready=lambda profile: write(profile, file),
    ) as profile:
        spans.on = True
        try:
            yield profile
        finally:
            spans.on = False


def write(profile: profiler.profile, file: Path) -> None:
    """Write what was recorded, gzipped where the name ends in .gz. Raises UserError where that
    cannot be: the profiler itself goes on without a word when a disk is full."""
    try:
        with replacing(file) as draft:
            profile.export_chrome_trace(str(draft))
            content = draft.read_bytes()
            json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
    except OSError as error:
        raise UserError(f"--profile-trace {file} cannot be written: {error.strerror}") from error
    except (ValueError, EOFError):
        raise UserError(
            f"--profile-trace {file} cannot be written: the profiler's file was cut off; make room"
            " there"
        ) from None

"""The surroundings of a step: copies to a GPU, the pace of the loop, a trace, a full memory."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.profiler import profile, record_function, schedule

from rn50lib.config import TrainConfig
from rn50lib.data import Batch
from rn50lib.errors import UserError, first_line, memory_full
from rn50lib.files import write_file
from rn50lib.train_step import BEFORE_TRACE, TRACED_STEPS

# Errors of a full memory: PyTorch's GPU allocator, cuDNN and NCCL; the host's allocator
MEMORY_FULL = ("out of memory", "DefaultCPUAllocator")
COMPILERS = ("torch._dynamo", "torch._inductor", "triton")  # modules of compilers' errors


class CudaPrefetcher:
    """Copies batches to the GPU on a separate stream, while the batch before is used."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.latest: tuple[Batch, Tensor, Tensor] | None = None

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the images and the int64 labels on the GPU."""
        if self.latest is not None and batch is self.latest[0]:  # synthetic: it is already there
            return self.latest[1:]
        images, labels = torch.as_tensor(batch.images), torch.as_tensor(batch.labels)
        if images.is_cuda:  # decoded there by DALI
            return images, labels.to("cuda", torch.int64)
        with torch.cuda.stream(self.stream):
            images, labels = to_gpu(images), to_gpu(labels).to(torch.int64)
        computing = torch.cuda.current_stream()
        computing.wait_stream(self.stream)
        for tensor in (images, labels):
            tensor.record_stream(computing)  # its memory is not reused while it is read
        self.latest = batch, images, labels
        return images, labels


def pinned(tensor: Tensor) -> Tensor:
    """Return a host tensor in pinned memory, from which a copy to the GPU does not wait."""
    return tensor if tensor.is_cuda or tensor.is_pinned() else tensor.pin_memory()


def to_gpu(tensor: Tensor) -> Tensor:
    """Copy a tensor to the GPU while other work goes on."""
    return pinned(tensor).to("cuda", non_blocking=True)


class Queue:
    """Keeps the loop one step ahead of the GPU, so that each step's measured time is its own."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.before: torch.cuda.Event | None = None

    def limit(self) -> None:
        """Wait until the GPU has finished the step before the latest one."""
        if self.device != "cuda":
            return
        before, self.before = self.before, torch.cuda.Event(blocking=True)
        self.before.record()
        if before is not None:
            before.synchronize()


class Tracer:
    """Writes a trace of three training steps, after BEFORE_TRACE others, without stopping the run.

    `step` ends a step, and `input_done` the wait for its batch; the range "input" is between the
    two. Does nothing without a file, or once it is written.
    """

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.skipped = BEFORE_TRACE - 2  # after the first one; the last is the profiler's warm-up
        self.profiler: profile | None = None
        self.input: record_function | None = None

    def input_done(self) -> None:
        """End the range "input"."""
        if self.input is not None:
            self.input.__exit__(None, None, None)
            self.input = None

    def step(self) -> None:
        """End a step, and begin the next one with its range "input"."""
        if self.file is None:
            return
        if self.profiler is None:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # no lines when it starts and stops
            when = schedule(
                skip_first=self.skipped, wait=0, warmup=1, active=TRACED_STEPS, repeat=1
            )
            self.profiler = profile(schedule=when, on_trace_ready=self.write)
            self.profiler.start()
        else:
            if torch.cuda.is_available() and self.profiler.step_num == self.skipped:
                torch.cuda.synchronize()  # no work of earlier steps in the trace
            self.profiler.step()
        if self.file is not None:
            self.input = record_function("input")
            self.input.__enter__()

    def write(self, done: profile) -> None:
        assert self.file is not None
        write_file(self.file, lambda draft: done.export_chrome_trace(str(draft)))
        print(f"  trace of {TRACED_STEPS} steps: {self.file}", file=sys.stderr, flush=True)
        self.file = None


@contextlib.contextmanager
def explain_errors(config: TrainConfig, training: bool) -> Iterator[None]:
    """Raise UserError in place of the errors of a full memory and of a compiler."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError) and any(text in str(error) for text in MEMORY_FULL):
            raise memory_full(config.batch_size, training) from None
        if (module := type(error).__module__).startswith(COMPILERS):
            if config.compile:
                raise UserError(f"--compile: {first_line(error)}", ("compile",)) from error
            flag = f"--engine {config.engine}"
            if config.fused and module.startswith("triton"):
                flag = "--set fused=true"
            raise UserError(f"{flag}: {first_line(error)}: leave the flag out") from error
        raise

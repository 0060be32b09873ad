"""Faster steps on a GPU with the same results, and the errors of a full memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rn50lib.config import TrainConfig
from rn50lib.data import Batch
from rn50lib.errors import UserError, first_line, memory_full

WARM_UP = 3  # steps before the recording, in which cuDNN chooses its algorithms
ON_HOST = ("exchange_gradients", "loss_scale_update")  # `--override`s that run on the host
# Errors of a full memory: PyTorch's GPU allocator, cuDNN and NCCL; the host's allocator
MEMORY_FULL = ("out of memory", "DefaultCPUAllocator")
COMPILERS = ("torch._dynamo", "torch._inductor")  # modules of torch.compile's errors


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


def to_gpu(tensor: Tensor) -> Tensor:
    """Copy a tensor from pinned memory, the only copy that overlaps other work."""
    if tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to("cuda", non_blocking=True)


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


def check_graphs(device: str, config: TrainConfig) -> None:
    """Raise UserError if `cuda_graphs` is impossible for a run."""
    own = [text for text in config.override if text.startswith(ON_HOST)]
    why = None
    if device != "cuda":
        why = "there is no GPU here"
    elif config.n > 1:
        why = "the exchange between workers cannot be recorded"
    elif config.grad_accum_steps > 1:
        why = "the batches of one update are not all alike"
    elif own:
        why = f"--override {own[0]} runs on the host"
    if why:
        raise UserError(f"--set cuda_graphs=true: {why}: leave it out")


def record(
    body: Callable[..., None], images: Tensor, labels: Tensor, changed: Sequence[Tensor]
) -> Recorded:
    """Record a step as a CUDA graph. Raise UserError if it cannot be recorded."""
    try:
        return Recorded(body, images, labels, changed)
    except RuntimeError as error:
        raise UserError(f"--set cuda_graphs=true: {first_line(error)}: leave it out") from error


class Recorded:
    """A step as a CUDA graph: recorded once, then replayed.

    `body(images, labels)` must not use the host. The steps before the recording leave `tensors`,
    which are all that it changes, as they were.
    """

    def __init__(
        self, body: Callable[..., None], images: Tensor, labels: Tensor, tensors: Sequence[Tensor]
    ) -> None:
        self.images, self.labels = images.clone(), labels.clone()  # what the graph reads
        before = [tensor.clone() for tensor in tensors]
        computing, other = torch.cuda.current_stream(), torch.cuda.Stream()
        other.wait_stream(computing)
        try:
            with torch.cuda.stream(other):
                for _ in range(WARM_UP):
                    body(self.images, self.labels)
            computing.wait_stream(other)
            self.graph = torch.cuda.CUDAGraph()
            # record this thread's calls only: the loaders' threads call CUDA meanwhile
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                body(self.images, self.labels)
        finally:
            torch.cuda.set_stream(computing)  # a recording that fails leaves its own
            torch.cuda.synchronize()
            with torch.no_grad():
                for tensor, value in zip(tensors, before, strict=True):
                    tensor.copy_(value)

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        """Replay the step on a batch."""
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()


@contextlib.contextmanager
def explain_errors(config: TrainConfig, training: bool) -> Iterator[None]:
    """Raise UserError in place of the errors of a full memory and of torch.compile."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError) and any(text in str(error) for text in MEMORY_FULL):
            raise memory_full(config.batch_size, training) from None
        if type(error).__module__.startswith(COMPILERS):
            raise UserError(f"--compile: {first_line(error)}: leave the flag out") from error
        raise

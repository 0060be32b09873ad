"""What makes a step faster and changes nothing that it computes: copies beside the computing,
compiled models, recorded steps; and what is said where the device's memory is full."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rn50lib.config import TrainConfig
from rn50lib.data import Batch
from rn50lib.errors import UserError
from rn50lib.resnet import Network
from rn50lib.step_common import first_line, memory_full

WARM_UP = 3  # steps before one is recorded: cuDNN chooses its algorithms in them


class Copies:
    """Batches to the GPU, on a stream of their own: the next one travels while this one is used.

    Nothing has to be asked for ahead: the loop hands out steps faster than a GPU takes them.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.latest: tuple[Batch, Tensor, Tensor] | None = None

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.latest is not None and batch is self.latest[0]:  # synthetic: it is there already
            return self.latest[1:]
        images, labels = torch.as_tensor(batch.images), torch.as_tensor(batch.labels)
        if images.is_cuda:  # DALI decoded them there
            return images, labels.to("cuda", torch.int64)
        with torch.cuda.stream(self.stream):
            images, labels = to_gpu(images), to_gpu(labels).to(torch.int64)
        computing = torch.cuda.current_stream()
        computing.wait_stream(self.stream)
        for tensor in (images, labels):
            tensor.record_stream(computing)  # its memory is not given away while it is read
        self.latest = batch, images, labels
        return images, labels


def to_gpu(tensor: Tensor) -> Tensor:
    """Only from pinned memory does a copy run beside other work."""
    if tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to("cuda", non_blocking=True)


class Queue:
    """Keeps the loop one step ahead of the GPU and not more, so that what it measures of single
    steps is what they take: a GPU accepts hundreds of kernels before it makes anyone wait."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.before: torch.cuda.Event | None = None

    def limit(self) -> None:
        """Wait until the GPU has finished the step before the one that was just handed over."""
        if self.device != "cuda":
            return
        before, self.before = self.before, torch.cuda.Event(blocking=True)
        self.before.record()
        if before is not None:
            before.synchronize()


def record(
    body: Callable[..., None], images: Tensor, labels: Tensor, changed: Sequence[Tensor]
) -> Recorded:
    """Record a step as a CUDA graph. Raise UserError if it cannot be recorded."""
    try:
        return Recorded(body, images, labels, changed)
    except RuntimeError as error:
        raise UserError(f"--cuda-graphs: {first_line(error)}: leave the flag out") from error


ON_THE_HOST = ("exchange_gradients", "loss_scale_update")
"""Functions of a learner's own (`--override`) that a step would wait for the GPU to call."""


def check_graphs(device: str, config: TrainConfig) -> None:
    """Raise UserError, which says why, where --cuda-graphs cannot be had."""
    own = [text for text in config.override if text.startswith(ON_THE_HOST)]
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
        raise UserError(f"--cuda-graphs: {why}: leave the flag out")


class Recorded:
    """A step as a CUDA graph: recorded once, then replayed as a whole.

    `body(images, labels)` must work on the device alone. `tensors` are all that it changes: the
    steps that go before the recording leave no trace in them.
    """

    def __init__(
        self, body: Callable[..., None], images: Tensor, labels: Tensor, tensors: Sequence[Tensor]
    ) -> None:
        self.images, self.labels = images.clone(), labels.clone()  # what the graph reads
        before = [tensor.clone() for tensor in tensors]
        computing, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(computing)
        try:
            with torch.cuda.stream(aside):
                for _ in range(WARM_UP):
                    body(self.images, self.labels)
            computing.wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            # the loaders' threads go on calling CUDA: only what this thread calls is recorded
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                body(self.images, self.labels)
        finally:
            torch.cuda.set_stream(computing)  # a recording that fails leaves its own
            torch.cuda.synchronize()
            with torch.no_grad():
                for tensor, value in zip(tensors, before, strict=True):
                    tensor.copy_(value)

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()


MEMORY_FULL = ("out of memory", "DefaultCPUAllocator")
"""What an error says where the memory is full: on the GPU that of PyTorch's allocator, the driver's
(of cuDNN, of pinned memory: `AcceleratorError`) and NCCL's, in host memory the allocator's."""

COMPILERS = ("torch._dynamo", "torch._inductor")
"""The modules whose errors say that torch.compile has failed."""


@contextlib.contextmanager
def explain_errors(
    config: TrainConfig, net: Network, device: str, training: bool
) -> Iterator[None]:
    """One line for the user where the memory is full, with a batch that would fit, and where the
    model cannot be compiled."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError) and any(text in str(error) for text in MEMORY_FULL):
            capacity = None
            with contextlib.suppress(RuntimeError):  # some of these leave the GPU unusable
                capacity = torch.cuda.mem_get_info()[1] if device == "cuda" else None
            raise memory_full(config, net, capacity, training) from None
        if type(error).__module__.startswith(COMPILERS):
            raise UserError(f"--compile: {first_line(error)}: leave the flag out") from error
        raise

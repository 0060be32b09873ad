"""What makes a step faster and changes nothing that it computes: copies beside the computing,
compiled models, recorded steps; and what is said where the device's memory is full."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rn50lib.backends.shared import memory_full
from rn50lib.config import Experiment
from rn50lib.pipelines import Batch

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


class Runner:
    """Runs a TorchStep's `compute`: compiled and recorded where that was asked for and works.

    Where it does not, the step's `remarks` get a line with the reason, and steps run one by one.
    """

    def __init__(self, step: Any) -> None:
        self.step = step
        self.to_compile = {True, False} if step.experiment.compile else set()  # to train, or not to
        self.compiled = False
        self.to_record = step.experiment.cuda_graphs
        self.recorded: Recorded | None = None
        self.before: torch.cuda.Event | None = None

    def train(self, images: Tensor, labels: Tensor) -> None:
        self.compile(images, labels, training=True)
        self.record(images, labels)
        (self.recorded or self.step.compute)(images, labels)
        self.pace()

    def pace(self) -> None:
        """Wait until the GPU is done with the step before this one, which was just handed over.

        So the loop stays one step ahead and not more, and what it measures of single steps is what
        they take: a GPU accepts hundreds of kernels before it makes anyone wait.
        """
        if self.step.device != "cuda":
            return
        before, self.before = self.before, torch.cuda.Event(blocking=True)
        self.before.record()
        if before is not None:
            before.synchronize()

    def compile(self, images: Tensor, labels: Tensor, training: bool) -> None:
        """Compile the model before the first batch: once to train it, once not to."""
        if training not in self.to_compile:
            return
        self.to_compile.discard(training)
        step = self.step

        def trial() -> None:
            """Without the hooks that would send the gradients."""
            step.model.train(training)
            logits = step.forward(images)
            if training:
                trained = [p for p in step.model.parameters() if p.requires_grad]
                torch.autograd.grad(step.loss(logits, labels), trained)

        why = compiled(step.model, trial)
        self.compiled = why is None
        if why:
            self.to_compile.clear()
            step.remarks.append(why)

    def record(self, images: Tensor, labels: Tensor) -> None:
        """Record the step before the first batch."""
        if not self.to_record:
            return
        self.to_record = False
        step = self.step
        why = no_graphs(step.device, step.experiment)
        if why is None:
            changed = [*step.model.parameters(), *step.model.buffers(), step.sums]
            changed += [held["momentum_buffer"] for held in step.optimizer.state.values()]
            changed += step.scaler.tensors() if step.scaler else []
            try:
                self.recorded = Recorded(step.compute, images, labels, changed)
            except RuntimeError as error:
                step.optimizer.zero_grad(set_to_none=True)  # of a step that did not end
                why = f"--cuda-graphs: {first_line(error)}: the steps run one by one"
        step.remarks += [why] if why else []


def compiled(model: nn.Module, trial: Callable[[], Any]) -> str | None:
    """Compile a model in place; why not, in one line, where the trial fails. Then all is as before.

    `trial` runs the model, forwards and backwards, as the steps will: compiling happens there.
    """
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    failed = None
    if "forward" not in vars(model):  # not compiled yet
        model.forward = torch.compile(model.forward)
    try:
        trial()
    except Exception as error:  # the compilers behind it raise anything
        failed = f"--compile: {first_line(error)}: the model runs as it is"
        del model.forward  # the class's own is in force again
    for buffer, before in buffers:  # the trial has moved the running statistics
        buffer.copy_(before)
    return failed


ON_THE_HOST = ("exchange_gradients", "loss_scale_update")
"""Functions of a learner's own (`--override`) that a step would wait for the GPU to call."""


def no_graphs(device: str, experiment: Experiment) -> str | None:
    """Why --cuda-graphs cannot be had, in one line; None where it can."""
    own = [text for text in experiment.override if text.startswith(ON_THE_HOST)]
    why = None
    if device != "cuda":
        why = "there is no GPU here"
    elif experiment.n > 1:
        why = "the exchange between workers is not recorded"
    elif experiment.micro_batches > 1:
        why = "the batches of one update are not all alike"
    elif own:
        why = f"--override {own[0]} runs on the host"
    return f"--cuda-graphs: {why}: the steps run one by one" if why else None


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


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"[:200]


@contextlib.contextmanager
def explain_full_memory(step: Any, training: bool) -> Iterator[None]:
    """UserError with a batch that would fit, for PyTorch's error of a full memory."""
    try:
        yield
    except RuntimeError as error:
        # on the GPU, or in host memory
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(
            error
        ):
            raise
        capacity = torch.cuda.mem_get_info()[1] if step.device == "cuda" else None
        raise memory_full(step.experiment, step.net, capacity, training) from None

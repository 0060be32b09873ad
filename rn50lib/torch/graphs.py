"""CUDA graphs: a whole training step or prediction as one launch.

At small batches the processor is the bound: it launches some 170 kernels one after the other for a
prediction. A graph records them once and replays them. What it reads and writes stays at the same
addresses, so a graph keeps its inputs, its outputs and whatever its function refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rn50lib.config import TrainConfig
from rn50lib.errors import UserError, first_line

GRAPH_WARM_UP = 3  # calls before one is captured: cuDNN chooses its kernels


def check(device: str, config: TrainConfig) -> None:
    """Raise UserError if there is no GPU for a graph, or several workers exchange gradients."""
    if device != "cuda":
        raise UserError("--set cuda_graph=true: there is no GPU; leave it out")
    if config.n > 1 and config.trains:
        raise UserError(
            f"--set cuda_graph=true: {config.n} workers exchange gradients, which a graph here"
            " does not hold; leave it out, or train with -n 1"
        )


class Captured(NamedTuple):
    """A graph with the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Replayed:
    """A function of tensors that is captured as a CUDA graph once a shape has come a few times.

    The function may change tensors in place (a training step does), but it must not wait for the
    device, and must do the same whenever it is called. The tensors that a call returns are valid
    until the next call. Raises UserError if the function cannot be captured.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self.function = function
        self.calls: dict[tuple, int] = {}  # by shapes and types of the inputs
        self.captured: dict[tuple, Captured] = {}
        self.stream = torch.cuda.Stream()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return what the function returns; inputs in pinned memory are copied without waiting."""
        key = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        if key not in self.captured:
            self.calls[key] = self.calls.get(key, 0) + 1
            if self.calls[key] <= GRAPH_WARM_UP:
                return self.warm_up(inputs)
            try:
                self.captured[key] = self.capture(inputs)
            except RuntimeError as error:  # the end of the capture fails, too, after the cause
                cause = error.__context__ or error
                if isinstance(cause, torch.OutOfMemoryError):  # a smaller batch helps
                    raise cause from None
                why = first_line(cause)
                raise UserError(f"--set cuda_graph=true: {why}; leave it out") from error
        graph, static, outputs = self.captured[key]
        for tensor, value in zip(static, inputs, strict=True):
            tensor.copy_(value, non_blocking=True)
        graph.replay()
        return outputs

    def warm_up(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the function as it is, on a separate stream, as PyTorch asks before a capture."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            outputs = self.function(*(tensor.cuda(non_blocking=True) for tensor in inputs))
        current.wait_stream(self.stream)
        for tensor in inputs:
            if tensor.is_cuda:
                tensor.record_stream(self.stream)
        for tensor in outputs:
            tensor.record_stream(current)
        return outputs

    def capture(self, inputs: Sequence[Tensor]) -> Captured:
        """Return the graph of a call with inputs like these. The call itself does not run."""
        static = tuple(torch.empty_like(tensor, device="cuda") for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        # by default, a call of a loader's thread (pinned memory, DALI) would break the capture
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = self.function(*static)
        return Captured(graph, static, outputs)

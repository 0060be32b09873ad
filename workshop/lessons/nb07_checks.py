"""Immediate checks of notebook 07: the learner's fold, graph, its gain, queue and batches."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NoReturn
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workshop.checks.compare import Mistake, known, refuse, returned, wrong
from workshop.lessons.choice import choose, lesson_check

EPS = 0.1  # of the check's batch norms: large enough that leaving it out is detected
# channels in and out, and kernel size; if all are equal, scaling a wrong axis keeps the shape
LAYERS = ((3, 3, 3), (1, 5, 1))
WARM_UP = -1  # no address: the work of the warm-up


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return the weight and the bias of a convolution that includes the batch norm after it."""
    std = torch.sqrt(norm.running_var + norm.eps)
    scale = norm.weight / std
    weight = scale.view(-1, 1, 1, 1) * conv.weight
    bias = norm.bias - scale * norm.running_mean
    return weight, bias


@torch.no_grad()
def capture(net: Any, example: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that predicts a batch like `example` by replaying a CUDA graph."""
    static = example.clone()  # the graph always reads its input here
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # warm up: cuDNN chooses its kernels
            net(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = net(static)  # recorded, not computed

    def replay(batch: Tensor, net: Any = net) -> Tensor:  # net keeps the weights alive
        static.copy_(batch)
        graph.replay()
        return output

    return replay


def graph_gain(batch: int, launches: float, kernels: float) -> float:
    """Return a graph's speed as a multiple of eager's.

    `launches`: ms of all launches; `kernels`: ms of the kernels per image.
    """
    work = batch * kernels
    return max(launches, work) / work


GAINS = ((1, 4.0, 0.5), (3, 4.0, 0.5), (16, 4.0, 0.5))  # batch, launches and kernels
GAIN_MISTAKES: tuple[Mistake, ...] = (
    (lambda n, launches, kernels: 1 + launches / (n * kernels), "You add launches and kernels.",
     "They overlap: eager takes as long as the longer of the two."),
    (lambda n, launches, kernels: launches / (n * kernels),
     "In a large batch, the graph would be slower than eager.",
     "Eager takes as long as its kernels if those take longer than the launches."),
    (lambda n, launches, kernels: max(launches, kernels) / kernels, "The batch has no effect.",
     "A batch's kernels take `batch` times as long as one image's, its launches do not."),
    (lambda n, launches, kernels: 1 / graph_gain(n, launches, kernels),
     "This is the graph's time over eager's.", "Divide eager's time by the graph's."),
)  # fmt: skip


def ideal_latencies(arrivals: Sequence[float], service: float) -> list[float]:
    """Return the latency of each request at a server that takes `service` ms for each."""
    free, latencies = 0.0, []  # free: when the server can start the next request
    for arrival in arrivals:
        free = max(free, arrival) + service
        latencies.append(free - arrival)
    return latencies


ARRIVALS = (  # ms, and the service time: idle gaps, a burst, both
    (np.array([0.0, 10.0, 30.0]), 4.0), (np.zeros(3), 5.0),
    (np.array([1.0, 2.0, 3.0, 40.0, 41.0]), 6.0),
)  # fmt: skip
LATENCY_MISTAKES: tuple[Mistake, ...] = (
    (lambda arrivals, service: [max(0, i * service - at) + service for i, at in enumerate(arrivals)],
     "The server's clock does not wait for arrivals.",
     "Set it to the later of the two times, then add `service`."),
    (lambda arrivals, service: [x - service for x in ideal_latencies(arrivals, service)],
     "These are only the waits.", "Latency ends with the answer: add the request's own service."),
    (lambda arrivals, service: [(i + 1) * service - at for i, at in enumerate(arrivals)],
     "The server never waits: it starts requests before they arrive.",
     "A request starts when the server is free *and* the request has arrived."),
    (lambda arrivals, service: [service for _ in arrivals], "No request waits for another one.",
     "Latency counts from the arrival; the server may still be busy then."),
    (lambda arrivals, service: [x + at for x, at
                                in zip(ideal_latencies(arrivals, service), arrivals, strict=True)],
     "These are the times of the answers.", "Latency counts from the arrival: subtract it."),
    (lambda arrivals, service: [end - at for end, at in zip(
        [*accumulate(arrivals, lambda free, at: max(free + service, at), initial=0.0)][1:],
        arrivals, strict=True)],
     "A request that finds the server idle takes no time.",
     "Add `service` to the start, which is the later of the two times."),
)  # fmt: skip


def take(arrivals: Any, done: int, now: float, limit: int) -> int:
    """Return how many requests to answer at once: all that wait, at most `limit`."""
    arrived = int(np.searchsorted(arrivals, now, side="right"))
    return min(limit, arrived - done)


WAITING = (  # arrivals, done, now and limit: some are late, too many wait, the last just came
    (np.array([0.0, 1, 2, 3, 50, 60]), 1, 2.5, 16), (np.arange(8.0), 2, 6.5, 3),
    (np.array([0.0, 5]), 1, 5.0, 16), (np.array([0.0, 1, 9]), 0, 2.0, 16),
)  # fmt: skip
TAKE_MISTAKES: tuple[Mistake, ...] = (
    (lambda at, done, now, limit: sum(at <= now) - done, "The batch is larger than `limit`.",
     "Take the smaller of the two numbers."),
    (lambda at, done, now, limit: min(limit, sum(at <= now)), "Some have been answered already.",
     "Subtract `done`."),
    (lambda at, done, now, limit: min(limit, sum(at <= now)) - done, "More requests may be taken.",
     "Subtract `done` before you compare with `limit`."),
    (lambda at, done, now, limit: min(limit, len(at) - done), "Some have yet to arrive.",
     "Count only arrivals <= now."),
    (lambda at, done, now, limit: min(limit, sum(at < now) - done),
     "A request that arrives exactly at `now` is left out.", "Count arrivals <= now."),
)  # fmt: skip


def check_capture(own: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Check a learner's `capture` on a small network, without a GPU with `stand_in`."""
    with contextlib.nullcontext() if device == "cuda" else stand_in() as gpu:
        chosen = choose("capture", own, capture, lambda: judge_capture(own, device, gpu))
    if device == "cuda" and torch.cuda.current_stream() != torch.cuda.default_stream():
        # PyTorch 2.11 leaves its allocator, and the current stream, in a capture that failed
        print("A capture that failed blocks the next one. Change `capture`, restart the kernel, and"
              " run the cells up to this one.")  # fmt: skip
    return chosen


# --- fold -----------------------------------------------------------------------------------------


# For each result, rows of a mistake, its diagnosis and its remedy. A mistake is computed from the
# convolution's weight w and the norm's gamma g, beta b, mean m, variance v and deviation s.
MISTAKES: dict[str, tuple[tuple[Callable[..., Tensor], str, str], ...]] = {
    "weight": (
        (lambda w, g, b, m, v, s: (g / v.sqrt()).view(-1, 1, 1, 1) * w, "eps is missing.",
         "std is the root of norm.running_var + norm.eps."),
        (lambda w, g, b, m, v, s: (g / (v.sqrt() + EPS)).view(-1, 1, 1, 1) * w,
         "eps is outside of the root.", "Add it to the variance, inside torch.sqrt."),
        (lambda w, g, b, m, v, s: (1 / s).view(-1, 1, 1, 1) * w, "gamma is missing.",
         "The factor is norm.weight / std."),
        (lambda w, g, b, m, v, s: b - g / s * m, "This is the bias.",
         "Swap the results: return weight, bias."),
        (lambda w, g, b, m, v, s: (g / s**2).view(-1, 1, 1, 1) * w,
         "You divide by the variance, not by its root.", "Take torch.sqrt of running_var + eps."),
        (lambda w, g, b, m, v, s: g / s * w,
         "The factor runs along the columns of the kernel: broadcasting starts at the last axis.",
         "The output channels come first: scale.view(-1, 1, 1, 1)."),
        (lambda w, g, b, m, v, s: (g / s).view(1, -1, 1, 1) * w,
         "The factor runs along the input channels.",
         "The output channels come first: scale.view(-1, 1, 1, 1)."),
        (lambda w, g, b, m, v, s: w, "The weight is unchanged.",
         "Multiply it by norm.weight / std."),
    ),
    "bias": (
        (lambda w, g, b, m, v, s: b + g / s * m, "The sign of the mean is wrong.",
         "Subtract scale * norm.running_mean from beta."),
        (lambda w, g, b, m, v, s: b - m, "The mean is not scaled.",
         "Scale it, too: beta - scale * norm.running_mean."),
        (lambda w, g, b, m, v, s: g / s * (b - m), "beta is scaled, too.",
         "Scale only the mean: beta - scale * norm.running_mean."),
        (lambda w, g, b, m, v, s: b - g * m, "std is missing.",
         "Divide by the same std as in the weight."),
        (lambda w, g, b, m, v, s: b, "The mean is missing.",
         "Subtract scale * norm.running_mean."),
        (lambda w, g, b, m, v, s: b - g / v.sqrt() * m, "eps is missing.",
         "Divide by the same std as in the weight."),
    ),
}  # fmt: skip


def judge_fold(own: Callable[..., Any]) -> str:
    largest = 0.0
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for inputs, outputs, side in LAYERS:
            conv = nn.Conv2d(inputs, outputs, side, bias=False).eval()
            norm = nn.BatchNorm2d(outputs, eps=EPS).eval()
            for values in (norm.weight, norm.running_var):
                values.uniform_(0.3, 3)  # type: ignore[operator]
            for values in (norm.bias, norm.running_mean):
                values.normal_()  # type: ignore[operator]
            images = torch.randn(2, inputs, 8, 8)
            before, right, parts = norm(conv(images)), fold(conv, norm), values_of(conv, norm)
            result = returned(own(conv, norm))
            good = isinstance(result, tuple | list) and len(result) == 2
            refuse(
                (not good or not all(isinstance(one, Tensor) for one in result),
                 "The result is not two tensors.", "Return weight, bias."),
                (not torch.equal(norm(conv(images)), before), "The layers have changed.",
                 "Compute new tensors: w * scale does, w *= scale changes w."),
            )  # fmt: skip
            for (name, mistakes), got, wanted in zip(MISTAKES.items(), result, right, strict=True):
                if problem := difference(got, wanted):
                    known(got, [(mistake(*parts), *text) for mistake, *text in mistakes], close)
                    remedy = "Compare it with the formula above."
                    wrong(f"The {name} is not right. {problem}", remedy)
            off = before - F.conv2d(images, *result)
            largest = max(largest, float(off.abs().max()))
    return f"`fold` is right: the outputs of {len(LAYERS)} layers change by {largest:.0e} at most."


def values_of(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Any, ...]:
    """Return what a mistake is computed from."""
    mean, variance = norm.running_mean, norm.running_var
    std = torch.sqrt(variance + norm.eps)  # type: ignore[operator]
    return conv.weight, norm.weight, norm.bias, mean, variance, std


def difference(got: Tensor, right: Tensor) -> str:
    """Return how a tensor differs from the right one: in shape, type or values; else nothing."""
    try:
        torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-4)
    except AssertionError as error:
        lines = str(error).splitlines()
        return next((f"{line}." for line in lines if line.startswith("Greatest abs")), lines[0])
    return ""


def close(got: Tensor, wanted: Tensor) -> bool:
    return not difference(got, wanted)


# --- CUDA graph -----------------------------------------------------------------------------------


def judge_capture(own: Callable[..., Any], device: str, gpu: Gpu | None) -> str:
    calls: list[bool] = []  # is it captured?
    warm_ups: list[tuple[bool, bool]] = []  # on the default stream? is its input written?

    class Watched(nn.Sequential):  # torch.cuda.make_graphed_callables refuses hooks
        def forward(self, images: Tensor) -> Tensor:
            calls.append(bool(gpu.graph) if gpu else torch.cuda.is_current_stream_capturing())
            if gpu and not gpu.graph:
                needed = {one.untyped_storage().data_ptr() for one in (images, values)}
                warm_ups.append((gpu.current is gpu.default, needed <= gpu.current.done))
                gpu.current.done.add(WARM_UP)
            return super().forward(images)

    net = Watched(nn.Conv2d(3, 4, 3), nn.ReLU()).to(device).eval().requires_grad_(False)
    first, second = torch.randn(2, 2, 3, 8, 8).to(device)
    with torch.no_grad():
        of_first, of_second = (F.relu(net[0](images)) for images in (first, second))
    values = first.clone()
    # `values` does not keep the example itself alive
    replay = returned(own(net, values.view_as(values)))
    on_default, written = warm_ups[0] if warm_ups else (False, True)
    refuse(
        (not callable(replay), f"The result is a {type(replay).__name__}.",
         "Return the function that copies its input, replays the graph and returns the output."),
        (len(calls) - max(1, sum(calls)) < 1, "There is no warm-up before the capture.",
         "Call net(static) three times on a side stream, so that cuDNN chooses its kernels there."),
        (on_default, "The warm-up runs on the current stream.",
         "Call net(static) in `with torch.cuda.stream(side):`."),
        (gpu and not (written and WARM_UP in gpu.default.done),
         "A stream does not wait: the warm-up for the clone, or the capture for the warm-up.",
         "Call side.wait_stream(torch.cuda.current_stream()) between clone and warm-up, and"
         " torch.cuda.current_stream().wait_stream(side) after it."),
    )  # fmt: skip
    captured, alive = len(calls), weakref.ref(net)
    del net
    gc.collect()
    # checked before the replay, which would read freed memory
    refuse((alive() is None, "Nothing keeps the network alive: a graph knows only addresses.",
            "Keep it with the function: def replay(batch, net=net)."))  # fmt: skip
    answer = replay(second)
    refuse(
        (not isinstance(answer, Tensor), "The function returns no tensor.",
         "Return the output that was captured."),
        (not torch.equal(values, first), "The replay overwrites `example`, which is the caller's.",
         "Clone it first: static = example.clone()."),
    )  # fmt: skip
    answer, again = answer.clone(), replay(first).clone()
    problem = difference(answer, of_second) or difference(again, of_first)
    refuse(
        (len(calls) > captured, "The function calls net: every kernel is launched again.",
         "Call graph.replay() instead."),
        (problem and close(answer, of_first), "A new batch gets the answer of the captured one.",
         "Copy it into static, replay, and return what net(static) returned in the capture."),
        (problem, f"The output differs from eager. {problem}",
         "Copy the batch into static, then replay, and return the output of the capture."),
    )  # fmt: skip
    return "`capture` is right: two batches, the same outputs as eager."


# --- a CUDA graph without a GPU -------------------------------------------------------------------


def unknown(name: str) -> NoReturn:
    wrong(f"`{name}` is not known here, without a GPU; on one, it may be right.",
          "Use the calls of steps 1 to 4.")  # fmt: skip


class StandIn:
    """A part of `torch.cuda`, with the methods that the notebook names."""

    def __getattr__(self, name: str) -> Any:
        unknown(name)


class Stream(StandIn):
    """A CUDA stream: all work is done at once, but what waits for it is recorded.

    `done` has happened before anything new on this stream: the addresses written, and WARM_UP.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.done = gpu, set(gpu.host)
        self.before: list[Stream] = []  # those to return to
        gpu.streams.append(self)

    def __enter__(self) -> Stream:
        """Make this stream the current one."""
        self.before.append(self.gpu.current)
        self.gpu.current = self
        return self

    def __exit__(self, *error: object) -> None:
        self.gpu.current = self.before.pop()

    def wait_stream(self, other: Stream) -> None:
        """Let this stream wait for the work of another so far."""
        self.done |= other.done

    def synchronize(self) -> None:
        """Let Python wait, and so everything that it starts later."""
        self.gpu.host |= self.done
        for stream in self.gpu.streams:
            stream.done |= self.done


class Graph(StandIn):
    """A CUDA graph: operators with their tensors.

    As in a real one, Python does not run again, and the results are always in the same tensors.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        """Repeat all operators."""
        for function, args, kwargs, result in self.calls:
            again = tree_leaves(function(*args, **kwargs))
            for old, new in zip(tree_leaves(result), again, strict=True):
                if isinstance(old, Tensor) and old is not new:
                    old.copy_(new)


class Gpu(TorchDispatchMode):
    """What a GPU has: streams, and perhaps a graph that captures operators."""

    def __init__(self) -> None:
        super().__init__()
        self.host: set[int] = set()  # what Python has waited for
        self.streams: list[Stream] = []
        self.graph: Graph | None = None  # that captures
        self.current = self.default = Stream(self)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator; record it in the graph, or what it writes. A view does nothing."""
        if self.graph and function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError(
                "operation not permitted when stream is capturing: no number can be read yet"
            )
        result = function(*args, **(kwargs or {}))
        if self.graph:
            self.graph.calls.append((function, args, kwargs or {}, result))
        elif not function.is_view:
            tensors = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
            written = {tensor.untyped_storage().data_ptr() for tensor in tensors}
            for stream in self.streams:
                stream.done -= written  # until it waits again
            self.current.done |= written
        return result

    def synchronize(self, *args: Any) -> None:
        """Let Python wait for all streams."""
        for stream in self.streams:
            stream.synchronize()

    @contextlib.contextmanager
    def capture(self, cuda_graph: Graph, *args: Any, **keywords: Any) -> Iterator[None]:
        """Let a graph capture all operators."""
        self.graph = cuda_graph
        try:
            yield
        finally:
            self.graph = None


@contextlib.contextmanager
def stand_in() -> Iterator[Gpu]:
    """Replace the parts of `torch.cuda` that a capture uses, so that it runs on a CPU."""
    with Gpu() as gpu, mock.patch.multiple(
        torch.cuda, CUDAGraph=Graph, graph=gpu.capture, synchronize=gpu.synchronize,
        Stream=lambda *args, **keywords: Stream(gpu), stream=lambda stream: stream,
        Event=lambda *args, **keywords: unknown("Event"),
        current_stream=lambda *args: gpu.current, default_stream=lambda *args: gpu.default,
    ), mock.patch.object(torch.cuda.graphs, "graph_pool_handle"):  # fmt: skip
        yield gpu


check = lesson_check(
    (graph_gain, GAINS, GAIN_MISTAKES),
    (ideal_latencies, ARRIVALS, LATENCY_MISTAKES),
    (take, WAITING, TAKE_MISTAKES),
    (fold, judge_fold),
    capture=check_capture,
)

"""Immediate checks of notebook 07: the learner's clock, folded batch norm and CUDA graph."""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from workshop.checks.compare import known, refuse, wrong
from workshop.lessons.choice import choose
from workshop.lessons.nb08_checks import judge_turns

EPS = 0.1  # of the check's batch norms: large enough that leaving it out is detected
# channels in and out, and kernel size; if all are equal, scaling a wrong axis keeps the shape
LAYERS = ((3, 3, 3), (1, 5, 1))


def answer_times(
    net: Any, batch: Tensor, repeats: int, warm_up: int, wait: Callable[[], Any]
) -> list[float]:
    """Return the milliseconds of each of `repeats` calls, after `warm_up` that do not count."""
    ms = []
    with torch.inference_mode():
        for _ in range(warm_up + repeats):
            begin = time.perf_counter()
            net(batch)
            wait()
            ms.append(1000 * (time.perf_counter() - begin))
    return ms[warm_up:]


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


def check_clock(own: Callable[..., Any]) -> Callable[..., Any]:
    """Check a learner's `answer_times` on a network that queues its work, as on a GPU."""
    return choose("answer_times", own, answer_times, lambda: judge_clock(own), show=True)


def check_fold(own: Callable[..., Any]) -> Callable[..., Any]:
    """Check a learner's `fold` on two small layers."""
    return choose("fold", own, fold, lambda: judge_fold(own), show=True)


def check_capture(own: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Check a learner's `capture` on a small network, without a GPU with `stand_in`."""
    with contextlib.nullcontext() if device == "cuda" else stand_in():
        return choose("capture", own, capture, lambda: judge_capture(own, device), show=True)


# --- clock ----------------------------------------------------------------------------------------


def judge_clock(own: Callable[..., Any]) -> str:
    def clock(step: Callable[[], None], repeats: int, warm_up: int, wait: Any) -> Any:
        autograd: list[bool] = []

        def net(batch: Tensor) -> Tensor:
            autograd.append(torch.is_grad_enabled())
            step()
            return batch

        found = own(net, torch.zeros(4, 3, 8, 8), repeats, warm_up, wait)
        refuse((any(autograd), "Autograd is on: each call keeps activations for a backward pass.",
                "Call net(batch) in `with torch.inference_mode():`."))  # fmt: skip
        return found

    judge_turns(clock, "milliseconds")
    return "`answer_times` is right: the notebook uses yours."


# --- fold -----------------------------------------------------------------------------------------


def along_outputs(scale: Tensor, weight: Tensor) -> Tensor:
    return scale.view(-1, 1, 1, 1) * weight


# For each result, rows of a mistake, its diagnosis and its remedy. A mistake is computed from the
# convolution's weight w and the norm's gamma g, beta b, mean m, variance v and deviation s.
RESHAPE = "Give it the shape of the output channels: scale.view(-1, 1, 1, 1)."
MISTAKES: dict[str, tuple[tuple[Callable[..., Tensor], str, str], ...]] = {
    "weight": (
        (lambda w, g, b, m, v, s: w, "The weight has not changed.", "Multiply it by gamma / std."),
        (lambda w, g, b, m, v, s: along_outputs(g / v.sqrt(), w), "eps is missing.",
         "std is the root of norm.running_var + norm.eps."),
        (lambda w, g, b, m, v, s: along_outputs(g / s**2, w),
         "You divide by the variance, not by its root.", "Take torch.sqrt of running_var + eps."),
        (lambda w, g, b, m, v, s: along_outputs(g / (v.sqrt() + EPS), w),
         "eps is added after the root.", "Add it to the variance, then take the root."),
        (lambda w, g, b, m, v, s: along_outputs(g * s, w), "You multiply by std.", "Divide by it."),
        (lambda w, g, b, m, v, s: along_outputs(g, w), "std is missing.",
         "Divide gamma by the root of norm.running_var + norm.eps."),
        (lambda w, g, b, m, v, s: along_outputs(1 / s, w), "gamma is missing.",
         "Multiply by norm.weight."),
        (lambda w, g, b, m, v, s: g / s * w,
         "The factor runs along the columns of the kernel: broadcasting starts at the last axis.",
         RESHAPE),
        (lambda w, g, b, m, v, s: (g / s).view(-1, 1) * w,
         "The factor runs along the rows of the kernel.", RESHAPE),
        (lambda w, g, b, m, v, s: (g / s).view(-1, 1, 1) * w,
         "The factor runs along the input channels.",
         "The output channels come first: scale.view(-1, 1, 1, 1)."),
    ),
    "bias": (
        (lambda w, g, b, m, v, s: b + g / s * m, "The sign of the mean is wrong.",
         "Subtract scale * norm.running_mean from beta."),
        (lambda w, g, b, m, v, s: b, "The mean is missing.",
         "The bias is beta - scale * norm.running_mean."),
        (lambda w, g, b, m, v, s: b - m, "The mean is not scaled.",
         "Scale it, too: beta - scale * norm.running_mean."),
        (lambda w, g, b, m, v, s: g / s * (b - m), "beta is scaled.",
         "Only the mean is: beta - scale * norm.running_mean."),
        (lambda w, g, b, m, v, s: -g / s * m, "beta is missing.", "Add norm.bias."),
    ),
}  # fmt: skip


def judge_fold(own: Callable[..., Any]) -> str:
    largest = 0.0
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for inputs, outputs, side in LAYERS:
            conv = nn.Conv2d(inputs, outputs, side, bias=False)
            norm = nn.BatchNorm2d(outputs, eps=EPS).eval()
            for values in (norm.weight, norm.running_var):
                values.uniform_(0.3, 3)  # type: ignore[operator]
            for values in (norm.bias, norm.running_mean):
                values.normal_()  # type: ignore[operator]
            before = [value.clone() for value in values_of(conv, norm)]
            weight, bias = two_tensors(own(conv, norm))
            refuse((not all(map(torch.equal, before, values_of(conv, norm))),
                    "The layers have changed.",
                    "Compute new tensors: w * scale does, w *= scale changes w."))  # fmt: skip
            pairs = zip((weight, bias), fold(conv, norm), strict=True)
            for name, (got, right) in zip(MISTAKES, pairs, strict=True):
                compare_to(name, got, right, values_of(conv, norm))
            images = torch.randn(2, inputs, 8, 8)
            off = norm(conv(images)) - F.conv2d(images, weight, bias)
            largest = max(largest, float(off.abs().max()))
    return f"`fold` is right: the outputs of {len(LAYERS)} layers change by {largest:.0e} at most."


def values_of(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Any, ...]:
    """Return what a mistake is computed from."""
    mean, variance = norm.running_mean, norm.running_var
    std = torch.sqrt(variance + norm.eps)  # type: ignore[operator]
    return conv.weight, norm.weight, norm.bias, mean, variance, std


def two_tensors(result: Any) -> tuple[Tensor, Tensor]:
    """Return the weight and the bias of a result, or raise Wrong."""
    if result is None:
        raise NotImplementedError
    good = isinstance(result, tuple | list) and len(result) == 2
    refuse((not good or not all(isinstance(one, Tensor) for one in result),
            "The result is not two tensors.", "Return weight, bias."))  # fmt: skip
    weight, bias = result
    refuse((weight.ndim == 1 and bias.ndim == 4, "The weight comes second.",
            "Return weight, bias."))  # fmt: skip
    return weight, bias


def compare_to(name: str, got: Tensor, right: Tensor, values: tuple[Any, ...]) -> None:
    """Raise Wrong, with a diagnosis, unless a tensor is correct."""
    refuse((got.shape != right.shape,
            f"The {name} has the shape {tuple(got.shape)}, not {tuple(right.shape)}.",
            "One factor per output channel: scale.view(-1, 1, 1, 1) for the weight."))  # fmt: skip
    if not close(got, right):
        known(got, [(mistake(*values), *text) for mistake, *text in MISTAKES[name]], close)
        wrong(f"The {name} is off by up to {float((got - right).abs().max()):.2g}.",
              "Compare each part with the formula above.")  # fmt: skip


# --- CUDA graph -----------------------------------------------------------------------------------


def judge_capture(own: Callable[..., Any], device: str) -> str:
    calls: list[bool] = []  # is it captured?
    warm_ups: list[tuple[Stream, Counter, int]] = []  # of the stand-in: what judge_streams takes

    class Watched(nn.Sequential):  # torch.cuda.make_graphed_callables refuses hooks
        def forward(self, images: Tensor) -> Tensor:
            calls.append(capturing(device))
            if Stream.current and not Recording.active:
                written = Work.written.get(images.untyped_storage().data_ptr(), 0)
                warm_ups.append((Stream.current, Stream.current.done(), written))
            return super().forward(images)

    net = Watched(nn.Conv2d(3, 4, 3), nn.ReLU()).to(device).eval().requires_grad_(False)
    first, second = torch.randn(2, 2, 3, 8, 8).to(device)
    with torch.no_grad():
        of_first, of_second = net(first), net(second)
    calls.clear()
    warm_ups.clear()
    values = first.clone()
    replay = own(net, values.view_as(values))  # `values` does not keep the example itself alive
    if replay is None:
        raise NotImplementedError
    refuse(
        (not callable(replay), f"The result is a {type(replay).__name__}.",
         "Return the function that copies its input, replays the graph and returns the output."),
        (type(replay).__name__ == "OptimizedModule", "torch.compile captures the graph for you.",
         "Capture it yourself here; the notebook times torch.compile below."),
        (Recording.active, "The capture does not end.", "Call graph.capture_end()."),
        (len(calls) - max(1, sum(calls)) < 1, "There is no warm-up before the capture.",
         "Call net(static) three times on a side stream, so that cuDNN chooses its kernels there."),
    )  # fmt: skip
    if Stream.current:
        judge_streams(*warm_ups[0])
    captured, weight = len(calls), weakref.ref(net[0].weight)
    del net
    gc.collect()
    # checked before the replay, which would read freed memory
    refuse((weight() is None, "Nothing keeps the network alive: a graph knows only addresses.",
            "Keep it with the function: def replay(batch, net=net)."))  # fmt: skip
    returned = replay(second)
    refuse(
        (not isinstance(returned, Tensor), "The function returns no tensor.",
         "Return the output that was captured."),
        (not torch.equal(values, first), "The replay overwrites `example`, which is the caller's.",
         "Clone it first: static = example.clone()."),
    )  # fmt: skip
    answer = returned.clone()
    if not close(answer, of_second) and close(answer, of_first):
        returned.detach().fill_(float("nan"))
        refuse(
            (
                bool(replay(second).isnan().all()),
                "The graph does not compute what the function returns.",
                "Return what net(static) returns during the capture.",
            )
        )
    again = replay(first).clone()
    refuse(
        (len(calls) > captured, "The function calls net: every kernel is launched again.",
         "Call graph.replay() instead."),
        (not close(answer, of_second) and close(answer, of_first),
         "A new batch gets the answer of the captured one: the graph has read its old input.",
         "Copy the batch first: static.copy_(batch)."),
    )  # fmt: skip
    for got, wanted in ((answer, of_second), (again, of_first)):
        if not close(got, wanted):
            if got.shape != wanted.shape:
                wrong(f"The output has the shape {tuple(got.shape)}, not {tuple(wanted.shape)}.",
                      "Return what net(static) returned during the capture.")  # fmt: skip
            wrong(f"The output differs from eager by {float((got - wanted).abs().max()):.2g}.",
                  "Replay after the copy, and return the output of the capture.")  # fmt: skip
    said = "`capture` is right: two batches, the same outputs as eager."
    if device == "cpu":
        said += " (With a stand-in for a GPU.)"
    if not torch.equal(returned, answer):
        said += " The next call overwrites the output: clone it if you keep it."
    return said


def judge_streams(side: Stream, done: Counter, written: int) -> None:
    """Raise Wrong unless the warm-up ran on a side stream, and each stream waited for the other.

    Before the warm-up, `done` was what had happened before anything on `side`. Its input was
    written after `written` operators of the current stream.
    """
    current = Stream.made[0]
    refuse(
        (side is current, "The warm-up runs on the current stream.",
         "Call net(static) in `with torch.cuda.stream(side):`."),
        (done[current] < written, "The side stream does not wait for the current one, which may"
         " still write `static`.",
         "Call side.wait_stream(torch.cuda.current_stream()) after the clone, before the warm-up."),
        (current.done()[side] < side.work, "The current stream does not wait for the warm-up.",
         "Call torch.cuda.current_stream().wait_stream(side) after it."),
    )  # fmt: skip


def capturing(device: str) -> bool:
    return torch.cuda.is_current_stream_capturing() if device == "cuda" else bool(Recording.active)


def close(got: Tensor, wanted: Tensor) -> bool:
    return got.shape == wanted.shape and torch.allclose(got, wanted, rtol=1e-3, atol=1e-4)


# --- a CUDA graph without a GPU -------------------------------------------------------------------


class Stream:
    """A stand-in for a CUDA stream: all work is done at once; what it would wait for is recorded.

    `seen` counts, per stream, the work that has happened before anything new on this one.
    """

    current: Stream | None = None
    made: ClassVar[list[Stream]] = []  # the default stream first
    host: ClassVar[Counter[Stream]] = Counter()  # what Python has waited for

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.work = 0
        self.seen: Counter[Stream] = Counter()
        Stream.made.append(self)

    def done(self) -> Counter[Stream]:
        """Return the work that has happened before anything new on this stream."""
        return self.seen | Stream.host | Counter[Stream]({self: self.work})

    def wait_stream(self, other: Stream) -> None:
        """Let this stream wait for the work of another so far."""
        self.seen |= other.done()

    def wait_event(self, event: Event) -> None:
        """Let this stream wait for an event."""
        self.seen |= event.done

    def record_event(self, event: Event | None = None) -> Event:
        """Record the work of this stream so far."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Let Python wait for this stream."""
        Stream.host |= self.done()

    def query(self) -> bool:
        """Return True: all work is done at once, and Python now knows it."""
        self.synchronize()
        return True

    @staticmethod
    def synchronize_all(*args: Any) -> None:
        """Let Python wait for all streams."""
        for stream in Stream.made:
            stream.synchronize()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current stream."""
        before, Stream.current = Stream.current, self
        try:
            yield
        finally:
            Stream.current = before


class Event:
    """A stand-in for a CUDA event: the work of a stream when it was recorded."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.done: Counter[Stream] = Counter()

    def record(self, stream: Stream | None = None) -> None:
        """Record the work of a stream so far."""
        self.done = (stream or Stream.current).done()  # type: ignore[union-attr]

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for this event."""
        (stream or Stream.current).wait_event(self)  # type: ignore[union-attr]

    def synchronize(self) -> None:
        """Let Python wait for this event."""
        Stream.host |= self.done

    def query(self) -> bool:
        """Return True: all work is done at once, and Python now knows it."""
        self.synchronize()
        return True


class Graph:
    """A stand-in for a CUDA graph; `torch.cuda.graph` enters its recording."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.recording = Recording()

    def capture_begin(self, *args: Any, **keywords: Any) -> None:
        """Begin to record. Raises RuntimeError on the default stream, as on a GPU."""
        if Stream.current is Stream.made[0]:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self.recording.__enter__()

    def capture_end(self) -> None:
        """End the recording."""
        self.recording.__exit__(None, None, None)

    def replay(self) -> None:
        """Repeat what was recorded."""
        self.recording.replay()


class Work(TorchDispatchMode):
    """Counts the operators of each stand-in for a stream, without those that are only recorded."""

    written: ClassVar[dict[int, int]] = {}  # by address: the default stream's work at that time

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and count it. A view does nothing on a GPU."""
        result = function(*args, **(kwargs or {}))
        if Stream.current and not Recording.active and not function.is_view:
            Stream.current.work += 1
            for tensor in tree_leaves(result):
                if isinstance(tensor, Tensor):
                    Work.written[tensor.untyped_storage().data_ptr()] = Stream.made[0].work
        return result


class Recording(TorchDispatchMode):
    """A record of operators with their tensors, which it can repeat.

    It has a graph's rules: Python does not run again, the results are always in the same tensors,
    which hold nothing before the first replay, and what the capture did not make is not kept alive.
    """

    active: ClassVar[Recording | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.made: dict[int, Tensor] = {}
        self.outside: set[int] = set()  # addresses that the capture did not make

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and record it."""
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError(
                "operation not permitted when stream is capturing: nothing is computed"
                " yet, so no number can be read."
            )
        given = tree_map_only(Tensor, self.reference, (args, kwargs or {}))
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, *given, result))
        self.made |= {id(t): t for t in tree_leaves(result) if isinstance(t, Tensor)}
        return result

    def reference(self, tensor: Tensor) -> Any:
        """Return a tensor of the capture itself, and a weak reference to one from outside."""
        if id(tensor) in self.made:
            return tensor
        self.outside.add(tensor.untyped_storage().data_ptr())
        return weakref.ref(tensor)

    def __enter__(self) -> Recording:
        if Recording.active:
            raise RuntimeError("a capture is running already.")
        super().__enter__()
        Recording.active = self
        return self

    def __exit__(self, *error: Any) -> None:
        """Erase the results, which a GPU would not have computed."""
        if Recording.active is not self:
            raise RuntimeError("this capture has ended already, or it has not begun.")
        super().__exit__(*error)
        try:
            for tensor in self.made.values():
                if tensor.untyped_storage().data_ptr() not in self.outside:
                    tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
        finally:
            Recording.active = None

    def replay(self) -> None:
        """Repeat all operators. Raises RuntimeError if a tensor from outside is gone."""
        for function, args, kwargs, result in list(self.calls):
            args, kwargs = tree_map_only(weakref.ref, self.alive, (args, kwargs))
            again = tree_leaves(function(*args, **kwargs))
            for old, new in zip(tree_leaves(result), again, strict=True):
                if isinstance(old, Tensor) and old is not new:
                    old.copy_(new)

    @staticmethod
    def alive(reference: weakref.ref) -> Tensor:
        tensor = reference()
        if tensor is None:
            raise RuntimeError(
                "the graph reads a tensor that no longer exists. Capture net(static), and copy each"
                " batch into it: static.copy_(batch). `static = …` makes a new tensor."
            )
        return tensor  # type: ignore[no-any-return]


@contextlib.contextmanager
def stand_in() -> Iterator[None]:
    """Replace the parts of `torch.cuda` that a capture uses, so that it runs on a CPU."""
    Stream.made.clear()
    Stream.host.clear()
    Work.written.clear()
    with Stream().active(), Work(), mock.patch.multiple(
        torch.cuda, CUDAGraph=Graph, Event=Event, default_stream=lambda *args: Stream.made[0],
        graph=lambda cuda_graph, *args, **keywords: cuda_graph.recording,
        Stream=Stream, current_stream=lambda *args: Stream.current, stream=Stream.active,
        synchronize=Stream.synchronize_all,
    ), mock.patch.object(torch.cuda.graphs, "graph_pool_handle"):  # fmt: skip
        try:
            yield
        finally:  # the answer failed, or it has no capture_end()
            if Recording.active:
                Recording.active.__exit__(None, None, None)

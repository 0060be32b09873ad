"""Immediate checks of notebook 07: the learner's clock, folded batch norm, graph and queue."""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workshop.checks.compare import Mistake, known, refuse, wrong
from workshop.lessons.choice import choose, choose_by_cases
from workshop.lessons.nb08_checks import judge_turns

EPS = 0.1  # of the check's batch norms: large enough that leaving it out is detected
# channels in and out, and kernel size; if all are equal, scaling a wrong axis keeps the shape
LAYERS = ((3, 3, 3), (1, 5, 1))
WARM_UP = -1  # no address: the work of the warm-up


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


def mean_latency(service: float, load: float) -> float:
    """Return the mean latency in ms at a `load` below 1."""
    return service * (1 + load / (2 * (1 - load)))


LATENCIES = ((6.0, 0.5), (4.0, 0.8), (2.0, 0.0))  # service and load
LATENCY_MISTAKES: tuple[Mistake, ...] = (
    (lambda service, load: service * load / (2 * (1 - load)), "This is only the wait.",
     "Add the request's own service."),
    (lambda service, load: service * (1 + load / (1 - load)),
     "The 2 is missing: without it, service times would be random, too.",
     "The wait is service * load / (2 * (1 - load))."),
    (lambda service, load: service * (1 + load / 2 * (1 - load)),
     "(1 - load) multiplies, instead of dividing.", "Write load / (2 * (1 - load))."),
    (lambda service, load: service + load / (2 * (1 - load)),
     "The wait is in services, not in ms.", "Multiply it by `service`."),
)  # fmt: skip


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


def check_latency(own: Callable[..., Any]) -> Callable[..., Any]:
    """Check a learner's `mean_latency` in a few cases."""
    cases = LATENCIES, LATENCY_MISTAKES
    return choose_by_cases("mean_latency", own, mean_latency, *cases, show=True)


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
RESHAPE = "The output channels come first: scale.view(-1, 1, 1, 1)."
MISTAKES: dict[str, tuple[tuple[Callable[..., Tensor], str, str], ...]] = {
    "weight": (
        (lambda w, g, b, m, v, s: along_outputs(g / v.sqrt(), w), "eps is missing.",
         "std is the root of norm.running_var + norm.eps."),
        (lambda w, g, b, m, v, s: along_outputs(g / s**2, w),
         "You divide by the variance, not by its root.", "Take torch.sqrt of running_var + eps."),
        (lambda w, g, b, m, v, s: along_outputs(g, w), "std is missing.",
         "Divide gamma by the root of norm.running_var + norm.eps."),
        (lambda w, g, b, m, v, s: along_outputs(1 / s, w), "gamma is missing.",
         "Multiply by norm.weight."),
        (lambda w, g, b, m, v, s: g / s * w,
         "The factor runs along the columns of the kernel: broadcasting starts at the last axis.",
         RESHAPE),
        (lambda w, g, b, m, v, s: (g / s).view(-1, 1, 1) * w,
         "The factor runs along the input channels.", RESHAPE),
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
            weight, bias = judge_folded(own, conv, norm)
            images = torch.randn(2, inputs, 8, 8)
            off = norm(conv(images)) - F.conv2d(images, weight, bias)
            largest = max(largest, float(off.abs().max()))
    return f"`fold` is right: the outputs of {len(LAYERS)} layers change by {largest:.0e} at most."


def judge_folded(own: Callable[..., Any], conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Any:
    """Return what a learner's `fold` makes of two layers, or raise Wrong."""
    values = values_of(conv, norm)
    before = [value.clone() for value in values]
    result = own(conv, norm)
    if result is None:
        raise NotImplementedError
    good = isinstance(result, tuple | list) and len(result) == 2
    refuse(
        (not good or not all(isinstance(one, Tensor) for one in result),
         "The result is not two tensors.", "Return weight, bias."),
        (not all(map(torch.equal, before, values_of(conv, norm))), "The layers have changed.",
         "Compute new tensors: w * scale does, w *= scale changes w."),
    )  # fmt: skip
    for name, got, right in zip(MISTAKES, result, fold(conv, norm), strict=True):
        refuse((got.shape != right.shape,
                f"The {name} has the shape {tuple(got.shape)}, not {tuple(right.shape)}.",
                "Return weight, bias. The factor of the weight has one value per output channel:"
                " scale.view(-1, 1, 1, 1)."),
               (got.dtype != right.dtype, f"The {name} is {str(got.dtype)[6:]}, the layers are"
                f" {str(right.dtype)[6:]}.", "Return their type."))  # fmt: skip
        if not close(got, right):
            known(got, [(mistake(*values), *text) for mistake, *text in MISTAKES[name]], close)
            wrong(f"The {name} is off by up to {float((got - right).abs().max()):.2g}.",
                  "Compare each part with the formula above.")  # fmt: skip
    return result


def values_of(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Any, ...]:
    """Return what a mistake is computed from."""
    mean, variance = norm.running_mean, norm.running_var
    std = torch.sqrt(variance + norm.eps)  # type: ignore[operator]
    return conv.weight, norm.weight, norm.bias, mean, variance, std


# --- CUDA graph -----------------------------------------------------------------------------------


def judge_capture(own: Callable[..., Any], device: str) -> str:
    calls: list[bool] = []  # is it captured?
    warm_ups: list[tuple[bool, bool]] = []  # on the current stream? is its input written?

    class Watched(nn.Sequential):  # torch.cuda.make_graphed_callables refuses hooks
        def forward(self, images: Tensor) -> Tensor:
            calls.append(capturing(device))
            if (stream := Stream.current) and not Recording.active:
                needed = {one.untyped_storage().data_ptr() for one in (images, values)}
                warm_ups.append((stream is Stream.made[0], needed <= stream.done))
                stream.done.add(WARM_UP)
            return super().forward(images)

    net = Watched(nn.Conv2d(3, 4, 3), nn.ReLU()).to(device).eval().requires_grad_(False)
    first, second = torch.randn(2, 2, 3, 8, 8).to(device)
    with torch.no_grad():
        of_first, of_second = (F.relu(net[0](images)) for images in (first, second))
    values = first.clone()
    replay = own(net, values.view_as(values))  # `values` does not keep the example itself alive
    if replay is None:
        raise NotImplementedError
    on_current, written = warm_ups[0] if warm_ups else (False, True)
    refuse(
        (not callable(replay), f"The result is a {type(replay).__name__}.",
         "Return the function that copies its input, replays the graph and returns the output."),
        (type(replay).__name__ == "OptimizedModule", "torch.compile captures the graph for you.",
         "Capture it yourself here; the notebook times torch.compile below."),
        (len(calls) - max(1, sum(calls)) < 1, "There is no warm-up before the capture.",
         "Call net(static) three times on a side stream, so that cuDNN chooses its kernels there."),
        (on_current, "The warm-up runs on the current stream.",
         "Call net(static) in `with torch.cuda.stream(side):`."),
        (not written, "The side stream does not wait for the current one, which may still write"
         " `static`.", "Call side.wait_stream(torch.cuda.current_stream()) after the clone, before"
         " the warm-up."),
        (warm_ups and WARM_UP not in Stream.made[0].done,
         "The current stream does not wait for the warm-up.",
         "Call torch.cuda.current_stream().wait_stream(side) after it."),
    )  # fmt: skip
    captured, alive = len(calls), weakref.ref(net)
    del net
    gc.collect()
    # checked before the replay, which would read freed memory
    refuse((alive() is None, "Nothing keeps the network alive: a graph knows only addresses.",
            "Keep it with the function: def replay(batch, net=net)."))  # fmt: skip
    returned = replay(second)
    refuse(
        (not isinstance(returned, Tensor), "The function returns no tensor.",
         "Return the output that was captured."),
        (not torch.equal(values, first), "The replay overwrites `example`, which is the caller's.",
         "Clone it first: static = example.clone()."),
    )  # fmt: skip
    answer, again = returned.clone(), replay(first).clone()
    off = float((answer - of_second).abs().max()) if answer.shape == of_second.shape else 0
    refuse(
        (len(calls) > captured, "The function calls net: every kernel is launched again.",
         "Call graph.replay() instead."),
        (answer.shape != of_second.shape,
         f"The output has the shape {tuple(answer.shape)}, not {tuple(of_second.shape)}.",
         "Return what net(static) returned during the capture."),
        (not close(answer, of_second) and close(answer, of_first),
         "A new batch gets the answer of the captured one.",
         "Copy it into static, replay, and return what net(static) returned in the capture."),
        (not (close(answer, of_second) and close(again, of_first)),
         f"The output differs from eager by {off:.2g}.",
         "Copy the batch into static, then replay, and return the output of the capture."),
    )  # fmt: skip
    said = "`capture` is right: two batches, the same outputs as eager."
    if not torch.equal(returned, answer):
        said += " The next call overwrites the output: clone it if you keep it."
    return said


def capturing(device: str) -> bool:
    return torch.cuda.is_current_stream_capturing() if device == "cuda" else bool(Recording.active)


def close(got: Tensor, wanted: Tensor) -> bool:
    return got.shape == wanted.shape and torch.allclose(got, wanted, rtol=1e-3, atol=1e-4)


# --- a CUDA graph without a GPU -------------------------------------------------------------------


class Stream:
    """A stand-in for a CUDA stream: all work is done at once, but what waits for it is recorded.

    `done` has happened before anything new on this stream: the addresses written, and WARM_UP.
    """

    current: Stream | None = None
    made: ClassVar[list[Stream]] = []  # the default stream first
    host: ClassVar[set[int]] = set()  # what Python has waited for

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.done = set(Stream.host)
        Stream.made.append(self)

    def wait_stream(self, other: Stream) -> None:
        """Let this stream wait for the work of another so far."""
        self.done |= other.done

    def synchronize(self) -> None:
        """Let Python wait, and so everything that it starts later."""
        Stream.host |= self.done
        for stream in Stream.made:
            stream.done |= self.done

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

    def __getattr__(self, name: str) -> Any:
        return not_known_here(name)


class Event:
    """Stands for `torch.cuda.Event`."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        not_known_here("torch.cuda.Event")


def not_known_here(name: str) -> NoReturn:
    """Raise Wrong for a part of `torch.cuda` that has no stand-in."""
    wrong(f"`{name}` is not known here, without a GPU; on one, it may be right.",
          "Use the calls of steps 1 to 4.")  # fmt: skip


class Work(TorchDispatchMode):
    """Records what the operators of each stream write, without those that are only captured."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and record it. A view does nothing on a GPU."""
        result = function(*args, **(kwargs or {}))
        if Stream.current and not Recording.active and not function.is_view:
            tensors = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
            written = {tensor.untyped_storage().data_ptr() for tensor in tensors}
            for stream in Stream.made:
                stream.done -= written  # until it waits again
            Stream.current.done |= written
        return result


class Graph:
    """A stand-in for a CUDA graph; `torch.cuda.graph` enters its recording."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.recording = Recording()
        self.replay = self.recording.replay

    def __getattr__(self, name: str) -> Any:
        return not_known_here(name)


class Recording(TorchDispatchMode):
    """A record of operators with their tensors, which it can repeat.

    As in a graph, Python does not run again, and the results are always in the same tensors.
    """

    active: ClassVar[Recording | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and record it, unless Python waits for its number."""
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError(
                "operation not permitted when stream is capturing: no number can be read yet"
            )
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    def __enter__(self) -> Recording:
        Recording.active = self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        Recording.active = None

    def replay(self) -> None:
        """Repeat all operators."""
        for function, args, kwargs, result in self.calls:
            again = tree_leaves(function(*args, **kwargs))
            for old, new in zip(tree_leaves(result), again, strict=True):
                if isinstance(old, Tensor) and old is not new:
                    old.copy_(new)


@contextlib.contextmanager
def stand_in() -> Iterator[None]:
    """Replace the parts of `torch.cuda` that a capture uses, so that it runs on a CPU."""
    Stream.made.clear()
    Stream.host.clear()
    with Stream().active(), Work(), mock.patch.multiple(
        torch.cuda, CUDAGraph=Graph, Event=Event, default_stream=lambda *args: Stream.made[0],
        graph=lambda cuda_graph, *args, **keywords: cuda_graph.recording,
        Stream=Stream, current_stream=lambda *args: Stream.current, stream=Stream.active,
        synchronize=Stream.synchronize_all,
    ), mock.patch.object(torch.cuda.graphs, "graph_pool_handle"):  # fmt: skip
        yield

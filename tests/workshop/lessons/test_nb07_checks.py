"""The immediate checks of notebook 07: right answers pass, each wrong one gets its diagnosis."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from workshop.lessons import nb07_checks as nb07  # noqa: E402

pytestmark = pytest.mark.needs("torch")


# --- fold -----------------------------------------------------------------------------------------


def torch_s_fold(conv: Any, norm: Any) -> Any:
    """Fold with PyTorch's own function."""
    from torch.nn.utils.fusion import fuse_conv_bn_weights

    return fuse_conv_bn_weights(
        conv.weight, None, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )


def test_right_folds_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert nb07.check("fold", torch_s_fold) is torch_s_fold
    assert capsys.readouterr().out.startswith("✓")


def in_place(conv: Any, norm: Any) -> Any:
    weight, bias = nb07.fold(conv, norm)
    return conv.weight.copy_(weight), bias


WRONG_FOLDS: list[tuple[Callable[..., Any], str]] = [
    *[(lambda c, n, f=f: (f(*nb07.values_of(c, n)), nb07.fold(c, n)[1]), said)
      for f, said, _ in nb07.MISTAKES["weight"]],
    *[(lambda c, n, f=f: (nb07.fold(c, n)[0], f(*nb07.values_of(c, n))), said)
      for f, said, _ in nb07.MISTAKES["bias"]],
    (in_place, "The layers have changed"),
    (lambda c, n: nb07.fold(c, n)[::-1], "This is the bias."),
    (lambda c, n: nb07.fold(c, n)[0], "not two tensors"),
    (lambda c, n: (1.01 * nb07.fold(c, n)[0], nb07.fold(c, n)[1]), "The weight is not right."),
    (lambda c, n: (nb07.fold(c, n)[0], nb07.fold(c, n)[1] + 1), "The bias is not right"),
    (lambda c, n: [one.double() for one in nb07.fold(c, n)], "attribute 'dtype' do not match"),
    (lambda c, n: None, "not written yet"),
]  # fmt: skip


@pytest.mark.parametrize(("own", "said"), WRONG_FOLDS, ids=[said for _, said in WRONG_FOLDS])
def test_wrong_folds_are_diagnosed(own: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nb07.check("fold", own) is nb07.fold
    first, *rest = capsys.readouterr().out.splitlines()
    assert said in first and first[0] == ("○" if "not written" in said else "✗")
    # an answer is shown only to those who have not begun
    assert any("torch.sqrt" in line for line in rest) == ("not written" in said)


# --- CUDA graph -----------------------------------------------------------------------------------


SOURCE = inspect.getsource(nb07.capture)
STEPS = {  # a change to the finished version, and what the check says on a CPU
    ("", ""): "✓ `capture` is right",
    ("return output", "return output.clone()"): "✓ `capture` is right",
    ("return output", "return None"): "✗ The function returns no tensor",
    ("return replay", "return None"): "✗ your function returns nothing",
    ("range(3)", "range(0)"): "✗ There is no warm-up",
    (", net: Any = net", ""): "✗ Nothing keeps the network alive",
    ("static.copy_(batch)", "static"): "✗ A new batch gets the answer of the captured one",
    ("return output", "return output + 1"): "✗ The output differs from eager. Greatest",
    ("graph.replay()", "net(static)"): "✗ The function calls net",
    ("example.clone()", "example"): "✗ The replay overwrites `example`",
    ("torch.cuda.stream(side)", "contextlib.nullcontext()"): "✗ The warm-up runs on the current",
    ("side.wait_stream(torch.cuda.current_stream())", "pass"): "✗ A stream does not wait",
    ("torch.cuda.current_stream().wait_stream(side)", "pass"): "✗ A stream does not wait",
    ("torch.cuda.current_stream().wait_stream(side)", "side.synchronize()"): "✓ `capture` is right",
    (
        "side.wait_stream(torch.cuda.current_stream())",
        "torch.cuda.synchronize()",
    ): "✓ `capture` is right",
    (
        "side = torch.cuda.Stream()\n    side.wait_stream(torch.cuda.current_stream())",
        "torch.cuda.synchronize()\n    side = torch.cuda.Stream()",
    ): "✓ `capture` is right",
    (
        "static = example.clone()  # the graph always reads its input here\n"
        "    side = torch.cuda.Stream()\n    side.wait_stream(torch.cuda.current_stream())",
        "side = torch.cuda.Stream()\n    side.wait_stream(torch.cuda.current_stream())\n"
        "    static = example.clone()",
    ): "✗ A stream does not wait",
    (  # the current stream has other work after it
        "side.wait_stream(torch.cuda.current_stream())",
        "side.wait_stream(torch.cuda.current_stream())\n"
        "    more = torch.zeros_like(example) + torch.empty_like(example)",
    ): "✓ `capture` is right",
    (
        "side.wait_stream(torch.cuda.current_stream())",
        "with torch.cuda.stream(side):\n        static = example.clone()",
    ): "✗ A stream does not wait",
    (
        "net(static)  # recorded",
        "net(example + 0)  # recorded",
    ): "✗ A new batch gets the answer of the captured one",
    ("return replay", "return output"): "✗ The result is a Tensor",
    (
        "side.wait_stream(torch.cuda.current_stream())",
        "side.wait_event(torch.cuda.current_stream().record_event())",
    ): "✗ `wait_event` is not known here, without a GPU",
    ("range(3)", "range(3, torch.cuda.Event())"): "✗ `Event` is not known here, without a GPU",
    ("torch.cuda.graph(graph)", "torch.cuda.graph(cuda_graph=graph)"): "✓ `capture` is right",
    ("with torch.cuda.stream(side)", "with side"): "✓ `capture` is right",
    (  # the warm-up is on the default stream again
        "with torch.cuda.stream(side):",
        "with side, side:\n        pass\n    if 1:",
    ): "✗ The warm-up runs on the current",
    ("with torch.cuda.graph(graph):", "graph.capture_begin()\n    if 1:"): "✗ `capture_begin` is",
    ("# recorded", "; output.max().item()  # recorded"): "✗ `capture` ended with RuntimeError: op",
}


@pytest.mark.parametrize("change", STEPS, ids=[" for ".join(change[::-1]) for change in STEPS])
def test_captures_are_checked_without_a_gpu(
    change: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert change[0] in SOURCE
    file = tmp_path / "own.py"
    file.write_text("from workshop.lessons.nb07_checks import *\n" + SOURCE.replace(*change, 1))
    own = runpy.run_path(str(file))["capture"]
    chosen = nb07.check("capture", own, "cpu")
    said = capsys.readouterr().out.replace("✗ `capture`: ", "✗ ")
    assert said.startswith(STEPS[change])
    assert chosen is (own if said.startswith("✓") else nb07.capture)
    assert torch.cuda.CUDAGraph is not nb07.Graph  # only the check replaces it


def test_pytorch_s_own_capture_passes(capsys: pytest.CaptureFixture[str]) -> None:
    @torch.no_grad()
    def own(net: Any, example: Any) -> Any:
        return torch.cuda.make_graphed_callables(net, (example.clone(),))

    assert nb07.check("capture", own, "cpu") is own
    assert capsys.readouterr().out.startswith("✓ `capture` is right")


@pytest.mark.needs("gpu")
def test_the_finished_capture_passes_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert nb07.check("capture", nb07.capture, "cuda") is nb07.capture
    assert capsys.readouterr().out.startswith("✓")


# --- the gain of a graph, and the queue -----------------------------------------------------------


def latencies_of_arrays(arrivals: Any, service: float) -> Any:
    """Compute the latencies without a loop."""
    before = np.arange(len(arrivals)) * service  # what the earlier requests take
    return np.maximum.accumulate(arrivals - before) + before + service - arrivals


def latencies_by_the_wait(arrivals: Any, service: float) -> list[float]:
    wait, waits = 0.0, [0.0]
    for gap in np.diff(arrivals):
        wait = max(0.0, wait + service - gap)
        waits.append(wait)
    return [wait + service for wait in waits]


def latencies_in_place(arrivals: Any, service: float) -> Any:
    arrivals += service
    return arrivals


QUESTIONS = [
    ("graph_gain", nb07.GAIN_MISTAKES),
    ("ideal_latencies", nb07.LATENCY_MISTAKES),
    ("take", nb07.TAKE_MISTAKES),
]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("graph_gain", lambda n, launches, kernels: max(1.0, launches / (n * kernels))),
        ("graph_gain", lambda n, a, b: a / (n * b) if a > n * b else 1),
        ("ideal_latencies", latencies_of_arrays),
        ("ideal_latencies", latencies_by_the_wait),
        ("ideal_latencies", lambda *case: tuple(nb07.ideal_latencies(*case))),
        ("take", lambda at, done, now, limit: min(sum(at[done:] <= now), limit)),
        ("take", lambda at, done, now, limit: len([x for x in at[done:][:limit] if x <= now])),
    ],
)
def test_right_models_pass(name: str, own: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert nb07.check(name, own) is own
    assert capsys.readouterr().out.startswith("✓")


WRONG_MODELS = [
    *[(name, *row[:2]) for name, rows in QUESTIONS for row in rows],
    ("ideal_latencies", latencies_in_place, "`arrivals` is changed"),
    ("ideal_latencies", lambda *case: nb07.ideal_latencies(*case)[:-1], "It should be"),
    (
        "take",
        lambda at, done, now, limit: min(limit, int(np.argmax(at > now)) - done),
        "gives -1",
    ),
]


@pytest.mark.parametrize(
    ("name", "own", "said"), WRONG_MODELS, ids=[row[2] for row in WRONG_MODELS]
)
def test_wrong_models_get_their_diagnosis(
    name: str, own: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nb07.check(name, own) is getattr(nb07, name)
    assert said in capsys.readouterr().out

"""Timelines and tables of traces: of a GPU with known numbers, of real runs, and of bad files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workshop import output, trace
from workshop.trace import KINDS, kind_of, read

HOST, STREAM, NCCL = (7, 7), (0, 7), (0, 20)  # process and thread, or GPU and stream

# one step of 100 ms on a GPU: where it runs, its kind of event, name, begin and end in ms
STEP = [
    (HOST, "user_annotation", "ProfilerStep#4", 0, 100),
    (HOST, "user_annotation", "input", 0, 30),
    (HOST, "user_annotation", "forward", 30, 50),
    (HOST, "user_annotation", "backward", 50, 95),
    (HOST, "user_annotation", "update", 95, 100),
    (HOST, "cpu_op", "aten::cudnn_convolution", 31, 32, 1),
    (HOST, "cpu_op", "aten::addmm", 33, 34, 2),
    (STREAM, "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 25, 30),
    (STREAM, "kernel", "sm90_xmma_fprop_implicit_gemm_f16f16", 30, 50),
    (STREAM, "kernel", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", 50, 60),
    (STREAM, "kernel", "void at::native::vectorized_elementwise_kernel<4, Relu>", 60, 70),
    (STREAM, "kernel", "nvjet_hsh_128x128", 80, 85, 1),  # the operator says what it is for
    (STREAM, "kernel", "ampere_sgemm_64x64", 85, 90, 2),
    (STREAM, "kernel", "multi_tensor_apply_kernel<Sgd>", 90, 98),
    (NCCL, "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 55, 75),
    (STREAM, "gpu_user_annotation", "forward", 30, 60),
]  # fmt: skip
KNOWN = {
    "convolution": 25, "normalisation": 10, "pointwise": 10, "optimizer": 8, "copy": 5, "other": 5,
    "exchange": 5, "waiting": 32,
}  # fmt: skip


def write(file: Path, steps: list[list[Any]], pack: bool = False) -> Path:
    """Write steps, 100 ms apart, as torch.profiler does: in microseconds, since some start."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 7, "tid": 0}]
    for i, step in enumerate(steps):
        for (pid, tid), cat, name, begin, end, *external in step:
            args = {"External id": external[0]} if external else {}
            begin_us, dur_us = 1000 * (5e6 + 100 * i + begin), 1000 * (end - begin)
            events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid,
                           "ts": begin_us, "dur": dur_us, "args": args})  # fmt: skip
    data = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    file.write_bytes(gzip.compress(data) if pack else data)
    return file


def test_a_trace_without_the_kernels_of_its_gpu_says_so(tmp_path: Path, capsys: Any) -> None:
    file = write(tmp_path / "t", [[event for event in STEP if event[0] == HOST]])
    trace(file)
    assert "has no GPU kernels" not in capsys.readouterr().out
    file.write_text(json.dumps({**json.loads(file.read_text()), "deviceProperties": [{"id": 0}]}))
    trace(file)
    assert "t has no GPU kernels" in capsys.readouterr().out


@pytest.mark.parametrize("pack", [False, True])
def test_a_gpu_s_time_counts_once_and_adds_up(tmp_path: Path, capsys: Any, pack: bool) -> None:
    found = trace(write(tmp_path / "t", [STEP, STEP], pack))
    assert found == pytest.approx(KNOWN) and list(found) == list(KINDS)
    printed = capsys.readouterr().out
    assert "Exchange takes 20.0 ms per step; 15.0 ms of it is hidden" in printed
    assert "waits while the host is in: input 25.0 ms, backward 5 ms, update 2 ms." in printed
    assert trace(tmp_path / "t", show=False) == found and not capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triton_poi_fused_convolution_relu_4", "pointwise"),
        ("triton_poi_fused_add_convolution_relu_7", "pointwise"),
        ("triton_poi_fused_convolution_max_pool2d_with_indices_relu_1", "pointwise"),
        ("triton_per_fused_mean_9", "pointwise"),
        ("triton_red_fused__native_batch_norm_legit_functional_3", "normalisation"),
        ("triton_poi_fused__native_batch_norm_legit_no_training_relu_2", "normalisation"),
        ("triton_tem_fused_convolution_5", "convolution"),  # a template computes it
        ("_forward_kernel", "normalisation"),
        ("convert_layout_kernel", None),
    ],
)
def test_compiled_kernels_have_the_kind_of_what_they_compute(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def test_without_numbers_kernels_and_operators_are_no_pairs(tmp_path: Path) -> None:
    step = [*STEP[:5], (HOST, "cpu_op", "aten::cudnn_convolution", 31, 32),
            (STREAM, "kernel", "nvjet_hsh_128x128", 40, 60)]  # fmt: skip
    found = trace(write(tmp_path / "trace.json", [step] * 3), show=False)
    assert found["other"] == pytest.approx(20) and not found.get("convolution")


def test_kernels_of_a_graph_take_no_operator_s_kind(tmp_path: Path) -> None:
    step = [*STEP[:5], (HOST, "cpu_op", "aten::cudnn_convolution", 31, 32, 1),
            (HOST, "cuda_runtime", "cudaGraphLaunch", 33, 34),
            (STREAM, "kernel", "nvjet_hsh_128x128", 40, 60, 1)]  # fmt: skip
    found = trace(write(tmp_path / "trace.json", [step] * 3), show=False)
    assert found["other"] == pytest.approx(20) and not found.get("convolution")


def test_work_of_the_last_step_counts_to_its_end(tmp_path: Path) -> None:
    late = (STREAM, "kernel", "sm90_xmma_wgrad", 98, 120)
    assert trace(write(tmp_path / "t", [[*STEP, late]])) == pytest.approx(
        KNOWN | {"convolution": 47, "waiting": 30}
    )


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """`drawn(step)` returns the axes of its figure, the alt text and the width in pixels."""
    bundle, found = output.figure_bundle, []

    def keep(fig: Any, alt: str) -> Any:
        data = bundle(fig, alt)
        width = int(data["text/html"].partition('width="')[2].partition('"')[0])
        found.append((fig.axes[0], data["text/plain"], width))
        return data

    def draw(step: list[Any], *more: list[Any]) -> Any:
        trace(write(tmp_path / "t", [step, *(more or [step])]))
        return found[-1]

    monkeypatch.setattr(output, "figure_bundle", keep)
    return draw


def names(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_timeline_shows_threads_and_streams(drawn: Any) -> None:
    axes, alt, _ = drawn(STEP)
    assert names(axes) == ["main thread", "GPU 0, stream 7", "GPU 0, stream 20"]
    assert alt == (
        "Of 20.0 ms of exchange, 5 ms are exposed. One step of 100.0 ms. main thread:"
        " waiting 30.0 ms, optimizer 5 ms, convolution 1 ms, other 1 ms; GPU 0, stream 7:"
        " convolution 25.0 ms, normalisation 10.0 ms, pointwise 10.0 ms, optimizer 8 ms; GPU 0,"
        " stream 20: exchange 20.0 ms."
    )
    assert {"input 30.0 ms", "forward 20.0 ms"} <= {text.get_text() for text in axes.texts}
    bands = [patch.get_x() for patch in axes.patches if patch.get_alpha()]
    assert bands == pytest.approx([70])  # from 70 to 75 ms, nothing but the exchange


def test_the_title_is_of_the_step_that_is_drawn(drawn: Any) -> None:
    """The third step is shorter than the other two, and its exchange is all exposed."""
    exposed = [(HOST, "user_annotation", "ProfilerStep#5", 0, 90), (NCCL, *STEP[14][1:3], 20, 80)]
    _, alt, _ = drawn(STEP, STEP, exposed)
    assert alt.startswith("Of 20.0 ms of exchange, 5 ms are exposed. One step of 100.0 ms.")


def test_the_step_with_the_median_exposed_time_is_drawn(drawn: Any) -> None:
    """The step of median length, 90 ms, has the longest exposed exchange."""
    steps = [
        [(HOST, "user_annotation", "ProfilerStep#5", 0, length), (NCCL, *STEP[14][1:3], 20, end)]
        for length, end in ((90, 80), (80, 30))
    ]
    axes, alt, _ = drawn(STEP, *steps)
    assert alt.startswith("Of 10.0 ms of exchange, 10.0 ms are exposed. One step of 80.0 ms.")
    assert axes.get_xlabel() == "ms, in the step with the median exposed time"


def test_without_much_exchange_the_step_with_the_median_time_is_drawn(drawn: Any) -> None:
    steps = [
        [(HOST, "user_annotation", "ProfilerStep#5", 0, length),
         (STREAM, "kernel", "sm90_xmma_fprop", 0, length - 1), (HOST, "cpu_op", "aten::to", 0, 9),
         (NCCL, *STEP[14][1:3], length - exposed, length)]
        for length, exposed in ((90, 0.3), (60, 0.1), (30, 0.2))
    ]  # fmt: skip
    axes, alt, _ = drawn(*steps)
    assert "takes" in alt and "One step of 60.0 ms." in alt
    assert axes.get_xlabel() == "ms, in the step with the median time"


def test_threads_that_do_the_same_have_different_names(drawn: Any) -> None:
    host = [event for event in STEP if event[0] == HOST]
    more = [((7, 9 + i), "cpu_op", "gloo:all_reduce", 10 * i, 10 * i + 20) for i in range(7)]
    axes, _, width = drawn([*host, *more])
    assert names(axes) == ["main thread", *(f"exchange thread {i}" for i in range(1, 8))]
    assert width < 9.2 * output.DPI


def test_one_thread_is_shown_as_parts_of_the_step(drawn: Any) -> None:
    host = [event for event in STEP if event[0] == HOST]
    axes, alt, width = drawn([*host, (HOST, "cpu_op", "aten::conv2d", 60, 90)])
    parts = ["input 30.0 ms", "forward 20.0 ms", "backward 45.0 ms", "update 5 ms"]
    assert names(axes) == parts and width < 9.2 * output.DPI
    assert alt.startswith("Other takes 34% of a step, convolution 31%. One step of 100.0 ms. input")
    assert "backward 45.0 ms: convolution 30.0 ms, other 15.0 ms;" in alt
    ends: dict[float, float] = {}
    for bars in axes.collections:
        for path in bars.get_paths():
            row = round(path.get_extents().y0 + 0.2)
            ends[row] = max(ends.get(row, 0), path.get_extents().x1)
    assert ends == pytest.approx({0: 30, 1: 20, 2: 45, 3: 5})
    # if steps differ, the bars are their mean, as the table
    axes, alt, _ = drawn([*host, (HOST, "cpu_op", "aten::conv2d", 60, 90)], host)
    assert "backward 45.0 ms: other 30.0 ms, convolution 15.0 ms;" in alt
    assert axes.get_xlabel() == "ms, mean of 2 steps"


def test_a_residue_of_rounding_is_not_read_aloud(drawn: Any) -> None:
    spans = [("user_annotation", "ProfilerStep#5", 0, 100), ("user_annotation", "input", 0, 30),
             ("user_annotation", "forward", 30, 100), ("cpu_op", "aten::to", 0, 30 / 97),
             ("cpu_op", "aten::relu", 30 / 97, 30)]  # fmt: skip
    _, alt, _ = drawn([(HOST, *span) for span in spans])
    assert "input 30.0 ms: pointwise 29.7 ms, copy 0.309 ms; forward" in alt


def test_parts_count_only_inside_the_steps(drawn: Any) -> None:
    host = [event for event in STEP if event[0] == HOST]
    axes, _, _ = drawn(host, [*host, (HOST, "user_annotation", "input", 100, 136)])
    assert names(axes) == ["input 30.0 ms", "forward 20.0 ms", "backward 45.0 ms", "update 5 ms"]


def test_a_prediction_is_not_called_a_step(tmp_path: Path, capsys: Any) -> None:
    trace(write(tmp_path / "t", [STEP]), of="prediction")
    printed = capsys.readouterr().out
    for said in ("One prediction of 100.0 ms", "ms per prediction", "the prediction "):
        assert said in printed
    assert "the step" not in printed


def test_a_step_of_one_part_has_only_the_table(drawn: Any, capsys: Any) -> None:
    host = [event for event in STEP if event[0] == HOST]
    for parts in (["forward", "backward"], ["forward"], []):
        kept = ["ProfilerStep#4", *parts]
        drawn([event for event in host if event[1] == "cpu_op" or event[2] in kept])
        printed = capsys.readouterr().out
        assert ("One step of" in printed) == (len(parts) == 2) and "ms per step" in printed
    brief = ((7, 9), "cpu_op", "autograd::x", 10, 10.01)  # a lane too short to be drawn
    drawn(
        [event for event in host if event[1] == "cpu_op" or event[2] == "ProfilerStep#4"] + [brief]
    )
    assert "One step of" not in capsys.readouterr().out


def test_operators_count_without_those_that_they_call(tmp_path: Path) -> None:
    step = [
        (HOST, "user_annotation", "ProfilerStep#1", 0, 100),
        (HOST, "user_annotation", "input", 0, 10),
        (HOST, "user_annotation", "enumerate(DataLoader)#_SingleProcess", 0, 6),
        (HOST, "cpu_op", "aten::div", 1, 2),  # in loading
        (HOST, "cpu_op", "aten::copy_", 7, 9),
        (HOST, "cpu_op", "aten::conv2d", 20, 60),
        (HOST, "cpu_op", "aten::empty", 30, 31),  # of the convolution
        (HOST, "cpu_op", "aten::clone", 31, 35),
        (HOST, "cpu_op", "aten::max_pool2d", 60, 70),
        (HOST, "user_annotation", "Optimizer.step#SGD.step", 80, 90),
        (HOST, "cpu_op", "aten::add_", 81, 82),  # of the optimizer
        ((7, 8), "user_annotation", "gloo:all_reduce", 65, 78),
    ]
    assert trace(write(tmp_path / "t", [step])) == pytest.approx(
        {"convolution": 36, "normalisation": 0, "pointwise": 0, "optimizer": 10, "copy": 6,
         "other": 32, "exchange": 8, "waiting": 8}
    )  # fmt: skip


def test_a_step_that_begins_in_an_optimizer_s_hook_is_not_the_optimizer_s(tmp_path: Path) -> None:
    step = [
        (HOST, "user_annotation", "Optimizer.step#SGD.step", -5, 2),  # of the step before
        (HOST, "user_annotation", "ProfilerStep#1", 0, 100),
        (HOST, "user_annotation", "input", 1, 60),
        (HOST, "cpu_op", "aten::conv2d", 70, 90),
    ]
    found = trace(write(tmp_path / "t", [step]), show=False)
    assert {kind: ms for kind, ms in found.items() if ms} == pytest.approx(
        {"optimizer": 1, "waiting": 59, "convolution": 20, "other": 20}
    )


def test_an_exchange_inside_the_update_is_exchange(tmp_path: Path) -> None:
    step = [
        (HOST, "user_annotation", "ProfilerStep#1", 0, 100),
        (HOST, "user_annotation", "update", 50, 100),
        (HOST, "user_annotation", "exchange", 50, 80),
        (HOST, "cpu_op", "aten::copy_", 60, 70),
        (HOST, "cpu_op", "aten::add_", 85, 95),
    ]
    found = trace(write(tmp_path / "t", [step]), show=False)
    assert {kind: ms for kind, ms in found.items() if ms} == pytest.approx(
        {"exchange": 30, "optimizer": 20, "other": 50}
    )


NOT_TRACES = {
    "missing": None,
    "text": b"step 1: 100 ms",
    "cut": b'{"traceEvents": [{"ph": "X"',
    "damaged": b"\x1f\x8b\x08\0broken",
    "a report": b'{"metrics": {}}',
    "a number": b"7",
    "no times": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0}]}',
    "no events": b'{"traceEvents": []}',
    "JAX's": b'{"traceEvents": [{"ph": "X", "name": "train", "pid": 1, "tid": 1, "ts": 0.5}, {}]}',
}


@pytest.mark.parametrize("name", NOT_TRACES)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, name: str) -> None:
    from rn50lib.errors import UserError

    file = tmp_path / "t.json"
    if (content := NOT_TRACES[name]) is not None:
        file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read(file)
    no_steps = name in ("no events", "JAX's")
    reason = "has no steps of torch.profiler" if no_steps else "is not a trace of torch.profiler"
    assert str(caught.value).startswith(f"{file} {reason}") and "--trace" in str(caught.value)


def check_trace(file: Path, exchange: bool = False, compiled: bool = False) -> None:
    """Check the kinds of a real trace of a CPU; compiled kernels are not recorded there."""
    found, steps = trace(file), read(file)
    begin, end = steps.window
    assert len(steps.steps) == 3
    assert sum(found.values()) == pytest.approx((end - begin) / 3)
    names = {name for _, _, name in steps.host[0].ranges}
    assert names >= {"input", "forward", "backward", "update"}
    empty = {kind for kind, ms in found.items() if not ms}
    maybe = {"copy", "normalisation"} if compiled else {"copy"}
    assert empty <= (maybe if exchange else maybe | {"exchange"})
    assert bool(found["exchange"]) == exchange


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_kinds_agree_with_the_profiler_s_own_sums(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerAction, profile

    from rn50lib.resnet import tiny
    from rn50lib.torch.model import ResNet

    model, images = ResNet(tiny(6)), torch.randn(4, 3, 64, 64)
    with profile(schedule=lambda step: ProfilerAction.RECORD) as profiler:
        for _ in range(3):
            model(images).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    found = trace(tmp_path / "t.json")
    for kind, word in (("convolution", "conv"), ("normalisation", "norm")):
        own = [e for e in profiler.events() if belongs(e, word)]
        ms = sum(e.self_cpu_time_total for e in own) / 1000
        assert found[kind] == pytest.approx(ms, rel=0.05)


def belongs(event: Any, word: str) -> bool:
    """Return True for an operator, and for what it calls that has no kind of its own."""
    while kind_of(event.name) is None and event.cpu_parent is not None:
        event = event.cpu_parent
    return word in event.name.lower()

"""Cells in which a learner writes code: the check below each tells right from wrong answers.

The cells are those of the masters, in a namespace with what the cells before them define. The
mistakes that a module's check knows are in `tests/workshop/lessons`; here are one right answer and
one wrong one.
"""

from __future__ import annotations

import io
import json
import os
import re
import struct
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_prep import im2rec
from tests.conftest import ROOT
from tests.support import Photos
from workshop import expected, masters
from workshop.lessons import nb01
from workshop.lessons.choice import choose_by_cases

STUB = "return None  # your code"


def execute(
    number: str,
    start: str,
    answers: str | list[str],
    names: dict[str, Any],
    folder: Path,
) -> None:
    """Run the cell with `start`, each of its stubs replaced by an answer, and the one after it."""
    (master,) = (ROOT / "notebooks" / "source").glob(f"{number}_*.py")
    code = [cell["source"] for cell in masters.read_master(master) if cell["cell_type"] == "code"]
    (first,) = (i for i, source in enumerate(code) if start in source)
    for answer in [answers] if isinstance(answers, str) else answers:
        assert STUB in code[first]
        code[first] = code[first].replace(STUB, answer or "return None", 1)
    for i, source in enumerate(code[first : first + 2]):
        file = folder / f"cell{i}.py"  # for `inspect`
        file.write_text(source)
        exec(compile(source, str(file), "exec"), names)


READ = "length, label = struct.unpack_from('<4xI4xf', r := self.read(i)); "
JPEG = "Image.open(io.BytesIO(r[32 : 8 + length]))"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "`__getitem__` is not written yet"),
        (f"{READ}return {JPEG}, int(label)", "✓ 12 of 12"),
        (f"{READ}return {JPEG}.convert('RGB'), int(label)", "✓ 12 of 12"),
        (f"{READ}return Image.open(io.BytesIO(r[24 : 8 + length])), int(label)", "bytes 32 to"),
        (f"{READ}return r[32 : 8 + length], int(label)", "of type bytes"),
        (f"{READ}return int(label), {JPEG}", "of type int"),
        (f"{READ}return {JPEG}", "Return two values"),
        (f"{READ}return {JPEG}, label", "int() converts it"),
        (f"{READ}return {JPEG}, struct.unpack_from('<I', r, 8)[0]", "after the flag"),
        (f"{READ.replace('(i)', '(0)')}return {JPEG}, int(label)", "self.read(i)"),
    ],
)
def test_reader_of_records_in_01(
    answer: str, said: str, photos: Photos, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for flags in (["--list", "--recursive"], ["--pass-through"]):
        im2rec.main([*flags, "records/val", str(photos.root / "val")])
    capsys.readouterr()
    names = {"Path": Path, "os": os, "np": np, "struct": struct, "Image": Image, "io": io,
             "nb01": nb01, "data": photos.root}  # fmt: skip
    execute("01", "class Records", answer, names, tmp_path)
    assert said in capsys.readouterr().out


POOL = """begin = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        list(pool.map(open_file, files))
    return len(files) / (time.perf_counter() - begin)"""
WITHOUT_WAITING = """pool = ThreadPoolExecutor(readers)
    begin = time.perf_counter()
    pool.map(open_file, files)
    seconds = time.perf_counter() - begin
    pool.shutdown()
    return len(files) / seconds"""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "○ `reading_rate` is not written yet"),
        (POOL, "✓ `reading_rate` opens 24 files in 4 threads"),
        (POOL.replace("(readers)", "()"), "threads open files, not 4"),
        (POOL.replace("list(pool.map(open_file, files))", "[open_file(x) for x in files]"),
         "1 threads open files"),
        (POOL.replace("files))", "files[1:]))"), "23 of 24 files were opened"),
        (POOL.replace("len(files) / ", ""), "this call opened"),
        (POOL.replace("return ", ""), "the result is None"),
        (WITHOUT_WAITING, "seconds until all are read"),
    ],
)  # fmt: skip
def test_reading_rate_in_01(
    answer: str, said: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 12)  # a pool without a size takes 4 more
    monkeypatch.setattr("os.process_cpu_count", lambda: 12, raising=False)
    files = [tmp_path / f"{i}.jpg" for i in range(20)]
    for file in files:
        file.write_bytes(b"jpeg")
    names = {"nb01": nb01, "np": np, "time": time, "Path": Path, "val": files,
             "training": 0.01, "needed": 1e9, "fast": 1e9}  # fmt: skip
    execute("01", "def reading_rate", answer, names, tmp_path)
    printed = capsys.readouterr().out
    assert said in printed
    lines = [line for line in printed.splitlines() if "reader(s)" in line]
    verdicts = "files/s; this machine: no need, 8 V100s: pack, 8 H100s (MLPerf): pack"
    assert len(lines) == 4 and all(line.endswith(verdicts) for line in lines)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "○ `training_hours` is not written yet"),
        ("return epochs * images / (60 * 60 * rate)", "✓ `training_hours` is right"),
        ("return images * epochs / rate", "These are seconds"),
        ("return images / rate / 3600", "The epochs are missing"),
        ("return images * epochs * rate / 3600", "A faster device would take longer"),
        ("return 1281167 * 90 / 400.2 / 3600", "training_hours(2400, 5, 500) gives"),
    ],
)
def test_hours_in_00(answer: str, said: str, tmp_path: Path, capsys) -> None:
    report = {"metrics": {"train.total_ips": [400.0, 600.0]}, "env": {"seconds": {"step": 10}}}
    results = expected.load(ROOT / "notebooks" / "expected")
    names = {"session": SimpleNamespace(results=results), "report": report, "count": 2400}
    execute("00", "def training_hours", answer, names, tmp_path)
    printed = capsys.readouterr().out
    assert said in printed  # and the finished one is used if it is wrong:
    assert "400.2 images/s take 80.0 h and 46 MB/s of JPEGs; 10 of 15.7 TFLOP/s" in printed
    assert "(published peak), or 28%" in printed and "(measured peak), or 17%" in printed
    assert "your last run: 500 images/s take 10 s; measured, with first steps: 10 s" in printed


CONVOLUTION = "n = images * 64 * 56 * 56; return 2 * n * 64 * 9, size * (2 * n + 36864)"
NORM = "n = images * 64 * 56 * 56; return 5 * n, size * 3 * n"


@pytest.mark.parametrize(
    ("convolution", "norm", "said"),
    [
        ("", "", "○ `convolution` is not written yet"),
        (CONVOLUTION, "", "✓ `convolution`"),
        ("", NORM, "✓ `batch_norm`"),
        (CONVOLUTION, NORM, "✓ `batch_norm`"),
        (CONVOLUTION.replace("return 2 *", "return"), NORM, "an addition are 2 operations"),
        (CONVOLUTION.replace("* 64 * 9", "* 64"), NORM, "3 × 3 pixels"),
        (CONVOLUTION.replace("* 64 * 9", "* 9"), NORM, "all 64 input channels"),
        (CONVOLUTION.replace(" + 36864", ""), NORM, "The weights are read, too"),
        (CONVOLUTION.replace("+ 36864", "+ images * 36864"), NORM, "read once per batch"),
        (CONVOLUTION.replace("2 * n + ", "n + "), NORM, "Reading and writing both count"),
        (CONVOLUTION, NORM.replace("3 * n", "2 * n"), "then it is read again"),
        (CONVOLUTION, NORM.replace("size *", "2 *"), "batch_norm(3, 4) gives"),
        (CONVOLUTION, "return 3 * size * images * 200704", "not 2 values"),
        (CONVOLUTION.replace("images *", ""), NORM, "convolution(3, 4) gives"),
    ],
)
def test_count_in_06(convolution: str, norm: str, said: str, tmp_path: Path, capsys) -> None:
    names = {"np": np, "choose_by_cases": choose_by_cases}
    execute("06", "def convolution", [convolution, norm], names, tmp_path)
    assert said in capsys.readouterr().out
    # a wrong answer is not used further
    assert names["convolution"](96, 2) == (2 * 96 * 200704 * 576, 2 * (2 * 96 * 200704 + 36864))


RULE = (
    "return (scale / 2, 0) if not finite else (scale * 2, 0) if good + 1 == wait else"
    " (scale, good + 1)"
)
SWAPPED = (
    "return (0, scale / 2) if not finite else (0, scale * 2) if good + 1 == wait else"
    " (good + 1, scale)"
)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "A finished version is used"),
        (RULE, "right in all 5 test cases"),
        ("return (scale / 2, good) if not finite else (scale, good + 1)", "count does not restart"),
        (RULE.replace("* 2, 0", "* 2, good + 1"), "count does not restart"),
        (RULE.replace("good + 1 ==", "good =="), "does not double after `wait` good steps"),
        (RULE.replace("good + 1 ==", "good >"), "does not double after `wait` good steps"),
        (RULE.replace("/ 2", "/ 4"), "gives (256, 0). It should be (512, 0)"),
        (SWAPPED, "The count comes first"),
    ],
)
def test_loss_scale_in_06(answer: str, said: str, tmp_path: Path, capsys) -> None:
    execute("06", "def next_scale", answer, {}, tmp_path)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "○ `script_gain` is not written yet"),
        ("return 1 / (1 - share + share / faster)", "✓ This is Amdahl's law"),
        ("return 1 - share + share / faster", "The speed is 1 / time"),
        ("return 1 / (share / faster)", "The rest takes time"),
        ("return 1 - share + share * faster", "Add up times"),
        ("return share * faster", "The rest does not become faster"),
        ("return 1 / (share + (1 - share) / faster)", "Share and rest are exchanged"),
        ("return 1 / (1 - share + share * faster)", "Divide it by `faster`"),
        ("return 2.5", "script_gain(0.5, 0.5) gives 2.5"),
        ("return 100 / (1 - share + share / faster)", "This is a percentage"),
        ("return 1 / (1 - share + share / faster) - 1", "This is the gain only"),
        ("return 100 / (1 - share + share / faster) - 100", "This is the gain as a percentage"),
    ],
)
def test_gain_of_a_script_in_06(answer: str, said: str, tmp_path: Path, capsys) -> None:
    names: dict[str, Any] = {"choose_by_cases": choose_by_cases}
    execute("06", "def script_gain", answer, names, tmp_path)
    assert said in capsys.readouterr().out
    assert names["script_gain"](0.5, 2) == pytest.approx(4 / 3)  # a wrong one is not used further


REPAIRED = """ms = []
    with torch.inference_mode():
        for _ in range(warm_up + repeats):
            begin = time.perf_counter()
            net(batch)
            wait()
            ms.append(1000 * (time.perf_counter() - begin))
    return ms[warm_up:]"""


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "not written yet"),
        (REPAIRED, "✓ `answer_times` is right"),
        (REPAIRED.replace("torch.inference_mode()", "torch.enable_grad()"), "Autograd is on"),
    ],
)
def test_clock_in_07(answer: str, said: str, tmp_path: Path, capsys) -> None:
    import torch

    names: dict[str, Any] = {"torch": torch, "time": time, "device": torch.device("cpu")}
    execute("07", "def answer_times", answer, names, tmp_path)
    assert said in capsys.readouterr().out
    assert len(names["answer_times"](abs, torch.zeros(1), 3, 2, names["wait"])) == 3


FACTOR = "s = norm.weight / (norm.running_var + norm.eps).sqrt()"
FOLDED = "s.view(-1, 1, 1, 1) * conv.weight, norm.bias - s * norm.running_mean"


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "not written yet"),
        (f"{FACTOR}; return {FOLDED}", "✓ `fold` is right"),
        (f"{FACTOR.replace(' + norm.eps', '')}; return {FOLDED}", "✗ `fold`: eps is missing"),
    ],
)
def test_fold_in_07(answer: str, said: str, tmp_path: Path, capsys) -> None:
    from workshop.lessons import nb07_checks

    execute("07", "def fold", answer, {"nb07_checks": nb07_checks}, tmp_path)
    assert said in capsys.readouterr().out


CAPTURE = """static = example.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            net(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = net(static)
    def replay(batch, net=net):
        static.copy_(batch)
        graph.replay()
        return output
    return replay"""


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "not written yet"),
        (CAPTURE, "✓ `capture` is right"),
        (
            CAPTURE.replace("static.copy_(batch)", "static"),
            "✗ `capture`: A new batch gets the answer of the captured",
        ),
    ],
)
def test_capture_in_07(answer: str, said: str, tmp_path: Path, capsys) -> None:
    import torch

    from workshop.lessons import nb07_checks

    names = {
        "torch": torch, "np": np, "nb07_checks": nb07_checks, "device": torch.device("cpu"),
        "operators": 3, "starts": np.full(5, 0.1), "alone": np.ones(5), "kernels": 0,
        "session": SimpleNamespace(results=expected.load(ROOT / "notebooks" / "expected")),
    }  # fmt: skip
    execute("07", "def capture", answer, names, tmp_path)
    out = capsys.readouterr().out
    assert said in out and "starting takes 30% of a prediction" in out
    assert "7.2 times eager's 204 img/s: batch 1" in out


LATENCY = "return service + service * load / (2 * (1 - load))"


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("answer", "said"),
    [("", "not written yet"), (LATENCY, "✓"), (LATENCY[:7] + LATENCY[17:], "only the wait")],
)
def test_latency_in_07(answer: str, said: str, tmp_path: Path, capsys) -> None:
    import torch

    from workshop.lessons import nb07_checks

    names = {"torch": torch, "nb07_checks": nb07_checks}
    with pytest.raises(NameError):  # the load test needs the notebook's networks
        execute("07", "def mean_latency", answer, names, tmp_path)
    assert said in capsys.readouterr().out


CLOCK = """for _ in range(warm_up):
        step()
    seconds = []
    for _ in range(steps):
        wait()
        begin = time.perf_counter()
        step()
        wait()
        seconds.append(time.perf_counter() - begin)
    return seconds"""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "not written yet"),
        (CLOCK, "✓"),
        (CLOCK.replace("return seconds", "return min(seconds)"), "the best of n"),
    ],
)
def test_clock_in_08(answer: str, said: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    execute("08", "def measure", answer, {}, tmp_path)
    assert said in capsys.readouterr().out.splitlines()[0]
    text = (tmp_path / "clock.py").read_text()
    clock: dict[str, Any] = {}
    exec(text, clock)  # as bench.py imports it: the learner's, or the finished one
    assert len(clock["measure"](lambda: None, 3, 1, lambda: None)) == 3
    assert ("for _ in range(steps):" in text) and ("-> list" in text) == (said != "✓")


def test_eight_gpus_of_03_are_predicted_from_lists_as_in_the_check(capsys) -> None:
    def after_the_pass(full: Any, takes: Any, alone: float, senders: int) -> float:
        return (full + takes)[-1] if full and takes else 0.0  # fails with arrays

    results = defaultdict(lambda: SimpleNamespace(value=1000.0))
    names = {"np": np, "full": [0.1, 0.2], "size": [1e8, 2e8]}
    names |= {"session": SimpleNamespace(results=results), "after_the_pass": after_the_pass}
    (master,) = (ROOT / "notebooks" / "source").glob("03_*.py")
    (cell,) = (c["source"] for c in masters.read_master(master) if "H100's NVLink" in c["source"])
    exec(cell, names)
    assert re.search(r"PCI Express 3.0 +43.9 +29.2 ", capsys.readouterr().out)


FIT = """a = np.stack([1 / seconds, size / seconds], axis=1)
    alpha, per_byte = np.linalg.lstsq(a, np.ones(len(size)), rcond=None)[0]
    return alpha, 1 / per_byte"""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "not written yet"),
        (FIT, "✓"),
        (FIT.replace("1 / per_byte", "per_byte"), "seconds per byte"),
    ],
)  # fmt: skip
def test_fit_in_08(answer: str, said: str, tmp_path: Path, monkeypatch, capsys) -> None:
    from workshop.lessons import nb08_checks

    monkeypatch.chdir(tmp_path)
    found = {"all_reduce": [[1000.0, 0.001 + 1e-6], [1e9, 1.001]], "bytes": 10**8}
    (tmp_path / "together.json").write_text(json.dumps(found))
    names = {"np": np, "json": json, "Path": Path, "nb08_checks": nb08_checks, "gpus": 0}
    execute("08", "def fit", answer, names, tmp_path)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert said in first and "α 1000 µs, β 1.00 GB/s: 100 MB (12 classes) take 101 ms" in last


CAUSES = "return together - alone, barrier - together, exchange - barrier"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "`causes` is not written yet"),
        (CAUSES, "✓ `causes`"),
        (CAUSES.replace("exchange - barrier", "exchange - together"), "includes the waiting"),
    ],
)
def test_causes_in_08(answer: str, said: str, tmp_path: Path, monkeypatch, capsys) -> None:
    from workshop.lessons import nb08_checks

    monkeypatch.chdir(tmp_path)
    found = {"all_reduce": [[1000.0, 0.001 + 1e-6], [1e9, 1.001]], "bytes": 10**8}
    (tmp_path / "together.json").write_text(json.dumps(found))
    names = {"np": np, "json": json, "Path": Path, "nb08_checks": nb08_checks, "gpus": 0}
    execute("08", "def fit", [FIT, answer], names, tmp_path)
    assert said in capsys.readouterr().out

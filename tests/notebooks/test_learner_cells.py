"""Cells in which a learner writes code: the check below each tells right from wrong answers.

The cells are those of the masters, in a namespace with what the cells before them define. The
mistakes that a module's check knows are in `tests/workshop/lessons`; here are one right answer and
one wrong one.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
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
from workshop.lessons import nb00, nb01
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
        (f"{READ}return Image.open(io.BytesIO(r[32:length])), int(label)", "bytes 32 to"),
        (f"{READ}return r[32 : 8 + length], int(label)", "of type bytes"),
        (f"{READ}return int(label), {JPEG}", "of type int"),
        (f"{READ}return {JPEG}", "Return two values"),
        (f"{READ}return {JPEG}, label", "of type float"),
        (f"{READ}return Image.open(first), int(label)", "Open the bytes of self.read(i)"),
        (f"{READ}return {JPEG}, struct.unpack_from('<f', r, 12)", "take its first"),
        (f"{READ}return {JPEG}, struct.unpack_from('<I', r, 12)[0]", "these are a float32's bits"),
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
    _, _, first = Path("records/val.lst").read_text().splitlines()[0].split("\t")
    names["first"] = photos.root / "val" / first
    execute("01", "class Records", answer, names, tmp_path)
    assert said in capsys.readouterr().out


HEADER = "struct.pack('<IfQQ', 0, label, number, 0)"
WORD = "struct.pack('<II', 0xCED7230A, 24 + len(jpeg))"
ZEROS = "bytes(-len(jpeg) % 4)"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "equal to im2rec's file: True"),
        (f"return {WORD} + {HEADER} + jpeg + {ZEROS}", "equal to im2rec's file: True"),
        (
            f"return {WORD.replace('24 + ', '')} + {HEADER} + jpeg + {ZEROS}",
            "✗ .*JPEG alone",
        ),
        (f"return {WORD} + {HEADER.replace('<IfQQ', '<IIQQ')} + jpeg + {ZEROS}", "✗ .*float32"),
        (f"return {WORD} + {HEADER} + jpeg", "✗ .*zeros at the end are missing"),
        (f"return {WORD} + {HEADER} + jpeg + bytes(4 - len(jpeg) % 4)", "✗ .*four zeros"),
        (f"return {WORD} + {HEADER} + jpeg + bytes(len(jpeg) % 4)", "✗ .*n % 4 zeros"),
        (f"return {WORD} + {HEADER.replace('label', '2')} + jpeg + {ZEROS}", "✗ .*It should be"),
        (
            f"return {WORD} + {HEADER.replace('number', '0')} + jpeg + {ZEROS}",
            "✗ .*number is missing",
        ),
        (f"return {WORD} + {HEADER.replace('0, l', '1, l')} + jpeg + {ZEROS}", "✗ .*flag is 1"),
        (
            f"return {WORD.replace('<', '>')} + {HEADER.replace('<', '>')} + jpeg + {ZEROS}",
            "✗ .*`<`",
        ),
        (f"return {WORD.replace('24', '32')} + {HEADER} + jpeg + {ZEROS}", "✗ .*and itself"),
        (
            f"return {WORD} + {HEADER} + {ZEROS} + jpeg",
            r"✗ .* ff d8 00 ff d9\). It .* ff d8 00 ff d9 00 00 00\)",
        ),
        (f"return {WORD}.hex()", "✗ .*Return bytes"),
    ],
)
def test_writer_of_records_in_01(
    answer: str, said: str, photos: Photos, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for flags in (["--list", "--recursive"], ["--pass-through"]):
        im2rec.main([*flags, "records/val", str(photos.root / "val")])
    capsys.readouterr()
    answer = answer.replace("label,", "int(label),") if "IIQQ" in answer else answer
    names = {"Path": Path, "np": np, "struct": struct, "nb01": nb01, "data": photos.root, "val": [],
             "packed": Path("records/val.rec").read_bytes(), "ARCHIVE": 1}  # fmt: skip
    execute("01", "def pack", answer, names, tmp_path)
    printed = capsys.readouterr().out
    assert re.search(said, printed) and "equal to im2rec's file: True" in printed


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
        (POOL.replace("(readers)", "()"), "threads open files at once, not 4"),
        (POOL.replace("list(pool.map(open_file, files))", "[open_file(x) for x in files]"),
         "Only one file is open at a time"),
        (POOL.replace("files))", "files[1:]))"), "23 of 24 files were opened"),
        (POOL.replace("len(files) / ", ""), "This is a time, not a rate"),
        (POOL.replace("len(files) / ", "1 / "), "this call opened"),
        (POOL.replace("return ", ""), "your function returns nothing"),
        (WITHOUT_WAITING, "is more than 4 threads can reach"),
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
        ("return images * epochs / rate / 60", "These are minutes"),
        ("return images * epochs / rate / 24 / 3600", "These are days"),
        ("return images / rate / 3600", "The epochs are missing"),
        ("return images * epochs * rate / 3600", "A faster device would take longer"),
        ("return 1281167 * 90 / 400.2 / 3600", "training_hours(2400, 5, 500) gives"),
    ],
)
def test_hours_in_00(
    answer: str, said: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {"axes": {"network": {"value": "tiny"}}, "seconds": {"data": 1, "step": 9}}
    run = {"metrics": {"train.total_ips": [400.0, 600.0]}, "env": used}
    (tmp_path / "run-1.json").write_text(json.dumps(run))
    monkeypatch.chdir(tmp_path)
    results = expected.load(ROOT / "notebooks" / "expected")
    names = {"session": SimpleNamespace(results=results), "Path": Path, "count": 2400}
    execute("00", "def training_hours", answer, names, tmp_path)
    printed = capsys.readouterr().out
    assert said in printed  # and the finished one is used if it is wrong:
    assert "V100, FP32: 80.0 h at 400.2 images/s and 46 MB/s of JPEGs; published: 82.0 h" in printed
    assert "(published peak), or 28%" in printed and "(measured peak), or 17%" in printed
    assert (
        "your run (tiny, 64 px): 10 s at 500 images/s; measured, with first steps: 10 s" in printed
    )


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (None, "Nothing entered yet"),
        (63_072_000 * 90 / 1442.6 / 86_400, "It takes\n45.5 days on a V100, 6.4 on eight"),
        (63_072_000 * 90 / 1442.6 / 3600, "these are hours"),
        (63_072_000 / 1442.6 / 86_400, "the 90 epochs are missing"),
        (172_800 * 90 / 1442.6 / 86_400, "a single day's images"),
        (45.5 / 8, "times the right answer: a car has 8 cameras"),
        (45.5 * 12, "a camera records 2 hours a day"),
        (45.5 * 1000, "only one image in 1,000"),
        (60.0, "is 1.317 times the right answer\n"),
    ],
)
def test_fleet_in_00(days: float | None, said: str, capsys) -> None:
    nb00.check_fleet(days)
    assert said in capsys.readouterr().out


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "○ `most_gain` is not written yet"),
        ("rest = sum(v for k, v in ms.items() if k != kind); return sum(ms.values()) / rest",
         "✓ This is Amdahl's law"),
        ("return sum(ms.values()) / ms[kind]", "the whole step over the part"),
        ("return 1 - ms[kind] / sum(ms.values())", "the share that remains"),
        ("return 1 + ms[kind] / sum(ms.values())", "adds the share to 1"),
        ("return ms[kind] / sum(ms.values())", "the share of the kind"),
        ("return sum(ms.values()) - ms[kind]", "the milliseconds that remain"),
        ("return 100 / (100 - 60)", "gives 2.5. It should be 1.11"),
    ],
)  # fmt: skip
def test_most_gain_in_02(answer: str, said: str, tmp_path: Path, capsys) -> None:
    from workshop.lessons import nb02_checks

    ms = {"convolution": 75.0, "normalisation": 10.0, "pointwise": 10.0, "waiting": 5.0}
    names = {"nb02_checks": nb02_checks, "by_kind": ms, "kinds": {"convolution": 0.25}}
    execute("02", "def most_gain", answer, names, tmp_path)
    printed = capsys.readouterr().out
    assert said in printed
    assert "without convolution: at most 4.00 ×" in printed
    assert "the H100 without convolution: at most 1.33 ×" in printed


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


def body(function: Any) -> str:
    """Return what a finished function does, as a learner writes it."""
    return inspect.getsource(function).partition('"""\n')[2].strip()


@pytest.mark.needs("torch")
@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(
    ("number", "functions", "then"),
    [
        ("07", ["fold"], ""),
        ("07", ["capture"], "starting takes 30% of a prediction"),
        ("07", ["mean_latency"], ""),
        ("08", ["measure"], ""),
        ("08", ["fit", "causes"], "β 1.00 GB/s: 100 MB (12 classes) take 101 ms"),
    ],
)
def test_functions_of_07_and_08(
    number: str, functions: list[str], then: str, written: bool, tmp_path, monkeypatch, capsys
) -> None:
    import torch

    checks = importlib.import_module(f"workshop.lessons.nb{number}_checks")
    monkeypatch.chdir(tmp_path)
    found = {"all_reduce": [[1000.0, 0.001 + 1e-6], [1e9, 1.001]], "bytes": 10**8}
    Path("together.json").write_text(json.dumps(found))
    names = {
        f"nb{number}_checks": checks, "np": np, "torch": torch, "Tensor": torch.Tensor, "Any": Any,
        "json": json, "Path": Path, "device": torch.device("cpu"), "kernels": 0, "gpus": 0,
        "started": 0.3, "alone": 1.0,
        "session": SimpleNamespace(results=expected.load(ROOT / "notebooks" / "expected")),
    }  # fmt: skip
    answers = [body(getattr(checks, name)) if written else "" for name in functions]
    with contextlib.suppress(NameError):  # the load test needs the notebook's networks
        execute(number, f"def {functions[0]}(", answers, names, tmp_path)
    out = capsys.readouterr().out
    for name in functions:
        assert (f"✓ `{name}` is right" if written else f"○ `{name}` is not written yet") in out
    assert then in out

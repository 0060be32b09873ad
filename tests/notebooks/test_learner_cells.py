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
import shutil
import struct
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import workshop
from data_prep import im2rec, verify
from tests.conftest import ROOT
from tests.support import Photos
from tests.workshop.lessons.test_nb08_checks import simulate
from workshop import expected, masters
from workshop.lessons import nb00, nb01, nb06

STUB = "return None  # your code"


def execute(
    number: str,
    start: str,
    answers: str | list[str],
    names: dict[str, Any],
    folder: Path,
    cells: int = 2,
) -> None:
    """Run the cell with `start`, each of its stubs replaced by an answer, and those after it."""
    (master,) = (ROOT / "notebooks" / "source").glob(f"{number}_*.py")
    code = [cell["source"] for cell in masters.read_master(master) if cell["cell_type"] == "code"]
    (first,) = (i for i, source in enumerate(code) if start in source)
    for answer in [answers] if isinstance(answers, str) else answers:
        assert STUB in code[first]
        code[first] = code[first].replace(STUB, answer or "return None", 1)
    for i, source in enumerate(code[first : first + cells]):
        file = folder / f"cell{i}.py"  # for `inspect`
        file.write_text(source)
        exec(compile(source, str(file), "exec"), names)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "○ `labels` is not written yet"),
        ("return dict(zip(sorted(folders), range(len(folders))))", "✓ `labels` is right"),
        ("return {name: sorted(folders).index(name) for name in folders}", "✓ `labels` is right"),
        ("return {x: i for x, i in zip(np.unique(folders), np.arange(99))}", "✓ `labels` is right"),
        ("folders.sort(); return {x: i for i, x in enumerate(folders)}", "sorted(x)"),
        ("return {i: x for i, x in enumerate(sorted(folders))}", "the value for ant is missing"),
        ("return sorted(folders)", "of type list, not a dictionary"),
        ("return {x: i for i, x in enumerate(sorted(per_class))}", "for ant is missing"),
        ("return {x: i for i, x in enumerate(sorted(folders, key=len))}", "It should be"),
    ],
)
def test_labels_in_01(answer: str, said: str, tmp_path: Path, capsys) -> None:
    names = {"nb01": nb01, "np": np, "per_class": {"crosswalk": 9, "bicycle": 9, "deer": 9},
             "val": [Path("bicycle/1"), Path("crosswalk/1"), Path("deer/1")]}  # fmt: skip
    execute("01", "def labels", answer, names, tmp_path)
    printed = capsys.readouterr().out
    assert said in printed and "score 100.0% top-1; you expected ?%" in printed


@pytest.mark.parametrize("mistake", nb01.LABEL_MISTAKES, ids=lambda mistake: mistake[1])
def test_wrong_labels_in_01_are_diagnosed(mistake: Any, capsys) -> None:
    wrong, diagnosis, remedy = mistake
    assert nb01.check("labels", wrong) is nb01.labels
    assert f"✗ `labels`: {diagnosis} {remedy}" in capsys.readouterr().out


READ = "length, label = struct.unpack_from('<4xI4xf', r := self.read(i)); "
JPEG = "Image.open(io.BytesIO(r[32 : 8 + length]))"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "`__getitem__` is not written yet"),
        (f"{READ}return {JPEG}, int(label)", "✓ 12 of 12"),
        (f"{READ}return {JPEG}.convert('RGB'), int(label)", "✓ 12 of 12"),
        (f"{READ}return {JPEG}, np.int64(label)", "✓ 12 of 12"),
        (f"{READ}return Image.open(io.BytesIO(r[32:])), int(label)", "ends at byte 8 + length"),
        (f"{READ}return Image.open(io.BytesIO(r[32 : 32 + length])), int(label)", "8 + length"),
        (f"{READ}return Image.open(io.BytesIO(r[32 : length])), int(label)", "8 + length"),
        (f"{READ}return Image.open(r[32 : 8 + length]), int(label)", "Wrap the bytes in io."),
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


@pytest.mark.parametrize("mistake", nb01.CHANGED_MISTAKES, ids=lambda mistake: mistake[1])
def test_wrong_changed_of_01_gets_its_diagnosis(mistake: Any, capsys) -> None:
    assert nb01.check("changed", mistake[0]) is nb01.changed
    assert mistake[1] in capsys.readouterr().out


CHANGED = """return [
        i for i, right in enumerate(sums.values())
        if google_crc32c.value(records.read(i)[8:][:int.from_bytes(records.read(i)[4:8], "little")])
        != right
    ]"""


@pytest.mark.parametrize("answer", ["", CHANGED])
def test_changed_of_01_finds_the_record_that_verify_finds(
    answer: str, photos: Photos, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for flags in (["--list", "--recursive"], ["--pass-through"]):
        im2rec.main([*flags, "records/val", str(photos.root / "val")])
    names = {"Path": Path, "os": os, "np": np, "struct": struct, "Image": Image, "io": io,
             "shutil": shutil, "nb01": nb01, "data": photos.root}  # fmt: skip
    execute("01", "class Records", "", names, tmp_path)
    execute("01", "def changed", answer, names, tmp_path)
    printed = capsys.readouterr().out
    assert ("✓" if answer else "○") + " `changed` is" in printed
    ((found, offset),) = re.findall(r"damaged: record (\d+) of \d+, at byte ([\d,]+)", printed)
    with contextlib.suppress(SystemExit):
        verify.main(["damaged/val.rec"])
    assert offset == f"{names['records'].offsets[int(found)]:,}"
    assert f"offset {offset}: " in capsys.readouterr().out


MAP = "list(pool.map(open_file, files))"
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
        (POOL, "✓ `reading_rate` opens 30 files in 3 and in 5 threads"),
        (POOL.replace(MAP, "[pool.submit(open_file, x) for x in files]"), "✓ `reading_rate`"),
        (POOL.replace("(readers)", "()"), "of threads that open files is 16"),
        (POOL.replace("(readers)", "(3)"), "With 5 readers, the number of threads"),
        (POOL.replace(MAP, "[open_file(x) for x in files]"), "that open files is 1."),
        (POOL.replace("files))", "files[1:]))"), "29 calls opened 29 of 30 files"),
        (POOL.replace("files))", "files * 3))"), "90 calls opened 30 of 30 files"),
        (POOL.replace("files))", "val))"), "Use the argument `files`"),
        (POOL.replace("map(open_file", "map(open_slowly"), "by something other than the argument"),
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
    (tmp_path / "lesson-00").mkdir()
    for name, speeds in ("1", [2.0, 6.0]), ("2", [2.0, 2.0]), ("3", [None]), ("4", None):
        report = {"metrics": {"train.total_ips": speeds} if speeds else {}}
        (tmp_path / "lesson-00" / f"run-{name}.json").write_text(json.dumps(report))
    results = expected.load(ROOT / "notebooks" / "expected")
    machine = SimpleNamespace(cores=2)
    session = SimpleNamespace(results=results, runs=tmp_path, data_root=tmp_path, machine=machine)
    names = {"nb01": nb01, "np": np, "time": time, "Path": Path, "val": files,
             "needed": 1e9, "session": session, "rounds": 2}  # fmt: skip
    execute("01", "def reading_rate", answer, names, tmp_path)
    printed = capsys.readouterr().out
    assert said in printed
    assert "notebook 00's network (64 px): 3," in printed  # harmonic, of the fastest run
    lines = [line for line in printed.splitlines() if "reader(s)" in line]
    assert len(lines) == 3 and all("enough for notebook 00's network" in line for line in lines)
    assert "8 V100s" not in "".join(lines)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "○ `at_most` is not written yet"),
        ("return 1 / (1 - part / whole)", "✓ `at_most` is right"),
        ("return whole / part", "The rest remains"),
        ("return 1 - part / whole", "Divide the whole by it"),
        ("return part / whole", "the share of the part"),
    ],
)
def test_limit_in_02(answer: str, said: str, tmp_path: Path, capsys) -> None:
    checks = importlib.import_module("workshop.lessons.nb02_checks")
    results = expected.load(ROOT / "notebooks" / "expected")
    names = {"nb02_checks": checks, "by_kind": {"convolution": 60.0, "other": 40.0},
             "session": SimpleNamespace(results=results)}  # fmt: skip
    execute("02", "def at_most", answer, names, tmp_path, cells=1)
    printed = capsys.readouterr().out
    assert said in printed
    assert "convolution is 60%; without it, at most 2.50 ×" in printed
    assert "53 ms: convolution is 32%; without it, at most 1.47 ×" in printed


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "○ `training_hours` is not written yet"),
        ("return epochs * images / (60 * 60 * rate)", "✓ `training_hours` is right"),
        ("return 1281167 * 90 / 400.2 / 3600", "training_hours(50000, 10, 300) gives"),
        (["...", "return kilobytes / 1e3 * rate"], "✓ `megabytes_per_second` is right"),
        (["...", "return rate * kilobytes / 1024"], "Its MB have 1,024 KB."),
        (["...", "return rate * kilobytes // 1000"], "gives 0. It should be 0.805."),
        (["...", "return kilobytes / rate / 1000"], "megabytes_per_second(250, 80) gives"),
    ],
)
def test_formulas_in_00(answer: Any, said: str, tmp_path: Path, capsys) -> None:
    env = {"model_flops": {"per_image": 2.4535e8}, "axes": {"image_shape": {"value": 64}}}
    run = {"metrics": {"train.total_ips": [400.0, 600.0]}, "env": env}
    results = expected.load(ROOT / "notebooks" / "expected")
    names = {"session": SimpleNamespace(results=results), "runs": [run], "train": range(2400),
             "network": "tiny", "total": 10.4, "workshop": workshop, "nb00": nb00,
             "expected": None}  # fmt: skip
    execute("00", "def training_hours", answer, names, tmp_path, cells=3)
    printed = capsys.readouterr().out
    assert said in printed  # and the finished one is used if it is wrong:
    rows = [" ".join(line.split()) for line in printed.splitlines()]
    assert "V100, FP32, batch 96 400.2 80.0 46.2 9.82 15.7 63%" in rows
    assert "V100, FP16, batch 208 1,443 22.2 166.5 35.4 125 28%" in rows
    assert "H100, FP16, batch 256 4,833 6.63 557.9 118.6 681 17%" in rows
    assert "480 images/s, 0.12 TFLOP/s (tiny, 64 px: 1/100 of the work per image)" in printed
    assert "your formula gives 10.0 s;" in printed and "training took 10.4 s" in printed


RULE = (
    "return (scale / 2, 0) if not finite else (scale * 2, 0) if good + 1 == wait else"
    " (scale, good + 1)"
)
CONVOLUTION = "n = images * 64 * 56 * 56; return 2 * n * 64 * 9, size * (2 * n + 36864)"
NORM = "n = images * 64 * 56 * 56; return 5 * n, size * 3 * n"
ACCESSES = 'return {"batch norm": 8, "ReLU": 5, "addition": 6}[layer]'
LAMBDA = "...\n\nblock_end = lambda fused: (3, 1) if fused else (5, 3)"


@pytest.mark.parametrize(
    ("start", "answers", "said"),
    [
        ("def next_scale", "", "○ `next_scale` is not written yet"),
        ("def next_scale", RULE, "right in all 8 test cases"),
        ("def next_scale", RULE.replace("/ 2", "/ 4"), "gives (0.25, 0). It should be (0.5, 0)"),
        ("def convolution", [CONVOLUTION, NORM], "✓ `batch_norm`"),
        ("def convolution", [CONVOLUTION.replace(" + 36864", ""), NORM], "weights are read, too"),
        ("def convolution", [CONVOLUTION.replace("images *", ""), NORM], "convolution(3, 4) gives"),
        ("def accesses", ACCESSES, "✓ `accesses`"),
        ("def accesses", ACCESSES.replace("8", "3"), "The batch norm lacks accesses"),
        ("def accesses", ACCESSES.replace("[layer]", ""), "of type dict, not a number"),
        ("def block_end", "return (3, 1) if fused else (5, 3)", "✓ `block_end`"),
        ("def block_end", "return (2, 1) if fused else (4, 3)", "is then read again"),
        ("def block_end", LAMBDA, "✓ `block_end`"),
    ],
)
def test_functions_in_06(start: str, answers: Any, said: str, tmp_path: Path, capsys) -> None:
    names = {"nb06": nb06}
    execute("06", start, answers, names, tmp_path, cells=1)
    assert said in capsys.readouterr().out
    # a wrong answer is not used further
    name = start.removeprefix("def ")
    case = nb06.CASES[getattr(nb06, name)][0]
    assert names[name](*case) == getattr(nb06, name)(*case)


def test_eight_gpus_of_03_are_predicted_from_lists_as_in_the_check(capsys) -> None:
    def after_the_pass(full: Any, takes: Any, alone: float, senders: int) -> float:
        return (full + takes)[-1] if full and takes else 0.0  # fails with arrays

    results = defaultdict(lambda: SimpleNamespace(value=1000.0))
    names = {"np": np, "full": [0.1, 0.2], "bucket_bytes": [1e8, 2e8]}
    names |= {"session": SimpleNamespace(results=results), "after_the_pass": after_the_pass}
    (master,) = (ROOT / "notebooks" / "source").glob("03_*.py")
    (cell,) = (c["source"] for c in masters.read_master(master) if "H100's NVLink" in c["source"])
    exec(cell, names)
    assert re.search(r"PCIe 3.0, not shared +43.9 +29.2 ", capsys.readouterr().out)


def body(function: Any) -> str:
    """Return what a finished function does, as a learner writes it."""
    return inspect.getsource(function).partition('"""\n')[2].strip()


@pytest.mark.needs("torch")
@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(
    ("number", "functions", "then"),
    [
        ("07", ["fold"], ""),
        ("07", ["capture", "graph_gain"], "would save about 30% of a prediction"),
        ("07", ["ideal_latencies", "take"], ""),
        ("08", ["measure"], ""),
        ("08", ["in_turns"], ""),
        ("08", ["fit", "causes"], "β 1.00 GB/s: 100 MB of gradients take 101 ms"),
    ],
)
def test_functions_of_07_and_08(
    number: str, functions: list[str], then: str, written: bool, tmp_path, monkeypatch, capsys
) -> None:
    import torch

    checks = importlib.import_module(f"workshop.lessons.nb{number}_checks")
    monkeypatch.chdir(tmp_path)
    simulate(monkeypatch)
    found = {"all_reduce": [[1000.0, 0.001 + 1e-6], [1e9, 1.001]], "bytes": 10**8}
    Path("together.json").write_text(json.dumps(found))
    names = {
        f"nb{number}_checks": checks, "np": np, "torch": torch, "Tensor": torch.Tensor, "Any": Any,
        "json": json, "Path": Path, "device": "cpu", "on_gpu": False, "gpus": 0,
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

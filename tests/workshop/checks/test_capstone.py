"""The capstone: scripts watched on two ranks, each mistake found, and the solution faster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.workshop.checks.capstone_answers import CAPSTONES, HOROVOD
from tests.workshop.checks.test_checks import answered, cell_of
from workshop import masters
from workshop.checks import capstone, capstone_judge, compare, engine
from workshop.course import nbgrader

SMALL = {"train": 3, "val": 1}  # 36 and 12 images: 16 divides neither
HARDLY = "the network hardly learns"  # 36 images are too few for it
SLOW_MISTAKES = (
    "validation images were trained on",
    "the ranks begin with different weights",
    "the ranks train on the same images",
    "every epoch has the same order",
    "the learning rate of step 1 is 0 instead of",
    "validation runs in training mode",
)


def solution(*changes: str) -> str:
    """The solution, with each even text replaced by the one after it."""
    source = masters.solved(cell_of("ex08.capstone", "answer"))
    for line, instead in zip(changes[::2], changes[1::2], strict=True):
        assert line in source, line
        source = source.replace(line, instead, 1)
    return source


def found(script: str, case: capstone.Case) -> list[str]:
    """Return what the judge says of a script on two ranks."""
    try:
        seen = capstone.observe(case, script)
    except compare.Wrong as problem:
        return [problem.diagnosis]
    return [f"{said} {remedy}" for said, remedy in capstone_judge.problems(seen, case)]


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.acceptance), len(CAPSTONES)], ids=["all", "one"]
)
def test_every_mistake_is_found_from_the_network_input(every):
    """Each script has one known mistake; the correct one gets no complaint."""
    with capstone.images(SMALL) as case:
        right = found(solution(), case)
        assert [said for said in right if HARDLY not in said] == []
        for *changes, diagnosis in CAPSTONES[::every]:
            if diagnosis != HARDLY:
                said = found(solution(*changes), case)
                assert diagnosis in said[0], (changes, said)
        told = found(capstone.baseline(), case)
    assert len(told) == len(SLOW_MISTAKES), told
    for said, mistake in zip(told, SLOW_MISTAKES, strict=True):
        assert mistake in said


MESH = (
    'dist.init_process_group("gloo")', "dist.device_mesh.init_device_mesh('cpu', (2,))"
)  # fmt: skip
SPAWN = (
    "    report = {",
    "    import multiprocessing\n"
    "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
    "        assert pool.map(abs, [1, -2]) == [1, 2]\n"
    "    report = {",
)


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_script_may_join_by_a_device_mesh_and_spawn_processes(monkeypatch):
    monkeypatch.setattr(capstone, "LIMIT_S", 100.0)
    with capstone.images(SMALL) as case:
        said = found(solution(*MESH, *SPAWN), case)
    assert [one for one in said if HARDLY not in one] == []


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_script_that_hangs_is_stopped_before_its_cell_is(monkeypatch):
    (cell,) = re.findall(r"timeout = (\d+)", nbgrader.CONFIG)
    assert capstone.LIMIT_S + 30 < int(cell)
    monkeypatch.setattr(capstone, "LIMIT_S", 5.0)
    hangs = "import time\n\n\ndef train(data, out):\n    time.sleep(600)\n"
    with capstone.images(SMALL) as case:
        assert found(hangs, case) == ["the script was stopped after 5 s."]


def draft_box(image: Image.Image, pixels: int = 64) -> Image.Image:
    image.draft("RGB", (pixels, pixels))
    return image.convert("RGB").resize((capstone.SIZE, capstone.SIZE), Image.Resampling.BOX)


def resized(by: str) -> Callable[[Image.Image], Image.Image]:
    size, how = (capstone.SIZE, capstone.SIZE), Image.Resampling[by]
    return lambda image: image.convert("RGB").resize(size, how)


@pytest.mark.parametrize(
    ("load", "aliased"),
    [
        (draft_box, False),  # the fastest: the decoder averages
        (resized("BILINEAR"), False),
        (resized("LANCZOS"), False),
        (resized("NEAREST"), True),
    ],
    ids=["draft and BOX", "BILINEAR", "LANCZOS", "NEAREST"],
)
def test_filters_that_average_are_right(
    load: Callable[[Image.Image], Image.Image], aliased: bool
) -> None:
    with capstone.images(SMALL) as case:
        files = [file for part in SMALL for file in sorted(case.folder.glob(f"{part}/*/*"))]
        arrays = [np.asarray(load(Image.open(file))) for file in files]
    pixels = (np.stack(arrays) - np.array(capstone.MEAN)) / np.array(capstone.STD)
    prints = capstone.prints(pixels.transpose(0, 3, 1, 2))
    seen = SimpleNamespace(
        prints=prints, number=capstone.recognised(prints, capstone.prints(case.pixels))
    )
    assert (seen.number == np.arange(len(files))).all()
    said = [what for true, what, _ in capstone_judge._pixels(seen, case) if true]
    assert bool(said) == aliased and all("aliased" in what for what in said), said


def trace_file(path: Path, events: list[tuple[str, float, float, dict[str, Any]]]) -> Path:
    """Write a trace of two steps of 10 ms, each with these events: name, begin, ms, arguments."""
    rows = []
    for step in range(2):
        rows.append((f"ProfilerStep#{step}", 10 * step, 10, {}))
        rows += [(name, 10 * step + at, ms, args) for name, at, ms, args in events]
    written = [
        {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "name": name, "ts": 1000 * at,
         "dur": 1000 * ms, "args": args} for name, at, ms, args in rows
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": written}))
    return path


def message(numbers: int) -> tuple[str, float, float, dict[str, Any]]:
    return "gloo:all_reduce", 6, 1, {"Input Dims": [[numbers]]}


ALL = capstone_judge.PARAMETERS
GOOD = [("input", 0, 0.5, {}), ("forward", 0.5, 3, {}), message(ALL)]


@pytest.mark.parametrize(
    ("events", "diagnosis"),
    [
        (GOOD, ""),
        ([("input", 0, 4, {}), message(ALL)], "40% of a step waits for input (4.0 ms"),
        ([("input", 0, 1, {}), ("input", 3, 3, {}), message(ALL)], "40% of a step"),
        ([*GOOD, ("aten::_local_scalar_dense", 9, 0.1, {})], "1 `.item()` per step"),
        ([*GOOD, message(ALL)], "exchanges 2.0 times all gradients"),
        ([("input", 0, 1, {}), *[message(ALL // 14)] * 14], "14 messages per step"),
        ([("input", 0, 1, {}), *[(f"horovod:all_reduce {ALL // 14}", 6, 1, {})] * 14], ""),
        ([("horovod:all_reduce 61468", 6, 1, {})] * 3, "exchanges 3.0 times all gradients"),
    ],
)
def test_trace_is_judged(tmp_path, events, diagnosis):
    seen = SimpleNamespace(trace=trace_file(tmp_path / "trace.json", events))
    said = [what for true, what, _ in capstone_judge._traced(seen, None) if true]
    assert len(said) == bool(diagnosis) and all(diagnosis in what for what in said), said


@pytest.mark.acceptance
@pytest.mark.needs("torch", "horovod")
@pytest.mark.parametrize("changes", [[], [text for pair in HOROVOD for text in pair]],
                         ids=["DDP", "Horovod"])  # fmt: skip
def test_right_scripts_keep_all_rules_and_mistakes_that_need_more_images_are_found(
    tmp_path, changes
):
    script = solution(*changes)
    with capstone.images() as case:  # enough images to learn from
        assert case.train % capstone.BATCH
        seen = capstone.observe(case, script, trace=tmp_path / "trace.json")
        assert capstone_judge.problems(seen, case) == []
        assert seen.trace.exists() and capstone_judge.read_trace(seen.trace).numbers == ALL
        for *wrong, diagnosis in CAPSTONES:
            if diagnosis == HARDLY and not changes:
                assert HARDLY in found(solution(*wrong), case)[0]


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_capstone_solution_reaches_the_target_and_a_slow_one_does_not():
    result = engine.judge("ex08.capstone", answered("ex08.capstone", solution()))
    assert result.passed, result.lines
    print(result.said)
    step = "            optimizer.zero_grad()\n"
    slow = solution(step, f"{step}            sum(range(10**7))\n")
    result = engine.judge("ex08.capstone", answered("ex08.capstone", slow))
    assert result.outcome == engine.WRONG and "waits for input" in result.said, result.lines

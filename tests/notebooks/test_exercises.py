"""Every exercise notebook in a kernel: untouched, solved, and solved at full size."""

from __future__ import annotations

import json
import tempfile
import uuid

import pytest

from tests.conftest import ROOT, clean_environment
from workshop import catalogue, output, processes
from workshop.checks import engine
from workshop.course import build, run

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch")]

LIMIT_S = 600  # of a cell, so that a notebook that hangs fails; the machine may be busy
MASTERS = {master.stem: master for master in build.masters(ROOT) if build.is_exercise(master)}
# tests/workshop/checks judges the solutions and stubs of the others; they run in `make acceptance`
SMALL = [("ex01_records", False), ("ex01_records", True)]
PARAMETERS = [
    pytest.param(
        name, solved, id=f"{name}-{'solved' if solved else 'untouched'}",
        marks=() if (name, solved) in SMALL else pytest.mark.acceptance,
    )
    for name in MASTERS
    for solved in (False, True)
]  # fmt: skip


@pytest.mark.parametrize(("name", "solved"), PARAMETERS)
def test_exercise_notebook_runs_to_its_end(name, solved, course_data, tmp_path, monkeypatch):
    execute(name, solved, "ci", course_data, tmp_path, monkeypatch)


@pytest.mark.acceptance
@pytest.mark.parametrize("name", MASTERS)
def test_solved_notebook_runs_at_full_size(name, full_data, tmp_path, monkeypatch):
    execute(name, True, "cpu", full_data, tmp_path, monkeypatch)


def execute(name, solved, profile, data, tmp_path, monkeypatch):
    import papermill

    mark = uuid.uuid4().hex
    env = clean_environment(
        RN50_CHECK="record", RN50_DATA=str(data), RN50_RUNS=str(tmp_path),
        TMPDIR=str(tmp_path),
    )  # fmt: skip
    env = env | {processes.MARK: mark} | run.this_kernel(tmp_path / "jupyter")
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(tempfile, "tempdir", None)
    given = tmp_path / f"{name}.ipynb"
    given.write_text(build.build(ROOT, MASTERS[name], solved=solved), encoding="utf-8")
    done = tmp_path / "done.ipynb"
    try:
        papermill.execute_notebook(
            given, done, {"profile": profile}, kernel_name="python3", cwd=tmp_path,
            progress_bar=False, execution_timeout=LIMIT_S,
        )  # fmt: skip
    finally:
        left = [process.cmdline() for process in processes.marked(mark)]
        processes.end(mark)
    assert left == []
    assert not [*tmp_path.glob("ranks-*")]

    cells = json.loads(done.read_text())["cells"]
    shown = [out["data"] for cell in cells for out in cell.get("outputs", []) if "data" in out]
    results = [data[output.RESULT_MIME] for data in shown if output.RESULT_MIME in data]
    found = {result["exercise"]: result for result in results if result["kind"] == "check"}
    assert list(found) == [item.name for item in catalogue.of_notebook(name[:4])]
    for item, result in zip(catalogue.of_notebook(name[:4]), found.values(), strict=True):
        attempted = solved and not item.lacks
        right = engine.PASSED if attempted else engine.NOT_ATTEMPTED
        too_slow = item.name == "ex08.capstone" and "all correct" in result["said"]
        assert result["outcome"] == right or too_slow, result

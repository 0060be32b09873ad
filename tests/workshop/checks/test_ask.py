"""`workshop.check`, `hint`, `solution` and `rn50 workshop status`: what is shown and recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rn50lib.errors import UserError
from tests.conftest import ROOT
from workshop import catalogue
from workshop.checks import ask, engine, records


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty folder of answers."""
    monkeypatch.setenv("RN50_RUNS", str(tmp_path))
    monkeypatch.delenv("RN50_CHECK", raising=False)
    return tmp_path / "answers"


def test_check_shows_two_lines_and_writes_a_record(home, capsys):
    with pytest.raises(ask.CheckFailed) as failed:
        ask.check("ex02.work", 8)
    assert failed.value._render_traceback_() == list(failed.value.result.lines)
    assert len(str(failed.value).splitlines()) == 2
    ask.check("ex02.work", 6)
    assert capsys.readouterr().out.startswith("✓ ex02.work passed: you said 6%")
    record = json.loads((home / "ex02.json").read_text())["ex02.work"]
    assert record["outcome"] == "passed" and record["tries"] == 2 and record["passed_at"]
    with pytest.raises(ask.CheckFailed):
        ask.check("ex02.work", 0)
    again = records.load("ex02")["ex02.work"]
    assert again["outcome"] == "wrong" and again["passed_at"] == record["passed_at"]


def test_record_mode_never_stops_a_notebook(home, capsys, monkeypatch):
    monkeypatch.setenv("RN50_CHECK", "record")
    ask.check("ex02.work", ...)
    assert "○ ex02.work is not attempted yet" in capsys.readouterr().out
    assert records.load("ex02")["ex02.work"]["tries"] == 0


def test_missing_package_is_recorded_without_an_error(home, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # Python then refuses to import it
    ask.check("ex04.recipe", lambda: None)
    printed = capsys.readouterr().out
    assert "○ ex04.recipe is not attempted yet: it needs TensorFlow" in printed
    assert records.load("ex04")["ex04.recipe"]["outcome"] == engine.NOT_ATTEMPTED


def test_hints_come_one_by_one_and_the_solution_last(home, capsys):
    shown = []
    for _ in range(4):
        ask.hint("ex03.sums")
        shown.append(capsys.readouterr().out)
    hints = catalogue.find("ex03.sums").hints
    assert all(hint in text for hint, text in zip(hints, shown, strict=False))
    assert shown[3] == shown[2] and 'workshop.solution("ex03.sums")' in shown[2]
    ask.solution("ex03.sums")
    assert "total = sums.clone()" in capsys.readouterr().out
    ask.solution("ex03.shard")
    refused = capsys.readouterr().out
    assert "0 of 3 hints" in refused and "reshape" not in refused
    ask.solution("ex03.shard", now=True)
    assert "reshape" in capsys.readouterr().out
    assert records.load("ex03")["ex03.shard"]["solution"] is True


def test_unknown_exercise_is_reported_with_the_nearest(home):
    with pytest.raises(UserError, match="did you mean ex03.sums"):
        ask.hint("ex03.sumz")


def test_unwritable_folder_does_not_affect_the_result(home, capsys):
    home.write_text("a file, where the folder should be")
    ask.check("ex02.work", 6)
    printed = capsys.readouterr().out
    assert "✓ ex02.work passed" in printed and "Your progress is not saved" in printed


@pytest.mark.slow
def test_untouched_notebook_stops_in_two_lines(home, tmp_path):
    """Execute the committed notebook with papermill."""
    import papermill

    with pytest.raises(papermill.PapermillExecutionError):
        papermill.execute_notebook(
            ROOT / "exercises" / "ex01_records.ipynb", tmp_path / "stopped.ipynb",
            {"profile": "ci"}, kernel_name="python3", cwd=tmp_path, progress_bar=False,
        )  # fmt: skip
    cells = json.loads((tmp_path / "stopped.ipynb").read_text())["cells"]
    errors = [out for c in cells for out in c.get("outputs", []) if out["output_type"] == "error"]
    (trace,) = [out["traceback"] for out in errors]
    assert len(trace) == 2, trace
    assert trace[0].startswith("○ ex01.frame is not attempted yet: `frame` still holds `...`")
    assert list(records.load("ex01")) == ["ex01.frame"]

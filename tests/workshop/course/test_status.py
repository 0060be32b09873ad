"""The verb and the table of what a learner has passed, from records of real checks."""

from __future__ import annotations

import pytest

from workshop import catalogue
from workshop.checks import ask, records

TOTAL = len(catalogue.EXERCISES)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return the folder of answers of a new learner."""
    monkeypatch.setenv("RN50_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "answers"


@pytest.fixture
def some(home, capsys):
    """One exercise passed alone, one after two hints, one after its solution, one tried."""
    ask.check("ex02.work", 100 * 9 * (256 * 128 * 28**2) / 3858e6)
    ask.hint("ex02.tune")
    ask.hint("ex02.tune")
    ask.check("ex02.tune", (0.03, 0.72))
    ask.solution("ex08.ring", now=True)
    ask.check("ex08.ring", {n: 2 * (n - 1) * (0.02 + 8 / n) for n in (2, 8, 512)})
    with pytest.raises(ask.CheckFailed):
        ask.check("ex04.hunt", {1})
    capsys.readouterr()


def test_verb_shows_progress_and_remaining_exercises(some, rn50, tmp_path):
    code, out, _ = rn50(tmp_path, "workshop", "status")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert "✓ passed  1      2 of 3 hints" in lines["ex02.tune"]
    assert "✓ passed  1      solution" in lines["ex08.ring"]
    assert "✗ tried   1" in lines["ex04.hunt"]
    assert all(item.name in lines for item in catalogue.EXERCISES)
    assert f"3 of {TOTAL} exercises passed" in out and "Next: ex01.frame" in out


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"ex03.shard": 3}', '{"ex99.none": {"passed_at": "now"}}'],
)
def test_damaged_records_count_as_not_passed(home, text, capsys):
    home.mkdir(parents=True)
    (home / "ex03.json").write_text(text, encoding="utf-8")
    records.progress()
    assert f"0 of {TOTAL} exercises passed" in capsys.readouterr().out

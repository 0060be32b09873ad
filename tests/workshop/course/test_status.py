"""The verb, the panel and the page of what a learner has passed, from records of real checks."""

from __future__ import annotations

import json
import re

import pytest

from workshop.checks import ask, records, status, table
from workshop.course import progress_page

TOTAL = len(table.EXERCISES)


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
    ask.solution("ex03.ring", now=True)
    ask.check("ex03.ring", {n: 2 * (n - 1) / n for n in (2, 8, 64)})
    with pytest.raises(ask.CheckFailed):
        ask.check("ex04.order", ["batch"])
    capsys.readouterr()


def entry(found, name):
    return next(item for item in found["exercises"] if item["exercise"] == name)


def test_help_counts_until_an_exercise_is_passed_and_not_after(some, capsys):
    found = status.collect()
    assert found["passed"] == 3
    assert found["how"] == {
        "without help": 1, "with hints": 1, "after the solution was shown": 1,
    }  # fmt: skip
    assert entry(found, "ex02.work")["how"] == "without help"
    ask.hint("ex02.work")
    ask.solution("ex02.work")
    ask.solution("ex02.tune", now=True)
    again = status.collect()
    assert again["how"] == found["how"]
    assert entry(again, "ex02.tune")["hints"] == 2 and not entry(again, "ex02.tune")["solution"]


def test_passing_again_keeps_the_record_of_help(some, capsys):
    with pytest.raises(ask.CheckFailed):
        ask.check("ex03.ring", {2: 9, 8: 9, 64: 9})
    ask.check("ex03.ring", {n: 2 * (n - 1) / n for n in (2, 8, 64)})
    assert entry(status.collect(), "ex03.ring")["how"] == "after the solution was shown"


def test_page_shows_progress_and_remaining_exercises(some, rn50, tmp_path):
    code, out, err = rn50(tmp_path, "workshop", "status", "-o", "new/summary.html")
    assert code == 0 and err == ""
    page = tmp_path / "new" / "summary.html"
    assert out.splitlines()[-1] == page.as_uri()
    html = page.read_text(encoding="utf-8")
    assert f"<h1>3 of {TOTAL} exercises passed</h1>" in html
    text = re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.S))
    row = text[text.index("ex02.tune") :][:400]
    assert "✓ passed with 2 hints, 1 try" in row
    row = text[text.index("ex04.order") :][:400]
    assert "✗ not passed 1 try; last: " in row
    for item in table.EXERCISES:
        assert item.name in text
    assert text.count("○ not tried") == TOTAL - 4
    assert "proves nothing to others" in text
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:|//|file:)""", html)
    assert str(tmp_path) not in html


def test_json_and_page_can_be_written_together(some, rn50, tmp_path):
    code, out, err = rn50(tmp_path, "workshop", "status", "--json", "-o", "s.html")
    assert code == 0 and json.loads(out)["passed"] == 3
    assert err.strip() == (tmp_path / "s.html").as_uri()


def test_page_that_cannot_be_written_is_one_line(home, rn50, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = rn50(tmp_path, "workshop", "status", "-o", "file/summary.html")
    assert code == 2 and err.startswith("error: the page ") and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"ex03.shard": 3}', '{"ex03.shard": {"tries": "many", "hints": null}}',
     '{"ex99.none": {"passed_at": "now"}}', '{"ex03.shard": {"passed_with": "luck"}}'],
)  # fmt: skip
def test_damaged_records_count_as_not_passed(home, text):
    home.mkdir(parents=True)
    (home / "ex03.json").write_text(text, encoding="utf-8")
    assert status.collect()["passed"] == 0
    assert f"0 of {TOTAL} exercises passed" in progress_page.panel(status.collect())


def test_diagnosis_is_escaped_on_the_page(home, tmp_path):
    record = {"tries": 1, "outcome": "wrong", "said": "<script>alert(1)</script>"}
    records.update("ex03.shard", **record)
    html = progress_page.write_page(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in html and "<script" not in html


def test_panel_links_to_existing_exercises(some, repository, monkeypatch):
    monkeypatch.chdir(repository)
    html = progress_page.panel(status.collect())
    links = re.findall(r'href="([^"]+)"', html)
    assert len(links) == len(table.notebooks())
    for link in links:
        assert (repository / "notebooks" / link).resolve().is_file()
    assert "✓ tune (2 hints)" in html and "✓ ring (solution)" in html and "✗ order" in html
    assert "Next: ex01.frame" in html


def test_end_of_the_course_writes_the_page_next_to_the_answers(some, home):
    progress_page.summary()
    assert f"3 of {TOTAL}" in (home / "summary.html").read_text(encoding="utf-8")

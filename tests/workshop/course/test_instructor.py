"""The instructor's page: its minutes are the course's, and its commands exist."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from workshop import catalogue
from workshop.course import commands


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "docs" / "instructor.md").read_text(encoding="utf-8")


def rows(page: str, mark: str) -> list[list[str]]:
    """Return the cells of the table after a mark, without its header."""
    text = page.split(f"<!-- {mark} -->\n", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def exercise_minutes() -> dict[str, int]:
    return {item.name: item.minutes for item in catalogue.EXERCISES}


def test_minutes_of_notebooks_and_exercises(page: str) -> None:
    minutes: Counter[str] = Counter()
    for name, value in exercise_minutes().items():
        minutes[name[2:4]] += value
    told = {row[0][:2]: (int(row[1]), int(row[2] or 0)) for row in rows(page, "timings")}
    assert told == {item.number: (item.minutes, minutes[item.number]) for item in catalogue.COURSE}
    assert f"Of the {minutes['08']} minutes of ex08, {exercise_minutes()['ex08.capstone']}" in page


def test_commands_exist(page: str) -> None:
    lines = re.findall(r"^\$ rn50 workshop (.*?)(?: +#.*)?$", page, re.M)
    assert len(lines) >= 5
    for line in lines:
        commands.parser().parse_args(shlex.split(line))  # exits if a flag does not exist


def test_linked_from_the_front_pages(repository: Path) -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        assert "(docs/instructor.md)" in (repository / name).read_text(encoding="utf-8")

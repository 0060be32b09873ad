"""The instructor's page: its names and minutes are the notebooks', and its commands exist."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from workshop import catalogue, masters
from workshop.course import build, commands


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


def test_names_and_minutes_are_those_of_the_first_cells(page: str, repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    table = (repository / "notebooks" / "source" / "00_start_here.py").read_text("utf-8")
    lines = {row[0][:2]: row for row in rows(page, "timings")}
    for master in build.masters(repository):
        first = masters.read_master(master)[0]["source"]
        number, title = re.findall(r"^# (?:ex)?(\d\d) · (.+)$", first, re.M)[0]
        (time,) = re.findall(r"\*\*Time:\*\* (\d+) minutes", first)
        (cpu,) = re.findall(r"\*\*On a CPU:\*\* (.+) to run", first)
        name, learner, exercises, run = lines[number]
        if build.is_exercise(master):
            assert exercises == time, master
            assert f"| [ex{number}](../exercises/{master.stem}.ipynb): {time} minutes |" in table
        else:
            cpu = cpu.replace("about a minute", "about 1 minute")
            assert (name, learner) == (f"{number} {title}", time)
            assert cpu.split()[:2] == ["about", run], master
            assert f"| {number} | [{title}](" in readme
            assert re.search(rf"\| \[{number} .+\]\({master.stem}.ipynb\) \|.* {time} min", table)


def test_readme_has_the_sums_of_hours(repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    lessons = sum(item.minutes for item in catalogue.COURSE) / 60
    assert "The notebooks take about 12 hours,\nthe exercises 6 to 7 more" in readme
    assert 11.75 < lessons < 12.5 and 6 < sum(exercise_minutes().values()) / 60 < 7


def test_commands_exist(page: str) -> None:
    lines = re.findall(r"(?:^\$ |`)rn50 workshop ([^`\n]+?)(?: +#.*)?(?:$|`)", page, re.M)
    assert len(lines) >= 5 and "grade handed-in -o class.html --jobs 4" in lines
    for line in lines:
        commands.parser().parse_args(shlex.split(line))  # exits if a flag does not exist


def test_linked_from_the_front_pages(repository: Path) -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        assert "(docs/instructor.md)" in (repository / name).read_text(encoding="utf-8")

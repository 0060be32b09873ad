"""JupyterLab in a real browser: a slider, an exercise answered wrong, and then right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workshop.lab import Lab, serve

pytestmark = pytest.mark.needs("chromium", "jupyterlab")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """The folder of the server's settings and of the learner's runs."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def course(home, repository, browser_page) -> Iterator[Lab]:
    """A browser on JupyterLab with the course's notebooks, in profile ci."""
    for folder in ("notebooks", "exercises"):
        (home / "course" / folder).mkdir(parents=True)
        for path in (repository / folder).glob("*.ipynb"):
            text = path.read_text(encoding="utf-8")
            copy = home / "course" / folder / path.name
            copy.write_text(
                text.replace('profile: str = \\"auto\\"', 'profile: str = \\"ci\\"'),
                encoding="utf-8",
            )
    with serve(home / "course", home=home) as address:
        yield Lab(browser_page[0], address)


@pytest.mark.acceptance
def test_slider_of_03_follows_more_workers(course):
    course.open("notebooks/03_horovod.ipynb")
    cell = course.run("def follow(n)")
    text = cell.locator(".jp-OutputArea-output pre").first
    assert text.inner_text().splitlines()[-1].split() == ["step", "6:", *["0+1+2+3"] * 4]
    cell.locator(".widget-slider .noUi-handle").first.focus()
    course.page.keyboard.press("ArrowRight")
    cell.locator("pre", has_text="step 8:").wait_for()


SHARD = """def shard(order, rank, size, batch):
    steps = len(order) // (size * batch)
    table = order[: steps * size * batch].reshape(steps, size, batch)
    return table[:, {}]"""


@pytest.mark.slow
def test_wrong_then_correct_answer_in_jupyterlab(course, home):
    course.open("exercises/ex03_horovod.ipynb")
    course.run("profile: str =")
    table = course.run("workshop.start(")
    assert table.locator("td", has_text="ex03.shard").count() == 1
    check = course.run('workshop.check("ex03.shard"')
    assert told(check) == [
        "○ shard does not exist yet.",
        "Run the cell above in which you write it, then this one again.",
    ]
    course.run("def shard(")
    untouched = told(course.run('workshop.check("ex03.shard"'))
    assert untouched[0].startswith("○ ex03.shard is not attempted yet")

    course.answer("def shard(", SHARD.format("0"))
    wrong = told(course.run('workshop.check("ex03.shard"'))
    assert wrong[0].startswith("✗ ex03.shard is not right yet: shard(array([")
    assert any("It should be" in line for line in wrong), wrong

    course.answer("def shard(", SHARD.format("rank"))
    passed = course.run('workshop.check("ex03.shard"')
    assert told(passed)[0].startswith("✓ ex03.shard passed")
    assert passed.locator(".box:not(.warn)").count() == 1
    record = json.loads((home / "runs" / "answers" / "ex03.json").read_text())["ex03.shard"]
    assert record["passed_at"] and record["tries"] == 2


def told(cell) -> list[str]:
    """Return the lines that a cell shows."""
    lines = cell.locator(".jp-OutputArea-output").all_inner_texts()
    return [line.strip() for line in "\n".join(lines).splitlines() if line.strip()]

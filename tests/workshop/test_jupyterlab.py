"""JupyterLab in a real browser: a control redraws its figure, an exercise wrong and then right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workshop.conftest import write_notebook
from tests.workshop.lab import Lab, serve

pytestmark = pytest.mark.needs("chromium", "jupyterlab")

EXPLORE = """import ipywidgets, workshop
import matplotlib.pyplot as plt

def draw(power):
    fig, ax = plt.subplots(figsize=(4, 2.5))
    ax.plot([x**power for x in range(10)])
    return fig, f"The last value is {9**power}."

workshop.explore(draw, lambda power: "a curve", power=ipywidgets.IntSlider(2, 1, 4));"""

BAD = 'workshop.use(nettwork="tiny")'


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """The folder of the server's settings and of the learner's runs."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def course(home, repository, browser_page) -> Iterator[Lab]:
    """A browser on JupyterLab with the course's notebooks, in profile ci, and a demonstration."""
    for folder in ("notebooks", "exercises"):
        (home / "course" / folder).mkdir(parents=True)
        for path in (repository / folder).glob("*.ipynb"):
            text = path.read_text(encoding="utf-8")
            copy = home / "course" / folder / path.name
            copy.write_text(
                text.replace('profile: str = \\"auto\\"', 'profile: str = \\"ci\\"'),
                encoding="utf-8",
            )
    write_notebook(home / "course" / "demo.ipynb", EXPLORE, BAD)
    with serve(home / "course", home=home) as address:
        yield Lab(browser_page[0], address)


@pytest.mark.acceptance
def test_control_redraws_its_figure(course):
    course.open("demo.ipynb")
    cell = course.run("workshop.explore(")
    plot = cell.locator(".jp-OutputArea-output img")
    before = plot.get_attribute("src")
    assert plot.count() == 1 and plot.get_attribute("alt") == "a curve"
    assert cell.locator(".rn50 p", has_text="The last value is 81.").count() == 1
    cell.locator(".widget-slider .noUi-handle").first.focus()
    course.page.keyboard.press("ArrowRight")
    cell.locator(".rn50 p", has_text="The last value is 729.").wait_for()
    assert plot.count() == 1 and plot.get_attribute("src") != before
    (error,) = told(course.run("nettwork"))
    assert error.startswith("error: pass a function for one of")


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

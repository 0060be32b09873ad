"""JupyterLab in a real browser: a control redraws its figure, the figure of a running job moves."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.workshop.conftest import write_notebook
from tests.workshop.lab import Lab, serve

pytestmark = pytest.mark.needs("chromium", "jupyterlab")

EXPLORE = """import workshop
import matplotlib.pyplot as plt

def draw(power):
    fig, ax = plt.subplots(figsize=(4, 2.5))
    ax.plot([x**power for x in range(10)])
    return fig, f"The last value is {9**power}."

workshop.explore(draw, alt="a curve", power=(1, 4, 1));"""

LIVE = """run = workshop.train(loader="synthetic", network="tiny", num_classes=4, image_shape=32,
    batch_size=4, data_nthreads=0, threads=1, num_epochs=3, benchmark_iters=2500, disp_batches=50,
    profile="cpu")
run.live();"""

BAD = 'workshop.train(nettwork="tiny")'


@pytest.fixture
def lab(tmp_path) -> Iterator[str]:
    """The address of a JupyterLab over one notebook."""
    write_notebook(tmp_path / "demo.ipynb", EXPLORE, LIVE, BAD)
    with serve(tmp_path) as address:
        yield address


@pytest.fixture
def course(tmp_path, repository, browser_page) -> Iterator[Lab]:
    """A browser on JupyterLab with a copy of the course's notebooks, in profile ci."""
    for folder in ("notebooks", "exercises"):
        (tmp_path / "course" / folder).mkdir(parents=True)
        for path in (repository / folder).glob("*.ipynb"):
            text = path.read_text(encoding="utf-8")
            copy = tmp_path / "course" / folder / path.name
            copy.write_text(
                text.replace('profile: str = \\"auto\\"', 'profile: str = \\"ci\\"'),
                encoding="utf-8",
            )
    with serve(tmp_path / "course", home=tmp_path) as address:
        yield Lab(browser_page[0], address)


def run_all(page) -> None:
    """Choose Run All, again if the kernel was not ready and JupyterLab silently dropped it."""
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    begun = page.locator(".jp-InputPrompt", has_text=re.compile(r"\[(\*|\d+)\]"))
    for _ in range(5):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        page.wait_for_timeout(3000)
        if begun.count():
            return
    raise AssertionError("JupyterLab runs no cell")


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_controls_redraw_and_the_live_figure_moves(lab, browser_page, tmp_path):
    page, _ = browser_page
    page.set_default_timeout(120_000)
    page.set_viewport_size({"width": 1300, "height": 1700})
    page.goto(f"{lab}lab/tree/demo.ipynb?token=test")
    run_all(page)
    plots = page.locator(".jp-OutputArea-output img")
    seen: set[str] = set()
    deadline = time.monotonic() + 300
    error = page.locator(".jp-OutputArea-output pre", has_text="has no setting")
    while not error.count():
        if time.monotonic() > deadline:
            page.screenshot(path=tmp_path / "late.png")
            raise AssertionError(f"the last cell has not run: see {tmp_path / 'late.png'}")
        if plots.count() > 1:
            seen.add(plots.nth(1).get_attribute("src"))
        page.wait_for_timeout(200)
    assert len(seen) > 1, "the figure of the running job never moved"
    assert plots.count() == 2  # each updated in place
    assert plots.first.get_attribute("alt") == "a curve"
    assert error.inner_text().startswith("error: train has no setting 'nettwork': did you mean")

    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    before = plots.first.get_attribute("src")
    assert page.locator(".rn50 p", has_text="The last value is 81.").count() == 1
    page.locator(".widget-slider .noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    page.locator(".rn50 p", has_text="The last value is 729.").wait_for()
    assert plots.first.get_attribute("src") != before
    page.screenshot(path=tmp_path / "jupyterlab.png")


SHARD = """def shard(order, rank, size, batch):
    steps = len(order) // (size * batch)
    table = order[: steps * size * batch].reshape(steps, size, batch)
    return table[:, {}]"""


@pytest.mark.slow
def test_wrong_then_correct_answer_in_jupyterlab(course, tmp_path):
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
    course.shot("exercise-wrong")
    assert wrong[0] == "✗ ex03.shard is not right yet: every rank reads the same images."
    assert "Use the rank as the offset" in wrong[1] and len(wrong) == 2

    course.answer("def shard(", SHARD.format("rank"))
    passed = course.run('workshop.check("ex03.shard"')
    course.shot("exercise-passed")
    assert told(passed)[0].startswith("✓ ex03.shard passed")
    assert passed.locator(".box:not(.warn)").count() == 1
    record = json.loads((tmp_path / "runs" / "answers" / "ex03.json").read_text())["ex03.shard"]
    assert record["passed_at"] and record["tries"] == 2


def told(cell) -> list[str]:
    """Return the lines that a cell shows."""
    lines = cell.locator(".jp-OutputArea-output").all_inner_texts()
    return [line.strip() for line in "\n".join(lines).splitlines() if line.strip()]


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_through_the_course_from_its_map_to_a_slider(course):
    """Follow a link of the map in the first notebook to notebook 03, whose slider redraws."""
    course.open("notebooks/00_start_here.ipynb")
    course.run("profile: str =")
    course.run("workshop.start(")
    course_map = course.run("workshop.course_map()")
    assert course_map.locator("div[role=img]").count() == 1
    panel = course.run("workshop.progress()")
    assert "0 of " in told(panel)[0]
    assert panel.locator('a[href*="ex03_horovod.ipynb"]').count() == 1
    course.shot("map-and-progress")

    course_map.get_by_role("link", name="03 Horovod").click()
    course.page.locator(".lm-TabBar-tab.lm-mod-current", has_text="03_horovod").wait_for()
    course.wait_for_kernel()
    course.run("profile: str =")
    course.run("workshop.start(")
    explored = course.run("nb03.explore_ring()")
    plot = explored.locator(".jp-OutputArea-output img")
    before = plot.get_attribute("src")
    assert len(plot.get_attribute("alt")) > 30
    slider = explored.locator(".widget-slider .noUi-handle").first
    slider.scroll_into_view_if_needed()
    slider.focus()
    for _ in range(3):
        course.page.keyboard.press("ArrowRight")
    deadline = time.monotonic() + 60
    while plot.get_attribute("src") == before:
        assert time.monotonic() < deadline, "the figure is the same as before"
        course.page.wait_for_timeout(200)
    course.shot("slider-moved")

"""The index over a course run and the pages of its notebooks, from made-up outcomes."""

from __future__ import annotations

import re

import pytest

from tests.workshop.conftest import write_notebook
from workshop.course import pages, results

MACHINE = {"processor": "a processor", "cores": 2, "memory": 2**33, "gpus": [],
           "bfloat16": "", "system": "a system"}  # fmt: skip


def outcome(number: int, status: str = results.PASSED, notes: int = 0, **more) -> results.Outcome:
    name = f"{number:02}_notebook"
    values = {
        "name": name, "title": f"{number:02} · Notebook {number}", "status": status,
        "seconds": 12.0 + number, "budget": 15.0, "limit": 90.0, "parameters": {"profile": "ci"},
        "sha256": "", "notebook": f"{name}.ipynb", "page": f"{name}.html",
        "notes": [{"what": f"figure {i}", "value": i, "unit": "s"} for i in range(notes)],
    }  # fmt: skip
    return results.Outcome(**(values | more))


def course(*outcomes: results.Outcome, profile: str = "cpu") -> results.CourseRun:
    return results.CourseRun(
        started="2026-01-02T03:04:05+00:00", seconds=61, profile=profile,
        command="rn50 workshop run", machine=MACHINE, versions={"Python": "3"},
        notebooks=list(outcomes),
    )  # fmt: skip


def test_index_shows_some_figures_and_folds_the_others_away(tmp_path):
    run = course(outcome(0, notes=pages.SHOWN + 1), outcome(1, notes=pages.SHOWN + 3))
    html = pages.index(run, tmp_path).read_text(encoding="utf-8")
    assert re.findall(r"<summary>(.*?)</summary>", html) == ["3 more"]
    before, _, folded = html.partition("<details")
    assert before.count(f"figure {pages.SHOWN - 1}<") == 2 and f"figure {pages.SHOWN}<" in before
    assert f"figure {pages.SHOWN + 2}<" in folded


def test_figures_of_cut_runs_are_not_shown(tmp_path):
    html = pages.index(course(outcome(0, notes=2), profile="ci"), tmp_path).read_text("utf-8")
    assert "figure 0" not in html and "make run PROFILE=cpu" in html


def test_what_did_not_run_has_no_time(tmp_path):
    html = pages.index(course(outcome(0), outcome(1, results.NOT_RUN, seconds=0.0)), tmp_path)
    text = html.read_text(encoding="utf-8")
    assert "12.0 s" in text and "0.0 s" not in text.replace("12.0 s", "")
    road = text[text.index('<ol class="road"') : text.index("</ol>")]
    assert road.count("<li ") == 2 and "not run" in road
    for link in re.findall(r'href="#([^"]+)"', road):
        assert f'<tr id="{link}"' in text


@pytest.mark.slow  # nbconvert takes seconds to import
def test_page_links_to_pages_of_the_run_and_to_nothing_that_is_not_there(tmp_path):
    path = write_notebook(tmp_path / "00_notebook.ipynb")
    book = path.read_text().replace(
        "# 00_notebook title",
        "# Title\\n\\n[one](01_notebook.ipynb) [two](02_notebook.ipynb)"
        " [three](../exercises/ex00_start.ipynb) [four](https://example.org/a.ipynb)",
    )
    path.write_text(book)
    page = pages.page(tmp_path, outcome(0), ["00_notebook", "01_notebook"])
    html = page.read_text(encoding="utf-8")
    assert '<a href="01_notebook.html">one</a>' in html
    assert '<span class="unlinked">two</span>' in html
    assert '<span class="unlinked">three</span>' in html
    assert 'href="https://example.org/a.ipynb"' in html
    download = next(tag for tag in re.findall(r"<a [^>]+>", html) if "download" in tag)
    assert 'href="00_notebook.ipynb"' in download  # not the page once more


@pytest.mark.slow
@pytest.mark.needs("chromium")
def test_index_fits_a_projector_a_phone_and_paper(tmp_path, browser_page):
    page, requests = browser_page
    error = results.Error("ValueError: " + "long" * 60, 3, "x = 1\n" + "y" * 300)
    many = [outcome(i, notes=9) for i in range(8)] + [outcome(8, results.FAILED, error=error)]
    page.goto(pages.index(course(*many), tmp_path).as_uri())
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 720})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1280, "height": 720})
    below = page.locator(".road").bounding_box()
    assert below["y"] + below["height"] < 400  # how the course went is seen without scrolling
    assert not page.get_by_text("figure 8").first.is_visible()
    page.get_by_text("5 more").first.click()
    assert page.get_by_text("figure 8").first.is_visible()
    page.emulate_media(media="print")
    assert (
        page.get_by_text("figure 8").last.is_visible() and page.get_by_text("figure 8").count() == 8
    )
    assert [r for r in requests if not r.startswith(("file:", "data:"))] == []

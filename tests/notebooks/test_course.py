"""Every notebook of the course under profile ci, by the strict runner, as `make run` does it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environment
from workshop.course import catalogue

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch")]

NAMES = [item.name for item in catalogue.existing(ROOT)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> tuple[Path, dict]:
    """The whole course, run once from another folder: (its folder, course.json)."""
    out = tmp_path_factory.mktemp("course") / "out"
    done = subprocess.run(
        # the budgets are for a quiet machine; a test only asks that no notebook hangs
        [sys.executable, "-m", "rn50", "workshop", "run", "--profile", "ci", "--out", out,
         "--time-limit", "900",
         *(ROOT / "notebooks" / f"{name}.ipynb" for name in NAMES)],
        env=clean_environment(RN50_DATA=str(out.parent / "data")),
        cwd=out.parent, text=True, capture_output=True, timeout=3000, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (out / "course.json").exists(), done.stdout + done.stderr
    return out, json.loads((out / "course.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_notebook_passes(executed, name):
    item = next(item for item in executed[1]["notebooks"] if item["name"] == name)
    assert item["status"] == "passed", item["error"]
    assert item["leftovers"] == []
    assert item["notes"], "it shows no key result"


@pytest.mark.parametrize("name", NAMES)
def test_page_shows_what_the_notebook_shows(executed, name):
    folder, run = executed
    item = next(item for item in run["notebooks"] if item["name"] == name)
    page = (folder / f"{name}.html").read_text()
    for note in item["notes"]:
        assert note["what"] in page
    for tag in re.findall(r"<img[^>]*>", page):
        ends = tag[:2000] + tag[-2000:]  # between them is the image itself
        assert re.search(r'alt="[^"]{10,}"', ends), f"a figure without alt text: {tag[:60]}"
    assert "data:image/png;base64," in page or "<svg" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//[^"']+\.(js|css|png)""", page)
    assert ".ipynb)" not in page  # no link of Markdown is left over
    for target in re.findall(r'href="(\d\d_\w+\.html)"', page):
        assert (folder / target).exists(), f"{name} leads to {target}, which is not there"


def test_index_counts_them_all(executed):
    text = (executed[0] / "index.html").read_text()
    assert f"{len(NAMES)} of {len(NAMES)}" in text

"""Every notebook of the course under profile ci, by the strict runner, as `make run` does it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environment
from workshop import catalogue

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch")]

NAMES = [item.name for item in catalogue.existing(ROOT)]


@pytest.mark.parametrize("name", NAMES)
def test_notebook_passes_and_its_page_is_whole(
    name: str, course_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        # the budgets are for a quiet machine; a test only asks that no notebook hangs
        [sys.executable, "-m", "rn50", "workshop", "run", "--profile", "ci", "--out", out,
         "--time-limit", "900", ROOT / "notebooks" / f"{name}.ipynb"],
        # a script whose Gloo threads outlive it fails: now and then, they abort Python at its exit
        env=clean_environment(RN50_DATA=str(course_data), PYTHONPATH=str(ROOT / "tests/at_exit")),
        cwd=tmp_path, text=True, capture_output=True, timeout=1000, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (out / "course.json").exists(), done.stdout + done.stderr
    (item,) = json.loads((out / "course.json").read_text())["notebooks"]
    assert item["status"] == "passed", item["error"]
    assert item["notes"], "it shows no key result"
    assert "1 of 1" in (out / "index.html").read_text()

    page = (out / f"{name}.html").read_text()
    for note in item["notes"]:
        assert note["what"] in page
    for tag in re.findall(r"<img[^>]*>", page):
        ends = tag[:2000] + tag[-2000:]  # the image data is between them
        assert re.search(r'alt="[^"]{10,}"', ends), f"a figure without alt text: {tag[:60]}"
    assert "data:image/png;base64," in page or "<svg" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//[^"']+\.(js|css|png)""", page)
    assert ".ipynb)" not in page  # no link of Markdown is left over
    assert "absl::InitializeLog" not in page  # TensorFlow's notes on import
    for target in re.findall(r'href="(\d\d_\w+)\.html"', page):
        assert target in NAMES, f"{name} leads to {target}, which does not exist"

"""The index over a course run, with the training that it begins with, and the pages."""

from __future__ import annotations

import base64
import io
import json
import re

import pytest
from PIL import Image

from tests.workshop.conftest import write_notebook
from workshop.course import pages, run, training

MACHINE = {"processor": "a processor", "cores": 2, "memory": 2**33, "gpus": [],
           "bfloat16": "", "system": "a system", "python": "3"}  # fmt: skip


def outcome(number: int, status: str = run.PASSED, **more) -> run.Outcome:
    name = f"{number:02}_notebook"
    values = {
        "name": name, "title": f"{number:02} · Notebook {number}", "status": status,
        "seconds": 12.0, "limit": 90.0, "parameters": {"profile": "ci"},
        "notes": [{"what": "a figure", "value": 7, "unit": "s"}],
    }  # fmt: skip
    return run.Outcome(**(values | more))


def index(folder, *outcomes: run.Outcome, profile: str = "cpu", trained=None) -> str:
    about = {"started": "2 January 2026", "seconds": 61, "profile": profile, "machine": MACHINE,
             "command": "rn50 workshop run", "versions": {"numpy": "3"}}  # fmt: skip
    pages.index(folder, about, outcomes, trained)
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("profile", ["ci", "cpu"])
def test_index_has_figures_and_times_of_full_runs(tmp_path, profile):
    late = outcome(1, run.NOT_RUN, seconds=0.0, notes=[])
    html = index(tmp_path, outcome(0), late, profile=profile)
    assert ("a figure" in html) == (profile == "cpu")
    assert "0:00:12" in html and "0:00:00" not in html and "not run" in html


@pytest.mark.slow  # Matplotlib too
def test_index_shows_the_ladder_before_the_notebooks(tmp_path):
    report = {"images_per_s": 4.0, "input_ms": 1.0, "compute_ms": 9.0, "ranks": 1}
    report |= {"image_size": 64, "batch_size": 16}
    (tmp_path / "runs").mkdir()
    record = {"rungs": {"1_single": report}, "predictions": {}}
    (tmp_path / "runs" / "ladder.json").write_text(json.dumps(record))
    html = index(tmp_path, outcome(0))
    figure = html.index('alt="Rung 1, one device: 4 images/s.')
    assert html.index('id="ladder"') < figure < html.index('id="notebooks"')

    (tmp_path / "runs" / "ladder.json").rename(tmp_path / "runs" / "ladder-ci.json")
    short = index(tmp_path, outcome(0), profile="ci")  # too short to measure a speed
    assert "V100, FP32 400 images/s;" in short and "Rung 1" not in short


@pytest.mark.slow  # nbconvert takes seconds to import
def test_page_links_only_to_existing_pages(tmp_path):
    path = write_notebook(tmp_path / "00_notebook.ipynb")
    book = path.read_text().replace(
        "# 00_notebook title",
        "# Title\\n\\n[one](01_notebook.ipynb) [two](02_notebook.ipynb)"
        " [three](../exercises/ex00_start.ipynb) [four](https://example.org/a.ipynb)",
    )
    path.write_text(book)
    pages.page(tmp_path, outcome(0), ["00_notebook", "01_notebook"])
    html = (tmp_path / "00_notebook.html").read_text(encoding="utf-8")
    assert '<a href="01_notebook.html">one</a>' in html
    assert "two" in html and "02_notebook" not in html and "ex00_start" not in html
    assert 'href="https://example.org/a.ipynb"' in html
    download = next(tag for tag in re.findall(r"<a [^>]+>", html) if "download" in tag)
    assert 'href="00_notebook.ipynb"' in download


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_index_begins_with_the_training(tmp_path, capfd, monkeypatch, roadsigns_small):
    """The same training in seconds: on the small data, in profile ci."""
    monkeypatch.setenv("RN50_DATA", str(roadsigns_small.root))
    small = ("run", "-n", "1", "--profile", "ci", "--data-root", str(roadsigns_small.folder))
    monkeypatch.setattr(training, "TRAIN", small)
    done = training.train(tmp_path / "training")
    printed = capfd.readouterr().err
    assert done.report and "epoch 2/2" in printed, printed
    html = index(tmp_path, outcome(0), trained=done)
    assert html.index('id="training"') < html.index('id="notebooks"')
    assert f"<b>{done.report['metrics']['val.top1'][-1]:.1f}%</b>" in html
    (curve,) = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    Image.open(io.BytesIO(base64.b64decode(curve))).load()
    assert done.command in html

    monkeypatch.setattr(training, "TRAIN", (*small, "--data-root", str(tmp_path / "none")))
    failed = training.train(tmp_path / "failed")
    html = index(tmp_path, outcome(0), trained=failed)
    assert failed.report is None and "✗ failed" in html and failed.command in html

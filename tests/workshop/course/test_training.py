"""The training that a course run begins with, and what the index shows of it."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from tests.workshop.course.test_pages import course, outcome
from workshop.course import pages, training

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch")]


@pytest.fixture
def cut(monkeypatch, roadsigns_small):
    """The same training in seconds: of the small data, in profile ci."""
    monkeypatch.setenv("RN50_DATA", str(roadsigns_small.root))
    settings = ("run", "-n", "1", "--profile", "ci", "--data-root", str(roadsigns_small.folder))
    monkeypatch.setattr(training, "TRAIN", settings)


def test_index_begins_with_what_the_training_gave(cut, tmp_path, capfd):
    done = training.train(tmp_path / "training", print)
    shown = capfd.readouterr().err
    assert not done.error and "epoch 2/2" in shown, shown
    with np.load(tmp_path / "training" / "val.npz") as file:
        right = file["probabilities"].argmax(1) == file["labels"]
    assert done.scored == pytest.approx(100 * right.mean())
    kinds = [picture.right for picture in done.pictures]
    assert kinds.count(True) == min(4, right.sum()) and kinds.count(False) == min(4, (~right).sum())
    html = pages.index(course(outcome(0)), tmp_path, done).read_text(encoding="utf-8")
    assert f"<b>{done.scored:.1f} %</b>" in html
    images = re.findall(r'src="data:image/\w+;base64,([^"]+)"', html)
    assert len(images) == 1 + len(done.pictures)
    for image in images:
        Image.open(io.BytesIO(base64.b64decode(image))).load()
    assert done.command in html and done.resume in html
    # a second call takes what is there
    before = (tmp_path / "training" / "report.json").stat().st_mtime_ns
    assert training.train(tmp_path / "training", print).report == done.report
    assert (tmp_path / "training" / "report.json").stat().st_mtime_ns == before


def test_training_that_fails_is_named_in_the_index(cut, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "TRAIN", (*training.TRAIN, "--data-root", str(tmp_path / "none")))
    done = training.train(tmp_path / "training", print)
    html = pages.index(course(outcome(0)), tmp_path, done).read_text(encoding="utf-8")
    assert done.error == "rn50 run ended with status 2" and done.error in html
    assert done.resume in html

"""Curves from report files, and the style that every figure shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rn50 import plot
from rn50lib.errors import UserError
from rn50lib.report import Report

Run = Callable[..., Any]


def write_report(path: Path, losses: list[float | None], validated: bool = True) -> Path:
    made = Report(model="resnet50", ngpus=1, cmd=["rn50"])
    for loss in losses:
        top1 = None if loss is None else 100 - 10 * loss
        made.add("train", {"loss": loss, "top1": top1, "time": 0.5, "total_ips": 64.0})
        if validated:
            made.add("val", {"loss": loss, "top1": top1})
    made.write(path)
    return path


def test_curves_show_what_the_reports_hold(tmp_path: Path) -> None:
    from rn50lib.report import load

    reports = {
        "one": load(write_report(tmp_path / "a.json", [3.0, 2.0, None, 1.0])),
        "two": load(write_report(tmp_path / "b.json", [2.5, 1.5], validated=False)),
    }
    figure = plot.curves(reports)
    loss, train, val = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == ["epoch"] * 3
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "cross-entropy, nats", "top-1, per cent", "top-1, per cent"
    ]  # fmt: skip
    assert all(axes.get_title(loc="left") for axes in figure.axes)
    first, second = loss.lines
    assert list(first.get_xdata()) == [1, 2, 3, 4] and list(second.get_xdata()) == [1, 2]
    assert [str(y) for y in first.get_ydata()] == ["3.0", "2.0", "nan", "1.0"]
    assert list(train.lines[1].get_ydata()) == [75.0, 85.0]
    assert [line.get_label() for line in val.lines] == ["one"]
    # colours and markers tell them apart, each for itself
    assert first.get_color() != second.get_color() and first.get_marker() != second.get_marker()
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["one", "two"]


def test_every_colour_has_a_marker_of_its_own() -> None:
    assert len(set(plot.COLOURS)) == len(plot.COLOURS) == len(set(plot.MARKERS))


def test_the_style_ends_with_its_block() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    with plot.style():
        assert matplotlib.rcParams["axes.grid"] is True
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_plot_verb_writes_a_picture(rn50: Run, tmp_path: Path, suffix: str) -> None:
    one = write_report(tmp_path / "a.json", [3.0, 2.0])
    two = write_report(tmp_path / "b.json", [2.0, 1.0])
    shown = rn50("plot", one, two, "-o", f"new/curves.{suffix}", "--labels", "fp32", "bf16")
    assert (shown.status, shown.out) == (0, f"new/curves.{suffix}\n")
    content = (tmp_path / "new" / f"curves.{suffix}").read_bytes()
    if suffix == "png":
        with Image.open(tmp_path / "new" / "curves.png") as picture:
            assert picture.size > (800, 200)
            assert len(picture.convert("RGB").getcolors(2**24)) > 50  # not an empty page
    else:
        assert content.startswith({"svg": b"<?xml", "pdf": b"%PDF"}[suffix])


def test_reports_without_accuracy_say_so(tmp_path: Path) -> None:
    from rn50lib.report import load

    report = load(write_report(tmp_path / "a.json", [None, None]))
    with pytest.raises(UserError, match="bench.*--no-metrics"):
        plot.curves({"bench": report})


@pytest.mark.filterwarnings("error")
def test_reports_that_only_validated_are_named_in_their_panel(tmp_path: Path) -> None:
    report = {"metrics": {"val.top1": [40.0, 50.0]}}
    figure = plot.curves({"a": report, "b": report})
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    assert legend.axes.get_title(loc="left") == "Validation accuracy"


def test_a_picture_that_cannot_be_written(rn50: Run, tmp_path: Path) -> None:
    report = write_report(tmp_path / "a.json", [1.0, 0.5])
    assert "c.doc" in rn50("plot", report, "-o", "c.doc").error
    (tmp_path / "file").touch()
    assert "file/c.png" in rn50("plot", report, "-o", "file/c.png").error
    assert ".png" in rn50("plot", report, "-o", "curves").error
    (tmp_path / "folder.png").mkdir()
    assert "folder.png" in rn50("plot", report, "-o", "folder.png").error
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.suffix == ".png") == [
        "folder.png"
    ]
    assert not list(tmp_path.glob(".folder*")) and not list(tmp_path.glob("curves*"))

"""`rn50 plot`: curves from report files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from rn50 import plot
from rn50.reports import load
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
    reports = {
        "one": load(write_report(tmp_path / "a.json", [3.0, 2.0, None, 1.0])),
        "two": load(write_report(tmp_path / "b.json", [2.5, 1.5], validated=False)),
    }
    loss, train, val = plot.curves(reports).axes
    first, second = loss.lines
    assert list(first.get_xdata()) == [1, 2, 3, 4] and list(second.get_xdata()) == [1, 2]
    assert [str(y) for y in first.get_ydata()] == ["3.0", "2.0", "nan", "1.0"]
    assert list(train.lines[1].get_ydata()) == [75.0, 85.0]
    assert [line.get_label() for line in val.lines] == ["one"]
    # colours and markers both differ
    assert first.get_color() != second.get_color() and first.get_marker() != second.get_marker()
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["one", "two"]


def test_the_verb_writes_an_image(rn50: Run, tmp_path: Path) -> None:
    """The other formats are in `tests/test_files.py`."""
    one = write_report(tmp_path / "a.json", [3.0, 2.0])
    two = write_report(tmp_path / "b.json", [2.0, 1.0])
    shown = rn50("plot", one, two, "-o", "new/curves.png", "--labels", "fp32", "bf16")
    assert (shown.status, shown.out) == (0, "new/curves.png\n")
    with Image.open(tmp_path / "new" / "curves.png") as image:
        assert image.size > (800, 200)
        assert len(image.convert("RGB").getcolors(2**24)) > 50  # not an empty page


def test_reports_of_the_same_name_are_two_curves(rn50: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_report(tmp_path / name / "report.json", [3.0, 2.0])
    rn50("plot", "one/report.json", "two/report.json", "-o", "c.svg")
    assert all(f"<!-- {name}/report -->" in Path("c.svg").read_text() for name in ("one", "two"))
    rn50("plot", "one", "two", "-o", "c.svg")
    assert all(f"<!-- {name} -->" in Path("c.svg").read_text() for name in ("one", "two"))
    assert (
        "one/report: pass --labels" in rn50("plot", *["one/report.json"] * 2, "-o", "c.svg").error
    )


def test_errors_name_the_file(rn50: Run, tmp_path: Path) -> None:
    report = write_report(tmp_path / "a.json", [1.0, 0.5])
    empty = write_report(tmp_path / "b.json", [None, None])
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    assert "--no-metrics" in rn50("plot", empty, "-o", "c.png").error
    assert ".png" in rn50("plot", report, "-o", "curves").error
    for bad in ("c.doc", "file/c.png", "folder.png"):
        assert bad in rn50("plot", report, "-o", bad).error
    assert {entry.name for entry in tmp_path.iterdir()} == {
        ".file", "a.json", "b.json", "file", "folder.png"
    }  # fmt: skip

"""`rn50 compare`: reports and benchmarks next to each other and to published figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rn50lib.report import Report

Rn50 = Callable[..., Any]


def benchmark(path: Path, metrics: dict[str, Any], reasons: dict[str, Any] | None = None) -> None:
    """Write a file as the reference's benchmark does, with our reasons."""
    found: dict[str, Any] = {"model": "resnet50", "ngpus": [], "bs": []}
    keys = sorted({key for row in metrics.values() for cell in row.values() for key in cell})
    found |= {"metric_keys": keys, "metrics": metrics}
    if reasons:
        found["env"] = {"cells": reasons}
    path.write_text(json.dumps(found))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    train = "train.total_ips"
    benchmark(tmp_path / "old.json", {
        "1": {"64": {train: 100.0}, "128": {train: 120.0}}, "4": {"64": {train: 320.0}},
    })  # fmt: skip
    benchmark(
        tmp_path / "new.json",
        {"1": {"64": {train: 150.0}}, "4": {"64": {train: None}, "128": {train: 700.0}}},
        {
            "1": {"64": {"train.total_ips": {"epochs": [145.0, 155.0]}}},
            "4": {
                "64": {"reason": "rank 1 was killed by signal 9"},
                "128": {"train.total_ips": {"epochs": [600.0, 840.0]}},
            },
        },
    )
    for name, speeds in (("a", [10.0, 40.0, 60.0]), ("b", [96.0])):
        made = Report(
            "resnet50", 2, ["rn50"], {"axes": {"batch_size": {"value": 32}}}, total_duration=7200.0
        )
        for number, ips in enumerate(speeds):
            made.add("train", {"total_ips": ips, "loss": 2.5, "top1": 40.0 - number})
            made.add("val", {"top1": 50.0 + ips, "total_ips": None})
        made.write(tmp_path / f"{name}.json")
    return tmp_path


def line(text: str, *begin: str) -> list[str]:
    """Return the words of the first line that begins with these."""
    return next(w for w in map(str.split, text.splitlines()) if w[: len(begin)] == list(begin))


def test_benchmarks_are_divided_if_workers_and_batch_match(rn50: Rn50, files: Path) -> None:
    text = rn50("compare", "old.json", "new.json").out
    assert line(text, "1", "64") == ["1", "64", "100.0", "150.0", "1.50"]
    assert line(text, "1", "128") == ["1", "128", "120.0", "-", "-"]
    assert line(text, "4", "64") == ["4", "64", "320.0", "failed", "-"]
    assert line(text, "4", "128") == ["4", "128", "-", "700.0", "-"]
    assert "new, n 4, batch 64: rank 1 was killed by signal 9" in text
    assert "new, n 4, batch 128: train.total_ips was 600.0 to 840.0 in its epochs" in text
    assert "batch 64: train" not in text


def test_reports_are_compared_by_speed_and_by_accuracy(rn50: Rn50, files: Path) -> None:
    text = rn50("compare", "a.json", "b.json", "--labels", "before", "after").out
    # the harmonic mean of 40 and 60: the first epoch is a warm-up
    assert line(text, "2", "32") == ["2", "32", "48.00", "96.00", "2.00"]
    assert line(text, "val.top1", "2") == ["val.top1", "2", "110.0", "146.0"]
    assert line(text, "train.top1", "2") == ["train.top1", "2", "38.000", "40.000"]  # the last
    assert line(text, "hours", "2") == ["hours", "2", "2.000", "2.000"]
    assert "before" in text and "after" in text and "val.total_ips" not in text
    for name in ("a", "b"):
        (files / "runs" / name).mkdir(parents=True)
        (files / f"{name}.json").rename(files / "runs" / name / "report.json")
    assert line(rn50("compare", "runs/a", "runs/b").out, "workers")[2:] == ["a", "b", "b", "/", "a"]
    same = rn50("compare", "runs/a/report.json", "runs/b/report.json").out
    assert line(same, "workers")[2:4] == ["a/report", "b/report"]
    mixed = rn50("compare", "runs/a", "old.json").out
    assert "no workers and batch in common" in mixed


def test_published_figures_come_with_their_source(rn50: Rn50, files: Path) -> None:
    text = rn50("compare", "old.json", "--published", "DGX-1/mixed").out
    assert line(text, "8", "208") == ["8", "208", "-", "10,263.2", "-"]
    assert line(text, "val.top1", "8")[-1] == "76.490"
    assert line(text, "hours", "8")[-1] == "3.300" and "cannot be repeated here: V100" in text
    both = rn50("compare", "--published", "DGX-1/mixed", "--published", "DGX-1/FP32").out
    inference = both[both.index("val.total_ips") :]
    assert line(inference, "1", "64") == ["1", "64", "3,428.0", "1,236.0", "0.36"]
    assert line(inference, "1", "208") == ["1", "208", "3,832.0", "-", "-"]


def test_different_networks_and_sizes_are_not_divided(rn50: Rn50, tmp_path: Path) -> None:
    sizes = {"big": ("resnet50", 224), "tiny": ("resnet-tiny", 224), "small": ("resnet50", 64)}
    for name, (network, size) in sizes.items():
        axes = {"batch_size": {"value": 32}, "image_shape": {"value": size}}
        made = Report(network, 1, ["rn50"], {"axes": axes}, total_duration=1.0)
        made.add("train", {"total_ips": 50.0})
        made.write(tmp_path / f"{name}.json")
    text = rn50("compare", "big.json", "tiny.json", "small.json").out
    assert line(text, "1", "32") == ["1", "32", *["50.00"] * 3, "-", "-"]
    assert "things: big resnet50, 224 px; tiny resnet-tiny, 224 px" in text
    assert "; small resnet50, 64 px" in text and "in common" not in text


def test_settings_that_decide_the_speed_are_named(rn50: Rn50, files: Path) -> None:
    for name, more in (
        ("a", {"dtype": "float32"}),
        ("b", {"dtype": "bfloat16", "compile": True, "step": 500.0}),
    ):
        report = json.loads((files / f"{name}.json").read_text())
        axes = report["env"]["axes"] | {key: {"value": value} for key, value in more.items()}
        report["env"]["axes"] = axes | {"seed": {"value": name}}
        (files / f"{name}.json").write_text(json.dumps(report))
    text = rn50("compare", "a.json", "b.json", "old.json").out
    assert text.endswith(
        "\na / b differ: dtype float32 / bfloat16, compile off / True, step off / 500.0\n"
    )


@pytest.mark.parametrize(
    "args, words",
    [
        (("old.json",), ("nothing to compare with", "--published DGX-1/mixed")),
        (("old.json", "none.json"), ("none.json", "cannot be read")),
        (("old.json", "other.json"), ("other.json", "neither a report", "rn50 benchmark")),
        (("old.json", "list.json"), ("list.json", "neither a report")),
        (("old.json", "flat.json"), ("flat.json", "train.loss is not a list of numbers")),
        (("old.json", "below.json"), ("below.json", "-5 is not a speed")),
        (("old.json", "old.json"), ("/old: pass --labels", "all different")),
        (("old.json", "--published", "TPU"), ("--published: invalid", "DGX-A100/TF32")),
        (("old.json", "new.json", "--labels", "x"), ("x: pass --labels", "2 names")),
    ],
)  # fmt: skip
def test_errors_name_the_file(
    rn50: Rn50, files: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    (files / "other.json").write_text('{"results": {}}')
    (files / "list.json").write_text("[1]")
    (files / "flat.json").write_text('{"ngpus": 1, "metrics": {"train.loss": 5}}')
    benchmark(files / "below.json", {"1": {"64": {"train.total_ips": -5}}})
    error = rn50("compare", *args).error
    assert all(word in error for word in words), error

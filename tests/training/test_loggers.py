"""Loggers besides progress.jsonl: your own function, MLflow, Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import TINY, Ended, Photos, strict_json

Run = Callable[..., Ended]
HOOK = """
import json
calls = open("calls.jsonl", "a")

def tell(line):
    json.dump(line, calls)
    calls.write("\\n")
    calls.flush()

def tell_badly(line):
    raise ValueError("no such table")
"""


def train(rn50: Run, photos: Photos, *flags: str) -> Ended:
    ended = rn50("train", "--data-root", photos.root, *TINY, "-e", "2", "--run-dir", "run",
                 "--disp-batches", "2", *flags)  # fmt: skip
    assert ended.status == 0, ended.err
    return ended


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_function_gets_every_line_of_the_file_and_the_report(rn50: Run, photos: Photos) -> None:
    Path("hook.py").write_text(HOOK)
    train(rn50, photos, "--logger", "hook.py:tell")
    *lines, last = map(json.loads, Path("calls.jsonl").read_text().splitlines())
    written = map(json.loads, Path("run", "progress.jsonl").read_text().splitlines())
    assert lines == list(written) and len(lines) > 4
    assert last == {"phase": "report", "report": strict_json(Path("run", "report.json"))}


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_logger_that_fails_does_not_end_the_training(rn50: Run, photos: Photos) -> None:
    Path("hook.py").write_text(HOOK)
    ended = train(rn50, photos, "--logger", "hook.py:tell_badly", "--logger", "tensorboard")
    assert ended.err.count("no such table") == 1 and "continues without it" in ended.err
    assert len(strict_json(Path("run", "report.json"))["metrics"]["val.loss"]) == 2
    assert list(Path("run", "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("comet", "use tensorboard, wandb, mlflow, or your own FILE.py:FUNCTION"),
        ("none.py:tell", "use tensorboard, wandb, mlflow, or your own FILE.py:FUNCTION"),
        *(
            (name, f"`pip install {name}`")
            for name in ("wandb", "mlflow")
            if importlib.util.find_spec(name) is None
        ),
    ],
)
def test_missing_logger_is_reported(rn50: Run, name: str, problem: str) -> None:
    line = rn50("run", "--loader", "synthetic", "--logger", name).error
    assert line.startswith(f"--logger {name}") and problem in line


@pytest.mark.slow
@pytest.mark.needs("torch", "mlflow")
def test_mlflow_keeps_the_curve_the_flags_and_the_report(
    rn50: Run, photos: Photos, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    train(rn50, photos, "--logger", "mlflow")
    (run,) = (tmp_path / "mlruns" / "0").glob("*/")
    report = strict_json(Path("run", "report.json"))
    curve = (run / "metrics" / "epoch" / "val.loss").read_text().splitlines()
    read = [(float(value), int(step)) for _, value, step in map(str.split, curve)]
    assert [step for _, step in read] == [0, 1]
    assert [value for value, _ in read] == pytest.approx(report["metrics"]["val.loss"])
    assert (run / "params" / "network").read_text() == "tiny"
    assert strict_json(run / "artifacts" / "report.json") == report
    assert "status: 3" in (run / "meta.yaml").read_text()  # finished


@pytest.mark.slow
@pytest.mark.needs("torch", "wandb")
def test_weights_and_biases_writes_its_file_offline(
    run_cli: Callable[..., Any], photos: Photos, tmp_path: Path
) -> None:
    done = run_cli("run", "-n", "1", "--data-root", photos.root, *TINY, "-e", "2", "--logger",
                   "wandb", env={"WANDB_MODE": "offline"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    for name in (b"epoch/val.loss", b"train/loss", b"label_smoothing"):
        assert name in file.read_bytes(), name


@pytest.mark.slow
@pytest.mark.needs("torch", "wandb")
def test_refused_login_is_reported(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    done = run_cli("run", "-n", "1", "--loader", "synthetic", *TINY, "--logger", "wandb",
                   env={"HOME": os.fspath(tmp_path), "WANDB_MODE": "online", "WANDB_API_KEY": ""}
                   )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: --logger wandb: No API key configured" in done.stderr

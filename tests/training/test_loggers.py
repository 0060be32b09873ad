"""Loggers besides progress.jsonl: TensorBoard and your own function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.parametrize("name", ["comet", "wandb", "none.py:tell"])
def test_missing_logger_is_reported(rn50: Run, name: str) -> None:
    line = rn50("run", "--loader", "synthetic", "--logger", name).error
    assert line.startswith(f"--logger {name}") and "use tensorboard or your own FILE.py" in line

"""The script for a lent GPU, with some of its steps, small and without one."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import measure
from tests.conftest import clean_environment


def test_only_takes_a_name_before_a_part_of_one() -> None:
    names = ["graph", "ours, graph", "eager"]
    assert measure.chosen(names, Namespace(only=["graph"])) == ["graph"]
    assert measure.chosen(names, Namespace(only=["grap"])) == ["graph", "ours, graph"]


@pytest.mark.acceptance
def test_a_step_that_fails_is_repeated_and_one_that_passed_is_not(
    repository: Path, tmp_path: Path
) -> None:
    def run(only: str, **env: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            ["sh", str(repository / "scripts" / "gpu_day.sh")],
            env=clean_environment(CPU="1", PYTHON=sys.executable, OUT=str(tmp_path), ONLY=only)
            | env,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        return done.returncode, [line.partition(" ")[2] for line in done.stdout.splitlines()]

    assert run("doctor", MINUTES="0") == (1, ["doctor: no time left"])
    assert run("records") == (1, ["records: failed (2)"])  # it has no images
    assert "images" in (tmp_path / "records.log").read_text()
    collected = json.loads((tmp_path / "gpu_day.json").read_text())
    assert collected["steps"]["records"] == "failed (2)"
    assert run("images") == (0, ["images: ok"])
    assert run("records") == (0, ["records: ok"])
    assert run("records") == (0, [])
    assert run("doctor") == (0, ["doctor: ok"])
    assert json.loads((tmp_path / "doctor.log").read_text())["checks"][0]["name"] == "system"
    assert len((tmp_path / "status.txt").read_text().splitlines()) == 5

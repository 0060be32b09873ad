"""Each failure of the gallery: the broken run shows it, its cause is named, its fix works."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, clean_environment
from workshop.course import gallery

ENTRIES = gallery.load(ROOT)
RECORDED = ROOT / gallery.FOLDER / "recorded.json"
RECORD = "RN50_GALLERY_RECORD" in os.environ


def params() -> list[Any]:
    return [
        pytest.param(
            name, id=name,
            marks=[pytest.mark.needs(*entry["needs"]),
                   pytest.mark.acceptance if entry.get("long") else pytest.mark.slow],
        )
        for name, entry in ENTRIES.items()
    ]  # fmt: skip


def shell(line: str, folder: Path, data: Path) -> str:
    """Run a command line as a reader would and return all that it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = clean_environment(PATH=path, RN50_DATA=str(data), RN50_RUNS=str(folder / "runs"))
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=300)  # fmt: skip
    return done.stdout


def check(output: str, patterns: list[str]) -> str:
    found = gallery.excerpt(output, patterns)
    assert found is not None, f"{patterns}\nnot in\n{output}"
    return found


@pytest.mark.parametrize("name", params())
def test_failure_is_shown_named_and_fixed(name: str, tmp_path: Path, roadsigns_small) -> None:
    entry, data = ENTRIES[name], roadsigns_small.root
    shutil.copytree(ROOT / gallery.FOLDER, tmp_path / "gallery")
    folder = tmp_path / "gallery" / name
    # a run that hangs is ended, and so observed, by the command that names the cause
    output = "" if entry.get("hangs") else shell(entry["run"], folder, data)
    named = shell(entry["name"], folder, data)
    broken, cause = check(output or named, entry["symptom"]), check(named, entry["cause"])
    subprocess.run(["git", "apply", "-p0", "fix.diff"], cwd=folder, check=True)
    fixed = shell(entry["run"], folder, data)
    check(fixed, entry["passes"])
    assert gallery.excerpt(fixed, entry["symptom"]) is None, fixed
    if RECORD:
        record(name, broken.replace(str(tmp_path), ""), cause.replace(str(tmp_path), ""))


def record(name: str, broken: str, cause: str) -> None:
    import torch

    seen = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    seen[name] = {"broken": broken, "cause": cause}
    python, cores = platform.python_version(), len(os.sched_getaffinity(0))
    versions = f"Python {python} and PyTorch {torch.__version__} on {cores} cores"
    seen["on"] = f"on {time.strftime('%Y-%m-%d')} with {versions}"
    RECORDED.write_text(json.dumps(seen, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_is_small(name: str) -> None:
    scripts = list((ROOT / gallery.FOLDER / name).glob("broken.*"))
    assert len(scripts) == 1 and len(scripts[0].read_text().splitlines()) <= 40

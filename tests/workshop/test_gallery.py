"""Each failure of the gallery: the broken run shows it, its cause is named, its fix works."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, clean_environment
from tests.launch import fake_gpus
from workshop.course import gallery

RECORDED = ROOT / gallery.FOLDER / "recorded.json"
OLD_DRIVER = fake_gpus.environment([fake_gpus.V100], "470.82.01", "11.4")


def param(name: str, entry: dict[str, Any]) -> Any:
    tier = pytest.mark.acceptance if entry.get("long") else pytest.mark.slow
    needs = pytest.mark.needs(*entry.get("needs", ["torch"]))
    return pytest.param(name, entry, id=name, marks=[tier, needs])


def shell(line: str, folder: Path, data: Path, **more: str) -> str:
    """Run a command line as a reader would and return all that it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = clean_environment(PATH=path, RN50_DATA=str(data), RN50_RUNS=str(folder / "runs"), **more)
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=300)  # fmt: skip
    text = done.stdout.replace(str(folder.parents[1]), "")
    # PyTorch's logs: the time, process and file before a line; the path of the script after it
    text = re.sub(r"^[A-Z]\d{4} \S+ \d+ \S+\] ", "", text, flags=re.M)
    return re.sub(r" +# \S*pytest-of-.*", "", re.sub(r"(?<=\S) {30,}", "  ", text))


def excerpt(output: str, patterns: list[str]) -> str:
    """Return the lines that match, with … for the others. Every pattern has to match."""
    missing = [pattern for pattern in patterns if not re.search(pattern, output, re.M)]
    assert not missing, f"{missing}\nnot in\n{output}"
    text = "\n".join(line.rstrip()[:300] if any(re.search(p, line) for p in patterns) else "…"
                     for line in output.splitlines())  # fmt: skip
    return re.sub(r"^(.*\n)\1+", r"\1", f"{text}\n", flags=re.M).strip("…\n")


def apply(fix: str, script: Path) -> None:
    """Change a script as its fix says, which is a diff without line numbers."""
    for hunk in fix.split("@@\n"):
        lines, text = hunk.strip("\n").split("\n"), script.read_text()
        old = "\n".join(line[1:] for line in lines if not line.startswith("+"))
        new = "\n".join(line[1:] for line in lines if not line.startswith("-"))
        assert text.count(old) == 1, old
        script.write_text(text.replace(old, new))


@pytest.mark.parametrize("name, entry", gallery.load(ROOT).items())
def test_fix_applies_to_a_short_script(name: str, entry: dict[str, Any], tmp_path: Path) -> None:
    (script,) = (ROOT / gallery.FOLDER / name).glob("broken.*")
    assert len(script.read_text().splitlines()) <= 40
    apply(entry["fix"], Path(shutil.copy(script, tmp_path)))


@pytest.mark.parametrize("name, entry", [param(*item) for item in gallery.load(ROOT).items()])
def test_failure_is_shown_named_and_fixed(
    name: str, entry: dict[str, Any], tmp_path: Path, roadsigns_small
) -> None:
    shutil.copytree(ROOT / gallery.FOLDER, tmp_path / "gallery")
    folder, data = tmp_path / "gallery" / name, roadsigns_small.root
    printed = {"run": "\n".join(entry["symptom"])}
    if "quoted" in entry:  # from its thread: it needs a GPU
        printed["name"] = excerpt(shell(entry["name"], folder, data, **OLD_DRIVER), entry["cause"])
    elif entry.get("observed"):  # the command that names the cause shows the symptom
        output = shell(entry["name"], folder, data)
        printed = {"run": "", "name": excerpt(output, entry["symptom"] + entry["cause"])}
    else:
        printed["run"] = excerpt(shell(entry["run"], folder, data), entry["symptom"])
        printed["name"] = excerpt(shell(entry["name"], folder, data), entry["cause"])
    (script,) = folder.glob("broken.*")
    apply(entry["fix"], script)
    if "quoted" not in entry:
        output = shell(entry["run"], folder, data)
        excerpt(output, entry["passes"])
        assert not all(re.search(pattern, output, re.M) for pattern in entry["symptom"]), output
    if "RN50_GALLERY_RECORD" in os.environ:
        record(name, printed)


SLOW = """
import sys, time
time.sleep(int(sys.argv[1]))  # such as a long download, or one step on a slow machine
print("healthy")
"""


@pytest.mark.acceptance
def test_watch_never_ends_a_slow_run(tmp_path: Path) -> None:
    """A run whose stack does not change is reported, and ends by itself."""
    (tmp_path / "slow.py").write_text(SLOW)
    watch = ROOT / gallery.FOLDER / "watch.py"
    output = shell(f"python {watch} python slow.py 7; echo status $?", tmp_path, tmp_path)
    assert "healthy" in output and "status 0" in output, output
    assert "watch: rank ? is at slow.py:3: time.sleep(" in output, output
    output = shell(f"python {watch} --end 5 python slow.py 60; echo status $?", tmp_path, tmp_path)
    assert "healthy" not in output and "status 0" not in output, output


def record(name: str, printed: dict[str, str]) -> None:
    import torch

    versions = f"Python {platform.python_version()} and PyTorch {torch.__version__}"
    on = f"on {time.strftime('%Y-%m-%d')} with {versions} on {os.cpu_count()} cores"
    seen = json.loads(RECORDED.read_text()) | {name: printed, "on": on}
    RECORDED.write_text(json.dumps(seen, indent=1, sort_keys=True, ensure_ascii=False) + "\n")

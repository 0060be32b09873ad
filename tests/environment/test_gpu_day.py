"""The script for a lent GPU, with some of its steps, small and without one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import clean_environment
from tests.launch import fake_gpus
from tests.support import write_photo

pytestmark = pytest.mark.slow


def command(repository: Path, folder: Path, *flags: str) -> list[str]:
    script = str(repository / "scripts" / "gpu_day.py")
    places = ["--out", str(folder / "day.json"), "--work", str(folder / "work")]
    return [sys.executable, script, "--cpu", "--python", sys.executable, *places, *flags]


def test_steps_fail_are_left_out_and_are_made_up_for(repository: Path, tmp_path: Path) -> None:
    def steps(status: int, *flags: str) -> tuple[dict, str]:
        done = subprocess.run(
            command(repository, tmp_path, *flags),
            env=clean_environment(), capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return json.loads((tmp_path / "day.json").read_text()), done.stdout

    day, _ = steps(1, "--minutes", "0", "--only", "doctor", "records")
    assert [s["status"] for s in day["steps"].values()] == ["not begun: no time was left"] * 2
    day, _ = steps(1, "--only", "records", "score")  # what they need is not there
    for name, problem in (("records", "pictures"), ("score", "model")):
        assert day["steps"][name]["status"] == "failed" and day["steps"][name]["exit"] == 2
        assert problem in " ".join(day["steps"][name]["tail"])
    day, _ = steps(1, "--only", "doctor", "pictures", "records")
    named = {name: step["status"] for name, step in day["steps"].items()}
    assert named == {"doctor": "ok", "pictures": "ok", "records": "ok", "score": "failed"}
    assert day["steps"]["doctor"]["figures"]["checks"][0]["name"] == "system"
    assert day["machine"]["python"][0].startswith("Python 3") and day["cpu"]
    assert any(line.startswith("numpy==") for line in day["machine"]["packages"])
    _, printed = steps(1, "--only", "doctor", "pictures", "records")
    assert "begun" not in printed
    (tmp_path / "day.json").write_text(json.dumps(day | {"cpu": False}))  # not to be mixed
    other = subprocess.run(command(repository, tmp_path), capture_output=True, text=True)
    assert other.returncode == 1 and "day.json: the day of another kind" in other.stderr


def test_a_day_that_is_cut_off_leaves_its_file_and_no_process(
    repository: Path, tmp_path: Path
) -> None:
    day = subprocess.Popen(
        command(repository, tmp_path, "--only", "pictures", "signs"),
        env=clean_environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert day.stdout is not None
    while "signs: begun" not in day.stdout.readline():
        assert day.poll() is None
    time.sleep(1)
    day.send_signal(signal.SIGTERM)
    assert day.wait(60) == 143
    steps = json.loads((tmp_path / "day.json").read_text())["steps"]
    assert steps["pictures"]["status"] == "ok" and steps["signs"]["status"] == "begun"
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
    assert not [words for words in left if any(str(tmp_path) in word for word in words or ())]


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_a_gpu_is_asked_for_what_the_commands_know(repository: Path, tmp_path: Path) -> None:
    """Every training and benchmark of the day, as far as `--dry-run` goes, beside an H100."""
    ask = "import sys, pathlib, json, gpu_day; print(json.dumps([s.command for s in gpu_day.plan("
    ask += "sys.executable, False, pathlib.Path(sys.argv[1]))]))"
    done = subprocess.run(
        [sys.executable, "-c", ask, str(tmp_path)],
        env=clean_environment(PYTHONPATH=str(repository / "scripts")),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    write_photo(tmp_path / "pictures" / "train" / "a" / "0.jpg", 0)
    write_photo(tmp_path / "pictures" / "val" / "a" / "0.jpg", 0)
    env = clean_environment(**fake_gpus.environment([fake_gpus.H100]))
    seen = 0
    for words in json.loads(done.stdout):
        if words[3:4] in (["benchmark"], ["run"]):
            seen += 1
            told = subprocess.run(
                [*words, "--dry-run"], cwd=tmp_path, env=env, capture_output=True, text=True
            )
            assert told.returncode == 0, (words, told.stderr)
            assert "--profile gpu" in told.stdout
    assert seen >= 12

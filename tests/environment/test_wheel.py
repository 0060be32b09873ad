"""The wheel in an environment without the checkout: it draws its images and trains."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environment


def left_out(folder: str, names: list[str]) -> set[str]:
    at_the_top = shutil.ignore_patterns("build", "data", "runs", "answers", ".*", "*.egg-info")
    return at_the_top(folder, names) if folder == str(ROOT) else set()


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_wheel_trains_on_images_that_it_draws(tmp_path: Path) -> None:
    def run(*words: str | Path) -> str:
        done = subprocess.run(list(map(str, words)), cwd=tmp_path, env=env, text=True,
                              capture_output=True)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    env = {k: v for k, v in clean_environment().items() if k != "PYTHONPATH"}
    shutil.copytree(ROOT, tmp_path / "source", ignore=left_out)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w",
        tmp_path, tmp_path / "source")  # fmt: skip
    shutil.rmtree(tmp_path / "source")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    bin_folder = tmp_path / "venv" / "bin"
    (wheel,) = tmp_path.glob("*.whl")
    run(bin_folder / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)
    # the packages that the wheel asks for are those of this environment, the checkout is not
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    here = Path(run(bin_folder / "python", "-c", ask).strip())
    (here / "packages.pth").write_text(sysconfig.get_path("purelib"))

    # the program that `rn50 run` would start for the whole of it, which takes minutes
    run(bin_folder / "python", "-m", "data_prep.roadsigns", "data/roadsigns", "--train", "48",
        "--val", "24", "--records")  # fmt: skip
    run(bin_folder / "rn50", "run", "--profile", "ci", "-n", "2", "--comm", "ddp",
        "--model-prefix", "signs", "--run-dir", "run")  # fmt: skip
    found = json.loads((tmp_path / "run" / "report.json").read_text())
    assert len(found["metrics"]["val.top1"]) == 2
    assert f"{tmp_path}/data/roadsigns" in found["env"]["data"]["train"]
    assert "val.top1" in run(bin_folder / "rn50", "score", "signs", "2")
    where = run(bin_folder / "python", "-c", "import rn50lib; print(rn50lib.__file__)")
    assert where.startswith(str(here))

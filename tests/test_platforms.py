"""Other systems: what the doctor says of them, a clone made on Windows, and a Mac's differences.

There is no Mac here: the last tests imitate one on Linux.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep import output
from rn50 import doctor
from rn50lib import lifetime
from tests.conftest import ROOT, clean_environment
from tests.support import Photos

# as on macOS; forkserver, the default of Python 3.14 on Linux, needs the same of a script
SPAWN = """\
from multiprocessing import context
context._default_context._default_context = context.SpawnContext()
"""


@pytest.mark.parametrize(
    ("system", "machine", "release", "tried"),
    [
        ("Linux", "x86_64", "6.1.0-13-amd64", True),
        ("Linux", "aarch64", "6.1.0-13-arm64", False),
        ("Darwin", "arm64", "23.4.0", False),
    ],
)
def test_untested_platforms_are_reported(monkeypatch, system, machine, release, tried) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "release", lambda: release)
    check = next(check for check in doctor.check_machine() if check.name == "system")
    assert (check.status == "ok") == tried and ("docs/platforms.md" in check.remedy) != tried


@pytest.mark.acceptance
def test_clone_with_crlf_conversion_is_the_same(repository: Path, tmp_path: Path) -> None:
    """Git for Windows converts line ends by default, and such a clone may be used in WSL2."""
    clone = tmp_path / "clone"
    git = ["git", "clone", "--quiet", "-c", "core.autocrlf=true", repository, clone]
    subprocess.run(git, check=True, capture_output=True)
    for script in [*clone.glob("scripts/*.sh"), clone / ".ci" / "run"]:
        subprocess.run(["bash", "-n", script], check=True)
    checked = subprocess.run(
        [sys.executable, "-m", "rn50", "workshop", "build", "--check"],
        cwd=clone, env=os.environ | {"PYTHONPATH": str(clone)}, capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (
            "exercises/ladder/1_single.py --data {data} --image-size 32 --batch-size 4 --steps 1",
            "images_per_s",
        ),
        ("exercises/gallery/worker_random/broken.py 2", "2 workers, 16 samples: "),
        ("-m data_prep.tfrecord {data} {out}", "wrote 67 images"),
    ],
)
def test_programs_start_workers_by_spawn(command, printed, photos: Photos, tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SPAWN)
    words = [word.format(data=photos.root, out=tmp_path / "out") for word in command.split()]
    done = subprocess.run(
        [sys.executable, *words], text=True, capture_output=True, timeout=300, cwd=ROOT,
        env=clean_environment(PYTHONPATH=f"{tmp_path}:{ROOT}", OMP_NUM_THREADS="1"),
    )  # fmt: skip
    assert done.returncode == 0 and printed in done.stdout + done.stderr, done.stderr
    assert "leaked" not in done.stderr


def test_without_proc_a_live_process_keeps_its_draft(monkeypatch, tmp_path: Path) -> None:
    def absent(path: str, *args: object, **options: object) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(lifetime, "open", absent, raising=False)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in (os.getpid(), ended.pid, 99999999999):
        (tmp_path / f".a.{pid}-ab.tmp.rec").touch()
    output._remove_drafts(tmp_path / "a.rec")
    assert os.listdir(tmp_path) == [f".a.{os.getpid()}-ab.tmp.rec"]

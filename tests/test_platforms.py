"""Other systems: what the doctor says of them, and a clone made on Windows."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from rn50 import doctor


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

"""The tables of docs/platforms.md against the doctor and the course, and other systems."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from rn50 import doctor
from workshop import catalogue


def table(page: Path, first_heading: str) -> list[list[str]]:
    """The rows of the Markdown table whose first heading is this, the rule left out."""
    lines = page.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_heading}"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def test_every_notebook_has_its_line_for_containers(repository: Path) -> None:
    _, *rows = table(repository / "docs" / "platforms.md", "notebook |")
    assert [row[0][:2] for row in rows] == [item.number for item in catalogue.existing(repository)]


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

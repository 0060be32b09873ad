"""The tables of docs/platforms.md against the doctor and the course, and other systems."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from rn50 import doctor
from workshop.course import catalogue


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

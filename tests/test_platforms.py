"""The tables of docs/platforms.md against rn50lib.platforms and the course, and other systems."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from rn50lib import platforms
from rn50lib.tools.doctor.machine import system as look_at_system
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


def test_the_page_shows_the_platforms(repository: Path) -> None:
    heading, *rows = table(repository / "docs" / "platforms.md", "| Linux x86_64")
    assert heading[1:] == [p.name for p in platforms.PLATFORMS]
    state = next(row for row in rows if row[0] == "state")
    assert [not cell.startswith("not tried") for cell in state[1:]] == [
        p.tried for p in platforms.PLATFORMS
    ]


def test_every_notebook_has_its_line_for_containers(repository: Path) -> None:
    _, *rows = table(repository / "docs" / "platforms.md", "notebook |")
    assert [row[0][:2] for row in rows] == [item.number for item in catalogue.existing(repository)]


@pytest.mark.parametrize(
    ("system", "machine", "release", "expected"),
    [
        ("Linux", "x86_64", "6.1.0-13-amd64", platforms.LINUX),
        ("Linux", "aarch64", "6.1.0-13-arm64", platforms.LINUX_ARM),
        ("Linux", "x86_64", "5.15.153.1-microsoft-standard-WSL2", platforms.WSL),
        ("Darwin", "arm64", "23.4.0", platforms.MACOS),
        ("Windows", "AMD64", "10", None),
        ("Linux", "riscv64", "6.6", None),
    ],
)
def test_platforms_are_recognised(monkeypatch, system, machine, release, expected) -> None:
    monkeypatch.delenv("WSL_DISTRO_NAME", raising=False)
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "release", lambda: release)
    assert platforms.this() == expected
    check = look_at_system()
    assert (check.status == "ok") == (expected is platforms.LINUX)
    if expected is not platforms.LINUX:
        assert "docs/platforms.md" in check.remedy

"""Both requirement files resolve on Debian 12's own Python and on 3.12; nothing is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

FILES = ("requirements-cpu.txt", "requirements-gpu.txt")
PYTHONS = ("3.11.2", "3.12.3")  # Debian 12's and Ubuntu 24.04's
TORCH = "torch"  # the index decides whether its line brings a CUDA build, and what that needs


def installs(file: Path, python: str, folder: Path) -> dict[str, dict]:
    """Name -> what pip would install for the lines of a file, each as it stands, on a Python."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
    command += ["--ignore-installed", "--only-binary=:all:", "--python-version", python]
    command += ["--target", str(folder / "nowhere"), "--report", str(report), "-r", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())["install"]
    return {canonicalize_name(item["metadata"]["name"]): item for item in found}


@pytest.mark.acceptance
@pytest.mark.needs("package_index", "linux_x86_64")
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("file", FILES)
def test_every_package_is_pinned(repository: Path, tmp_path: Path, file: str, python: str) -> None:
    minor = ".".join(python.split(".")[:2])
    where = {"python_version": minor, "python_full_version": python}
    lines = [line.strip() for line in (repository / file).read_text().splitlines()]
    asked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    asked = [line for line in asked if line.marker is None or line.marker.evaluate(where)]
    for line in asked:
        line.marker = None  # pip would read it for the Python that runs pip
    (tmp_path / file).write_text("\n".join(map(str, asked)))
    found = installs(tmp_path / file, python, tmp_path)
    assert len(found) == len(asked)
    extras = {canonicalize_name(r.name): {"", *r.extras} for r in asked}
    for _ in range(3):  # an extra of one package can ask for an extra of another
        wrong = [line for name in found for line in faults(name, found, where, extras)]
    assert not wrong, "\n".join(wrong)


def faults(name: str, found: dict, where: dict[str, str], extras: dict[str, set[str]]) -> list[str]:
    """Return what is wrong with a package that pip found; note the extras it asks for."""
    item, told = found[name], found[name]["metadata"]
    this, python = f"{name} {told['version']}", where["python_full_version"]
    wrong = [f"{this} was withdrawn"] if item.get("is_yanked") else []
    if not SpecifierSet(told.get("requires_python", "")).contains(python):
        wrong.append(f"{this} needs Python {told['requires_python']}")
    for need in map(Requirement, told.get("requires_dist", ())):
        mine = extras.get(name, {""})
        if need.marker and not any(need.marker.evaluate(where | {"extra": e}) for e in mine):
            continue
        other = canonicalize_name(need.name)
        if other not in found:
            wrong += [] if name == TORCH else [f"{this} needs {need}: there is no line for it"]
        elif not need.specifier.contains(found[other]["metadata"]["version"], prereleases=True):
            wrong.append(f"{this} needs {need}")
        extras[other] = extras.get(other, {""}) | need.extras
    return wrong

"""The lists of packages agree with each other and hold on every platform."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = ("requirements-cpu.txt", "requirements-gpu.txt")
PLATFORMS = {
    "Linux x86_64": {"sys_platform": "linux", "platform_machine": "x86_64"},
    "Linux arm64": {"sys_platform": "linux", "platform_machine": "aarch64"},
    "macOS": {"sys_platform": "darwin", "platform_machine": "arm64"},
    "Windows": {"sys_platform": "win32", "platform_machine": "AMD64"},
}
IMPORTED_AS = {  # modules whose names differ from their packages'
    "import-linter": "importlinter",
    "nvidia-dali-cuda110": "nvidia.dali",
    "nvidia-ml-py": "pynvml",
    "pillow": "PIL",
    "protobuf": "google.protobuf",
    "PyYAML": "yaml",
    "pytest-xdist": "xdist",
    "tensorflow-cpu": "tensorflow",
}


def lines(path: Path) -> list[str]:
    """The requirement lines of a file."""
    found = (line.strip() for line in path.read_text().splitlines())
    return [line for line in found if line and not line.startswith("#")]


def asked(path: Path) -> list[str]:
    """The lines of the first part, which is the project's own."""
    text = path.read_text().split("# --- what these bring")[0]
    return [line for line in lines(path) if line in text.splitlines()]


@pytest.mark.parametrize("file", FILES)
def test_every_version_is_exact_and_named_once(repository: Path, file: str) -> None:
    found = [Requirement(line) for line in lines(repository / file)]
    assert len(found) > 100
    for requirement in found:
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
    for words in PLATFORMS.values():
        names = [r.name for r in found if r.marker is None or r.marker.evaluate(words)]
        assert len(names) == len({canonicalize_name(name) for name in names})


@pytest.mark.parametrize("file", FILES)
def test_pins_are_within_the_ranges_of_the_package(repository: Path, file: str) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    pins = {
        canonicalize_name(r.name): str(r.specifier).removeprefix("==")
        for r in map(Requirement, lines(repository / file))
    }
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [line for extra in extras.values() for line in extra]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name.startswith(("nvidia-dali", "tensorflow")):
            continue  # chosen by driver and platform
        assert requirement.specifier.contains(pins[name]), requirement


def test_conda_list_is_the_cpu_list(repository: Path) -> None:
    listed = yaml.safe_load((repository / "environment.yml").read_text())["dependencies"]
    pip = next(item["pip"] for item in listed if isinstance(item, dict))
    assert pip == asked(repository / "requirements-cpu.txt")
    names = {Requirement(line).name for line in pip}
    assert {"jupyterlab", "torch", "nvidia-dali-cuda110", "ipywidgets", "papermill"} <= names
    assert "horovod" not in names


@pytest.mark.acceptance
@pytest.mark.needs("package_index", "linux_x86_64")
def test_conda_pip_section_installs_and_imports(repository: Path, tmp_path: Path) -> None:
    listed = yaml.safe_load((repository / "environment.yml").read_text())["dependencies"]
    pip = next(item["pip"] for item in listed if isinstance(item, dict))
    (tmp_path / "pip.txt").write_text("\n".join(pip))
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "-r", tmp_path / "pip.txt"]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=1500)
    assert installed.returncode == 0, installed.stderr
    wanted = [r for r in map(Requirement, pip) if r.marker is None or r.marker.evaluate()]
    modules = [IMPORTED_AS.get(r.name, r.name.replace("-", "_")) for r in wanted]
    assert len(modules) > 30
    imports = "\n".join(f"import {module}" for module in modules)
    tried = subprocess.run([python, "-c", imports], capture_output=True, text=True, timeout=300)
    assert tried.returncode == 0, tried.stderr

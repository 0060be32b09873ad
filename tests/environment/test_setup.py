"""The set-up on an ordinary machine: what it says when a step fails, and how it goes on."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.environment import fake_site

pytestmark = [pytest.mark.slow, pytest.mark.needs("linux_x86_64")]

LIST = f"""# a list of two packages
#   --no-deps tf-keras==2.21.0
# --- what the project asks for ---
setuptools=={importlib.metadata.version("setuptools")}
tqdm==50.0
"""


@dataclass(frozen=True)
class Ready:
    """A checkout that was set up, and what that said; each test asks for versions of its own."""

    root: Path
    index: Path
    first: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def ready(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Ready:
    folder = tmp_path_factory.mktemp("setup")
    fake_site.base_python(folder / "base")  # the tests' own may hold a CUDA framework
    root = fake_site.checkout(repository, folder / "checkout")
    (root / "requirements-cpu.txt").write_text(LIST)
    fake_site.borrow(folder / "index", "setuptools")
    for name, version in (("tqdm", "50.0"), ("tf-keras", "2.21.0")):
        fake_site.wheel(folder / "index", name, version)
    return Ready(root, folder / "index", setup(root))


def setup(root: Path, *args: str, tools: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the set-up with no network and a PATH that holds only the named (and broken) tools."""
    path = root.parent / f"bin-{'-'.join(tools)}"
    path.mkdir(exist_ok=True)
    for tool in tools:
        (path / tool).write_text("#!/bin/sh\nexit 1\n")
        (path / tool).chmod(0o755)
    return subprocess.run(
        [root.parent / "base" / "bin" / "python", root / "scripts" / "setup.py", *args],
        env={
            "PATH": str(path),
            "HOME": str(root.parent),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(root.parent / "index"),
            "PIP_CONFIG_FILE": os.devnull,
            "DALI": "none",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )


def version(root: Path) -> str:
    """The version of tqdm that the environment imports, with the other packages beside it."""
    program = "import tqdm, tf_keras, rn50lib; print(tqdm.__version__)"
    done = subprocess.run(
        [root / ".venv/bin/python", "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_without_a_compiler_all_else_is_set_up(ready: Ready) -> None:
    assert ready.first.returncode == 0, ready.first.stdout + ready.first.stderr
    said = "Horovod is not built; to have it, `sudo apt-get install g++ make openmpi-bin"
    assert said in ready.first.stdout
    assert version(ready.root)
    again = setup(ready.root)
    assert (again.returncode, again.stdout) == (0, "")


def test_a_changed_list_is_installed_and_nothing_else_is_done(ready: Ready) -> None:
    fake_site.wheel(ready.index, "tqdm", "51.0")
    (ready.root / "requirements-cpu.txt").write_text(LIST.replace("50.0", "51.0"))
    steps = setup(ready.root).stdout
    assert "  packages " in steps
    assert "  tf-keras " not in steps and "virtual environment" not in steps
    assert version(ready.root) == "51.0"


def test_missing_package_stops_with_the_log_and_goes_on_later(ready: Ready) -> None:
    (ready.root / "requirements-cpu.txt").write_text(LIST.replace("50.0", "52.0"))
    stopped = setup(ready.root)
    assert stopped.returncode == 1
    assert "FAILED" in stopped.stdout
    assert "No matching distribution found for tqdm==52.0" in stopped.stdout
    assert "error: look at the log; `make setup` goes on from here" in stopped.stdout
    fake_site.wheel(ready.index, "tqdm", "52.0")
    assert setup(ready.root).returncode == 0
    assert version(ready.root) == "52.0"


def test_horovod_that_does_not_build_is_a_note(ready: Ready) -> None:
    first = setup(ready.root, tools=("g++", "make"))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "  horovod " in first.stdout and "FAILED" in first.stdout
    assert "note: the rest works, and DDP runs the lessons" in first.stdout
    second = setup(ready.root, tools=("g++", "make"))
    assert second.returncode == 0
    assert second.stdout.startswith("note: horovod failed earlier")
    assert len(second.stdout.splitlines()) == 1  # it says so, and does not try for minutes again
    third = setup(ready.root, "--retry", tools=("g++", "make"))
    assert "FAILED" in third.stdout


@pytest.mark.needs("root")
def test_apt_that_fails_is_a_note(ready: Ready) -> None:
    done = setup(ready.root, tools=("apt-get",))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  apt: g++ make openmpi-bin libopenmpi-dev" in done.stdout
    assert "$ apt-get -q -o Dpkg::Use-Pty=0 update" in done.stdout
    assert "note: install them yourself (apt-get install g++ make" in done.stdout
    assert "error: g++ and make are needed" in done.stdout  # what Horovod says about it


def test_an_environment_of_another_python_is_made_anew(ready: Ready) -> None:
    config = ready.root / ".venv" / "pyvenv.cfg"
    config.write_text(config.read_text().replace("version = 3.", "version = 2."))
    again = setup(ready.root)
    assert again.returncode == 0
    assert "virtual environment" in again.stdout
    assert version(ready.root)

"""A whole set-up over a fake container: real venv, real pip, tiny wheels, no network."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.environment import fake_site

pytestmark = pytest.mark.slow


def build_index(index: Path, repository: Path) -> None:
    """Wheels of all that the project may ask for, with traps for a careless installer."""
    for name in re.findall(
        r'^    "([A-Za-z][\w-]*)', (repository / "pyproject.toml").read_text(), re.M
    ):
        fake_site.wheel(index, name, "50.0")
    fake_site.wheel(index, "numpy", "60.0")
    fake_site.wheel(index, "protobuf", "60.0")
    # The newest matplotlib would bring a newer NumPy: the older one must be taken.
    fake_site.wheel(index, "matplotlib", "60.0", ["numpy>=60"])
    fake_site.wheel(index, "matplotlib", "55.0", ["numpy>=1.26"])
    (index / "matplotlib-50.0-py3-none-any.whl").unlink()
    # The container forbids papermill 50; TensorBoard likes any protobuf.
    fake_site.wheel(index, "papermill", "49.0")
    fake_site.wheel(index, "tensorboard", "51.0", ["protobuf>=3"])
    fake_site.wheel(index, "tf-keras", "2.17.0", ["tensorflow>=2.18"])


def test_container_frameworks_survive(repository: Path, tmp_path: Path) -> None:
    index, base = tmp_path / "index", tmp_path / "base"
    build_index(index, repository)
    python = fake_site.base_python(base)
    for name, version, requires in (
        ("numpy", "1.26.4", []),
        ("protobuf", "4.24.4", []),
        ("torch", "2.6.0a0+nv25.2", ["numpy"]),
        ("tensorflow", "2.17.0+nv25.2", ["protobuf<5", "numpy<2"]),
        ("nvidia-dali-cuda120", "1.46.0", []),
        ("psutil", "5.9.4", []),
    ):
        fake_site.install(base, name, version, requires)
    (tmp_path / "constraint.txt").write_text("papermill<50\n")
    root = fake_site.checkout(repository, tmp_path / "checkout")

    def setup() -> str:
        done = subprocess.run(
            [python, root / "scripts" / "setup.py"],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "NVIDIA_BUILD_ID": "1",
                "PIP_CONSTRAINT": str(tmp_path / "constraint.txt"),
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(index),
                "PIP_CONFIG_FILE": os.devnull,
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = setup()
    own = {
        path.name.removesuffix(".dist-info")
        for path in fake_site.site_packages(root / ".venv").glob("*.dist-info")
    }
    names = {name.rpartition("-")[0] for name in own}
    assert not names & {"torch", "tensorflow", "numpy", "nvidia_dali_cuda120", "protobuf", "psutil"}
    assert {"papermill-49.0", "matplotlib-55.0", "tensorboard-51.0", "tf_keras-2.17.0"} <= own

    shown = subprocess.run(
        [
            root / ".venv/bin/python",
            "-c",
            "import numpy, torch, tensorflow, papermill, rn50lib\n"
            "for m in numpy, torch, tensorflow, papermill, rn50lib:"
            " print(m.__name__, getattr(m, '__version__', ''), m.__file__)",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    ).stdout
    assert f"numpy 1.26.4 {base}" in shown
    assert f"torch 2.6.0a0+nv25.2 {base}" in shown
    assert f"tensorflow 2.17.0+nv25.2 {base}" in shown
    assert f"papermill 49.0 {root / '.venv'}" in shown
    assert str(root / "rn50lib") in shown

    kept = next(line for line in said.splitlines() if "Kept from the base Python" in line)
    added = next(line for line in said.splitlines() if "Added in .venv" in line)
    assert "torch 2.6.0a0+nv25.2" in kept and "protobuf 4.24.4" in kept
    assert "papermill 49.0" in added and "torch" not in added

    assert setup() == ""  # nothing is left to do, and nothing is said

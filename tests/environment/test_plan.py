"""What the set-up would do on machines of several kinds, asked through `setup.py --plan`."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environment import fake_site
from tests.launch import fake_gpus

bare: list[Path] = []  # a Python without any package: the tests' own may have a CUDA framework


@pytest.fixture(scope="module", autouse=True)
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    bare.append(fake_site.base_python(tmp_path_factory.mktemp("bare")))
    yield
    bare.clear()


def ask(
    setup: Path, *args: str, python: Path | str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """`setup.py --plan` with a PATH on which there is nothing but what `env` says."""
    python = python or bare[0]
    kept = {k: v for k, v in os.environ.items() if k not in ("DALI", "WITH", "NVIDIA_BUILD_ID")}
    kept.pop("PIP_CONSTRAINT", None)
    return subprocess.run(
        [python, setup, "--plan", "--venv", "/nowhere/.venv", *args],
        env={**kept, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def setup(repository: Path) -> Path:
    return repository / "scripts" / "setup.py"


linux_x86_64 = pytest.mark.needs("linux_x86_64")


@linux_x86_64
@pytest.mark.parametrize(
    ("cuda", "file", "dali"),
    [
        ("11.4", "requirements-cpu.txt", "nvidia-dali-cuda110==1.34.0"),
        ("12.9", "requirements-gpu.txt", "nvidia-dali-cuda120==2.4.0"),
        ("13.0", "requirements-gpu.txt", "nvidia-dali-cuda130==2.4.0"),
    ],
)
def test_driver_chooses_dali_and_frameworks(
    setup: Path, tmp_path: Path, cuda: str, file: str, dali: str
) -> None:
    plan = ask(setup, PATH=fake_gpus.nvidia_smi(tmp_path, cuda=cuda)).stdout
    assert f"versions: {file}" in plan
    assert f"DALI: {dali} (driver for CUDA {cuda[:2]})" in plan
    assert ("the CPU builds are installed" in plan) == (cuda < "12")


@linux_x86_64
@pytest.mark.parametrize("cuda", [12, 13])
def test_two_builds_of_one_package_never_share_an_environment(
    repository: Path, monkeypatch: pytest.MonkeyPatch, cuda: int
) -> None:
    """DALI for CUDA 12 and for CUDA 13 bring decoders with files of the same names."""
    monkeypatch.syspath_prepend(repository / "scripts")
    facts, ordinary = map(importlib.import_module, ("facts", "ordinary"))
    here = facts.Facts("3.11.7", "Linux", "x86_64", cuda, None, True, False, None)
    plan = ordinary.make(here, Path("/nowhere/.venv"), "")
    pinned = plan.files["requirements.txt"]
    assert ("nvidia-nvimgcodec-cu12==" in pinned) == (cuda == 12)
    assert "nvidia-cudnn-cu12==" in pinned  # PyTorch's, which is built for CUDA 12
    remove, install = next(step for step in plan.steps if step.name == "packages").commands
    other = {12: "nvidia-dali-cuda130", 13: "nvidia-dali-cuda120"}[cuda]
    assert {"uninstall", "nvidia-dali-cuda110", other, "tensorflow-cpu"} <= set(remove)
    assert f"nvidia-dali-cuda{cuda}0" not in remove and "install" in install


@linux_x86_64
def test_broken_driver_counts_as_none(setup: Path, tmp_path: Path) -> None:
    failing = fake_gpus.nvidia_smi(tmp_path, cuda="12.0", fails="CUDA Version: 12.0, no device")
    plan = ask(setup, PATH=failing).stdout
    assert "no NVIDIA driver" in plan
    assert "nvidia-dali-cuda110==1.34.0" in plan


@linux_x86_64
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("cuda120", "DALI: nvidia-dali-cuda120==2.4.0 (as asked)"),
        ("nvidia-dali-cuda110==1.33.0", "DALI: nvidia-dali-cuda110==1.33.0 (as asked)"),
        ("none", "DALI: none (left out, as asked)"),
    ],
)
def test_dali_can_be_chosen(setup: Path, asked: str, said: str) -> None:
    assert said in ask(setup, DALI=asked).stdout


def test_unknown_dali_is_an_error(setup: Path) -> None:
    answer = ask(setup, DALI="cuda99")
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: DALI=cuda99: use one of cuda110, cuda120, cuda130")
    assert "Traceback" not in answer.stderr


def test_horovod_comes_last_and_keras_without_dependencies(setup: Path) -> None:
    commands = [line for line in ask(setup).stdout.splitlines() if line.startswith("$")]
    assert any(line.endswith("--no-deps tf-keras==2.21.0") for line in commands)
    if sys.platform == "linux" and shutil.which("g++"):
        assert commands[-1].endswith("horovod_wheel.py --install")


# --- inside a container ---------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base Python with NumPy and a bit more."""
    python = fake_site.base_python(tmp_path / "base")
    fake_site.install(tmp_path / "base", "numpy", "1.26.4")
    fake_site.install(tmp_path / "base", "psutil", "5.9.4")
    fake_site.install(tmp_path / "base", "tqdm", "4.60.0")
    return python


def add_torch(base: Path, cuda: str | None) -> None:
    torch = fake_site.install(base.parent.parent, "torch", "2.6.0a0+nv25.2", ["sympy==1.13"])
    (torch / "version.py").write_text(f"cuda: Optional[str] = {cuda!r}\nhip = None\n")
    fake_site.install(base.parent.parent, "sympy", "1.13")


def test_cuda_torch_is_kept(setup: Path, base: Path) -> None:
    add_torch(base, "12.8")
    plan = ask(setup, python=base, PIP_CONSTRAINT="/etc/pip/constraint.txt").stdout
    assert "already has PyTorch for CUDA 12.8" in plan
    for kept in ("torch 2.6.0a0+nv25.2", "numpy 1.26.4", "sympy 1.13", "psutil 5.9.4"):
        assert f"kept: {kept}" in plan
    assert "-m venv --system-site-packages" in plan
    install = next(line for line in plan.splitlines() if "papermill" in line)
    assert "-c /etc/pip/constraint.txt -c /nowhere/.venv/rn50-setup/constraints.txt" in install
    assert "pytest" not in install  # what only the tests need may fail to install
    assert any("-m pip install" in line and "pytest" in line for line in plan.splitlines())
    assert "'tqdm>=4.66'" in install  # the container's is too old for the project
    for never in ("torch>", "numpy>", "psutil>", "tensorflow", "nvidia-dali", "horovod"):
        assert never not in install
    assert "tensorflow is not in this container and is left out; `make setup WITH=tens" in plan
    assert "Horovod is not in this container and is not built here" in plan
    assert "horovod_wheel.py" not in plan


def test_cpu_torch_in_the_base_python_is_no_container(setup: Path, base: Path) -> None:
    add_torch(base, None)
    plan = ask(setup, python=base).stdout
    assert "kept:" not in plan
    assert "--system-site-packages" not in plan


def test_ngc_variable_alone_keeps_what_is_there(setup: Path, base: Path) -> None:
    add_torch(base, None)
    plan = ask(setup, python=base, NVIDIA_BUILD_ID="145000").stdout
    assert "NVIDIA container, build 145000" in plan
    assert "kept: torch 2.6.0a0+nv25.2" in plan


def test_tensorflow_image(setup: Path, base: Path, tmp_path: Path) -> None:
    environment = base.parent.parent
    tensorflow = fake_site.install(environment, "tensorflow", "2.17.0+nv25.2", ["protobuf"])
    fake_site.install(environment, "protobuf", "4.24.4")
    fake_site.install(environment, "horovod", "0.28.1+nv25.2")
    fake_site.install(environment, "nvidia-dali-cuda120", "1.46.0")
    info = tensorflow / "python" / "platform"
    info.mkdir(parents=True)
    (info / "build_info.py").write_text('build_info = {"cuda": 12, "is_cuda_build": True}\n')
    driver = fake_gpus.nvidia_smi(tmp_path / "driver", cuda="12.8")
    plan = ask(setup, python=base, WITH="torch", PATH=driver).stdout
    assert "already has TensorFlow for CUDA" in plan
    assert "kept: protobuf 4.24.4" in plan  # TensorFlow's dependency: pip must not shadow it
    assert "kept: nvidia-dali-cuda120 1.46.0" in plan
    assert "kept: horovod 0.28.1+nv25.2" in plan
    assert "--no-deps 'tf-keras~=2.17.0'" in plan
    assert "torch is not in this container; it is added, as asked." in plan
    assert "'torch>=2.4'" in plan and "'torch<2.11'" in plan  # later ones want CUDA 13

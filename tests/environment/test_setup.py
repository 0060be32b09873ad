"""The set-up: on an ordinary machine, and over a Python that has its own frameworks."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.environment import fake_site
from tests.launch import fake_gpus

pytestmark = pytest.mark.needs("linux_x86_64")

LIST = f"""# a list of two packages
#   --no-deps tf-keras==2.21.0
setuptools=={importlib.metadata.version("setuptools")}
tqdm==50.0
"""


def setup(root: Path, base: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the set-up of a checkout with the Python of `base`, without a network."""
    env = {
        "PATH": "/nowhere", "HOME": str(root.parent), "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(root.parent / "index"), "PIP_CONFIG_FILE": os.devnull, **env,
    }  # fmt: skip
    return subprocess.run(
        [base / "bin" / "python", root / "scripts" / "setup.py", *args],
        env=env, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without packages: the one of the tests may have a CUDA framework."""
    folder = tmp_path_factory.mktemp("bare")
    fake_site.base_python(folder)
    return folder


@pytest.mark.parametrize(
    ("cuda", "asked", "on_gpu", "dali"),
    [
        (None, "", False, "cuda110==1.34.0"),
        ("11.4", "", False, "cuda110==1.34.0"),
        ("12.9", "", True, "cuda120==2.4.0"),
        ("13.0", "", True, "cuda120==2.4.0"),
        (None, "cuda120", False, "cuda120==2.4.0"),
        (None, "nvidia-dali-cuda110==1.33.0", False, "cuda110==1.33.0"),
        (None, "none", False, None),
    ],
)
def test_driver_and_user_choose_frameworks_and_dali(
    repository: Path, base: Path, tmp_path: Path, cuda: str | None, asked: str, on_gpu: bool,
    dali: str | None,
) -> None:  # fmt: skip
    path = fake_gpus.nvidia_smi(tmp_path, cuda=cuda) if cuda else "/nowhere"
    done = setup(repository, base, "--plan", "--venv", str(tmp_path / "v"), PATH=path, DALI=asked)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    installed = [line for line in lines if not line.startswith("$")]
    assert [line for line in installed if line.startswith("nvidia-dali-")] == (
        [f"nvidia-dali-{dali}"] if dali else []
    )
    gpu = any(line.startswith("nvidia-cudnn-cu12==") for line in installed)
    assert gpu == on_gpu
    # the decoders for CUDA 12 and those of the DALI for CUDA 13 have files of the same names
    decoders = [line for line in installed if line.startswith("nvidia-nvimgcodec-cu12==")]
    assert bool(decoders) == on_gpu
    removed = next(line for line in lines if " uninstall " in line).split()
    rivals = {f"nvidia-dali-{name}" for name in ("cuda110", "cuda120", "cuda130")}
    assert rivals & set(removed) == rivals - {f"nvidia-dali-{(dali or '').partition('==')[0]}"}
    assert "tensorflow" not in removed and ("tensorflow-cpu" in removed) == on_gpu
    assert any("install --no-deps tf-keras==" in line for line in lines)
    assert lines[-1].endswith("horovod_wheel.py --install")
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(
    ("last", "asked", "on_gpu"),
    [("12", "", True), ("12", "none", False), ("", "12", True), ("", "/usr/local/cuda", False)],
)
def test_without_a_driver_the_packages_of_a_host_with_one_stay(
    repository: Path, base: Path, tmp_path: Path, last: str, asked: str, on_gpu: bool
) -> None:
    if last:
        (tmp_path / "v/rn50-setup").mkdir(parents=True)
        (tmp_path / "v/rn50-setup/cuda").write_text(last)
    done = setup(repository, base, "--plan", "--venv", str(tmp_path / "v"), CUDA=asked)
    assert done.returncode == 0, done.stderr
    assert ("nvidia-cudnn-cu12==" in done.stdout) == on_gpu
    assert ("the packages stay those for CUDA 12" in done.stdout) == (last != "" and not asked)
    wrong = setup(repository, base, "--plan", "--venv", str(tmp_path / "v"), CUDA="12.x")
    assert wrong.returncode == 2 and wrong.stderr == "error: CUDA=12.x: use 12, 13 or none\n"


@pytest.mark.needs("root")
def test_root_gets_the_compiler_from_apt(repository: Path, base: Path, tmp_path: Path) -> None:
    (tmp_path / "apt-get").touch(0o755)
    venv = str(tmp_path / "v")
    done = setup(repository, base, "--plan", "--venv", venv, PATH=str(tmp_path))
    (install,) = re.findall("^\\$ .*apt-get install.*", done.stdout, re.M)
    assert {"g++", "openmpi-bin", "libopenmpi-dev"} <= set(install.split())
    assert done.stdout.index(install) < done.stdout.index("horovod_wheel.py")


def test_broken_driver_counts_as_none(repository: Path, base: Path, tmp_path: Path) -> None:
    path = fake_gpus.nvidia_smi(tmp_path, cuda="12.0", fails="CUDA Version: 12.0, no device")
    done = setup(repository, base, "--plan", "--venv", str(tmp_path / "v"), PATH=path)
    assert "nvidia-dali-cuda110==1.34.0" in done.stdout


def test_unknown_dali_is_an_error_of_one_line(repository: Path, base: Path, tmp_path: Path) -> None:
    done = setup(repository, base, "--plan", "--venv", str(tmp_path / "v"), DALI="cuda99")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: DALI=cuda99: use one of cuda110, cuda120, cuda130")


def test_a_newer_python_looks_for_one_of_the_pins_or_says_how_to_get_one(
    repository: Path, tmp_path: Path
) -> None:
    base, venv = tmp_path / "base", tmp_path / "v"
    fake_site.base_python(base)
    newer = "import sys; sys.version_info = (3, 13, 0, 'final', 0)"
    (fake_site.site_packages(base) / "newer.pth").write_text(newer)
    done = setup(repository, base, "--plan", "--venv", str(venv))
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "`make lab PYTHON=$(uv python find 3.12)`" in done.stderr
    for folder in (tmp_path / "path", venv / "bin"):  # the environment's comes first
        folder.mkdir(parents=True)
        (folder / "python3.12").write_text(f"#!/bin/sh\necho {folder}")
        (folder / "python3.12").chmod(0o755)
        done = setup(repository, base, "--plan", "--venv", str(venv), PATH=str(tmp_path / "path"))
        assert done.stdout == f"{folder}\n", done.stderr


@pytest.mark.needs("two_hosts")  # a file system of its own for one command
def test_a_disk_that_is_too_small_is_an_error_before_anything_is_installed(
    repository: Path, base: Path, tmp_path: Path
) -> None:
    mount = 'mount -t tmpfs -o size=1g none "$1" && exec "$2" "$3" --venv "$1/v"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh",
         tmp_path, base / "bin" / "python", repository / "scripts" / "setup.py"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_NO_INDEX": "1"},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"error: 1.1 GB are free at {tmp_path}; the packages need more")
    assert not done.stdout


@pytest.mark.acceptance  # test_container_frameworks_survive has a whole set-up, and a second one
def test_only_a_changed_list_is_installed_again(
    repository: Path, base: Path, tmp_path: Path
) -> None:
    root = fake_site.checkout(repository, tmp_path / "checkout")
    fake_site.borrow(tmp_path / "index", "setuptools")
    for name, version in (("tqdm", "50.0"), ("tf-keras", "2.21.0")):
        fake_site.wheel(tmp_path / "index", name, version)

    def run(version: str, *args: str) -> subprocess.CompletedProcess[str]:
        (root / "requirements-cpu.txt").write_text(LIST.replace("50.0", version))
        return setup(root, base, *args, DALI="none")

    def installed() -> str:
        program = "import tqdm, tf_keras, rn50lib; print(tqdm.__version__)"
        command = [root / ".venv/bin/python", "-E", "-c", program]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    # the road signs are drawn meanwhile, here by a program that notes where, and then fails
    draws = root / "data_prep" / "roadsigns.py"
    draws.write_text("import os, sys; os.makedirs(sys.argv[1]); sys.exit(1)")
    first = run("50.0")
    assert first.returncode == 0, first.stdout + first.stderr
    assert (root / "data" / "roadsigns").is_dir() and "signs are not complete" in first.stdout
    assert installed() == "50.0"
    # Horovod needs a compiler: all else works, and the next set-up does not try for minutes again
    assert "note: Horovod was not built" in first.stdout and "g++" in first.stdout
    again = run("50.0")
    assert (again.returncode, again.stdout) == (0, "")
    assert "note: Horovod was not built" in run("50.0", "--retry").stdout

    stopped = run("51.0")
    assert stopped.returncode == 1
    assert "No matching distribution found for tqdm==51.0" in stopped.stderr
    assert "`make setup` continues from here" in stopped.stderr
    fake_site.wheel(tmp_path / "index", "tqdm", "51.0")
    changed = run("51.0")  # its images are there
    assert changed.returncode == 0 and installed() == "51.0" and "signs" not in changed.stdout

    config = root / ".venv" / "pyvenv.cfg"  # an environment of a Python that was upgraded
    config.write_text(config.read_text().replace("version = 3.", "version = 2."))
    assert run("51.0").returncode == 0
    assert "version = 3." in config.read_text() and installed() == "51.0"


# --- over a base Python that has its own frameworks -----------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "env", "kept"),
    [("12.8", {}, True), (None, {}, False), (None, {"NVIDIA_BUILD_ID": "145000"}, True)],
)
def test_a_cuda_framework_or_a_container_is_kept(
    repository: Path, tmp_path: Path, cuda: str | None, env: dict[str, str], kept: bool
) -> None:
    fake_site.base_python(tmp_path / "base")
    torch = fake_site.install(tmp_path / "base", "torch", "2.6.0a0+nv25.2", ["sympy==1.13"])
    (torch / "version.py").write_text(f"cuda: Optional[str] = {cuda!r}\nhip = None\n")
    fake_site.install(tmp_path / "base", "sympy", "1.13")
    venv = str(tmp_path / "v")
    plan = setup(repository, tmp_path / "base", "--plan", "--venv", venv, **env).stdout
    assert ("--without-pip" in plan) == kept
    assert ("kept: torch==2.6.0a0+nv25.2" in plan and "kept: sympy==1.13" in plan) == kept
    assert "tensorflow-cpu==" in plan  # next to a PyTorch for CUDA, too
    assert "horovod_wheel.py" in plan


@pytest.mark.slow
def test_container_frameworks_survive(repository: Path, tmp_path: Path) -> None:
    """A whole set-up with real pip and tiny wheels, with bait for a careless installer."""
    index, base = tmp_path / "index", tmp_path / "base"
    project = (repository / "pyproject.toml").read_text()
    for name in re.findall(r'^    "([A-Za-z][\w-]*)[>=]', project, re.M):
        fake_site.wheel(index, name, "50.0")
    (index / "packaging-50.0-py3-none-any.whl").unlink()
    fake_site.borrow(index, "packaging")  # setuptools imports it
    fake_site.wheel(index, "openvino", "3000.0")  # its versions begin with the year
    fake_site.wheel(index, "numpy", "60.0")
    fake_site.wheel(index, "protobuf", "60.0")
    # The newest matplotlib would bring a newer NumPy: the older one must be taken.
    fake_site.wheel(index, "matplotlib", "60.0", ["numpy>=60"])
    fake_site.wheel(index, "matplotlib", "55.0", ["numpy>=1.26"])
    (index / "matplotlib-50.0-py3-none-any.whl").unlink()
    fake_site.wheel(index, "papermill", "49.0")  # the container forbids 50
    fake_site.wheel(index, "tensorboard", "51.0", ["protobuf>=3"])
    fake_site.wheel(index, "tf-keras", "2.17.0", ["tensorflow>=2.18"])
    fake_site.base_python(base)
    for name, version, requires in (
        ("numpy", "1.26.4", []),
        ("protobuf", "4.24.4", []),
        ("torch", "2.6.0a0+nv25.2", ["numpy"]),
        ("tensorflow", "2.17.0+nv25.2", ["protobuf<5", "numpy<2"]),
        ("nvidia-dali-cuda120", "1.46.0", []),
        ("psutil", "5.9.4", []),
        ("tqdm", "4.60.0", []),  # too old for the project
    ):
        fake_site.install(base, name, version, requires)
    (tmp_path / "constraint.txt").write_text("papermill<50\n")
    root = fake_site.checkout(repository, tmp_path / "a checkout")
    env = {"NVIDIA_BUILD_ID": "1", "PIP_CONSTRAINT": str(tmp_path / "constraint.txt")}
    done = setup(root, base, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    own = {
        path.name.removesuffix(".dist-info")
        for path in fake_site.site_packages(root / ".venv").glob("*.dist-info")
    }
    names = {name.rpartition("-")[0] for name in own}
    assert not names & {"torch", "tensorflow", "numpy", "nvidia_dali_cuda120", "protobuf", "psutil"}
    wanted = {"papermill-49.0", "matplotlib-55.0", "tensorboard-51.0", "tf_keras-2.17.0"}
    assert wanted | {"tqdm-50.0"} <= own
    program = "import numpy, torch, tensorflow, papermill, rn50lib\n"
    program += "for m in numpy, torch, tensorflow, papermill, rn50lib: print(m.__file__)"
    command = [root / ".venv/bin/python", "-E", "-c", program]
    imported = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    shown = imported.stdout.splitlines()
    assert all(path.startswith(str(base)) for path in shown[:3])
    assert shown[3].startswith(str(root / ".venv")) and shown[4].startswith(str(root / "rn50lib"))
    assert "torch==2.6.0a0+nv25.2" in done.stdout
    again = setup(root, base, **env)
    assert (again.returncode, again.stdout) == (0, "")


@pytest.mark.acceptance
def test_without_tensorflow_its_keras_is_left_out(repository: Path, tmp_path: Path) -> None:
    """Over PyTorch for CUDA and without a network, pip finds neither."""
    index, base = tmp_path / "index", tmp_path / "base"
    project = (repository / "pyproject.toml").read_text()
    for name in re.findall(r'^    "([A-Za-z][\w-]*)[>=]', project, re.M):
        if name not in ("tensorflow", "tensorflow-cpu", "tf-keras"):
            version = "3000.0" if name == "openvino" else "50.0"
            fake_site.wheel(index, name, version)
    (index / "packaging-50.0-py3-none-any.whl").unlink()
    fake_site.borrow(index, "packaging")
    fake_site.base_python(base)
    torch = fake_site.install(base, "torch", "2.6.0a0+nv25.2", [])
    (torch / "version.py").write_text("cuda: Optional[str] = '12.8'\n")
    root = fake_site.checkout(repository, tmp_path / "checkout")
    done = setup(root, base, DALI="none")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note: tensorflow-cpu==" in done.stdout and "tf-keras" not in done.stderr
    program = [root / ".venv/bin/python", "-E", "-c", "import papermill, torch, rn50lib"]
    assert subprocess.run(program, cwd=tmp_path).returncode == 0

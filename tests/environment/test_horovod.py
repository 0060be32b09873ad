"""Horovod's wheel: the edits to its source, and what the built one does on two ranks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

# by its module: a Horovod of the container has no program in .venv
HOROVODRUN = (sys.executable, "-m", "horovod.runner.launch")

ALLREDUCE = {
    "torch": """
import horovod.torch as hvd, torch
from pathlib import Path
hvd.init()
total = hvd.allreduce(torch.full((3,), float(hvd.rank() + 1)), op=hvd.Sum)
Path(f"{hvd.rank()}-of-{hvd.size()}").write_text(str(total.tolist()))
""",
    "tensorflow": """
import horovod.tensorflow as hvd, tensorflow as tf
from pathlib import Path
hvd.init()
total = hvd.allreduce(tf.fill((3,), float(hvd.rank() + 1)), op=hvd.Sum)
Path(f"{hvd.rank()}-of-{hvd.size()}").write_text(str(total.numpy().tolist()))
""",
}


@pytest.fixture
def horovod_wheel(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/horovod_wheel.py as a module."""
    scripts = repository / "scripts"
    monkeypatch.syspath_prepend(scripts)
    spec = importlib.util.spec_from_file_location("horovod_wheel", scripts / "horovod_wheel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "horovod_wheel", module)
    spec.loader.exec_module(module)
    return module


def source_tree(wheel: ModuleType, folder: Path) -> Path:
    """The edited files as in Horovod 0.28.1, reduced to the parts that the edits touch."""
    lines: dict[Path, list[str]] = {}
    for file, old, _ in wheel.EDITS:
        lines.setdefault(folder / file, ["# first line"]).append(f"    {old}")
    for path, wanted in lines.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*wanted, "# last line\n"]))
    return folder


def test_edits_keep_indentation_and_all_else(horovod_wheel: ModuleType, tmp_path: Path) -> None:
    tree = source_tree(horovod_wheel, tmp_path)
    horovod_wheel.apply_edits(tree)
    keras = (tree / "horovod/tensorflow/keras/callbacks.py").read_text()
    assert keras == "# first line\n    K = keras.backend\n# last line\n"
    cmake = (tree / "horovod/tensorflow/CMakeLists.txt").read_text()
    assert cmake.startswith(f"# first line\n    {horovod_wheel.TOGETHER}\n    set(TF_TARGET_LIB ")
    for file in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        assert "    set(CMAKE_CXX_STANDARD 20)\n" in (tree / file).read_text()


def test_changed_source_is_refused_by_name(horovod_wheel: ModuleType, tmp_path: Path) -> None:
    for number, text in (
        (0, "set(CMAKE_CXX_STANDARD 20)\n"),
        (2, "set(CMAKE_CXX_STANDARD 14)\n" * 2),
    ):
        tree = source_tree(horovod_wheel, tmp_path / str(number))
        (tree / "horovod/torch/CMakeLists.txt").write_text(text)
        said = rf"horovod/torch/CMakeLists.txt .* {number} times"
        with pytest.raises(horovod_wheel.WheelError, match=said):
            horovod_wheel.apply_edits(tree)


@pytest.mark.acceptance
@pytest.mark.needs("horovod")
def test_built_for_both_frameworks(need) -> None:  # type: ignore[no-untyped-def]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    said = subprocess.run(
        [*HOROVODRUN, "--check-build"],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    ).stdout
    for line in ("[X] TensorFlow", "[X] PyTorch", "[X] Gloo", "[ ] MXNet"):
        assert line in said
    need("horovod_mpi")
    assert said.count("[X] MPI") == 2  # as controller and for tensor operations


@pytest.mark.acceptance  # in `make test`: gloo in test_exchange.py, MPI in test_workers.py
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize(
    "controller",
    ["gloo", pytest.param("mpi", marks=pytest.mark.needs("mpi", "horovod_mpi"))],
)
@pytest.mark.needs("horovod")
def test_two_ranks_sum(framework: str, controller: str, tmp_path: Path) -> None:
    program = tmp_path / "sum.py"
    program.write_text(ALLREDUCE[framework])  # ranks' printed lines may mix; files do not
    as_root = ["--mpi-args=--allow-run-as-root --oversubscribe --mca plm isolated"]
    done = subprocess.run(
        [*HOROVODRUN, f"--{controller}", *(as_root if controller == "mpi" else [])]
        + ["-np", "2", sys.executable, program],
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = {path.name: path.read_text() for path in tmp_path.glob("*-of-*")}
    assert written == {"0-of-2": "[3.0, 3.0, 3.0]", "1-of-2": "[3.0, 3.0, 3.0]"}

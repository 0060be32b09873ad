"""`rn50 doctor`, on this machine and on ones where something is missing or broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from rn50 import doctor
from rn50.doctor import NOTE, OK, PROBLEM
from tests.launch import fake_gpus as fake

GIB = 2**30
GROUPS = ["machine", "memory and disk", "GPU", "frameworks", "communication"]
MISSING = "Extension horovod.torch has not been built: /x/mpi_lib_v2.so not found"


def write_package(folder: Path, package: str, code: str) -> dict[str, str]:
    """Write a package; return the variables with which a program finds it first."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(code)
    return {"PYTHONPATH": str(folder)}


def found_by(run_cli, *flags: str, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the doctor; return its status and its checks by name."""
    done = run_cli("doctor", "--json", *flags, env=env)
    document = json.loads(done.stdout)
    assert document["can_train"] == (done.returncode == 0)
    return done.returncode, {check["name"]: check for check in document["checks"]}


def test_quick_on_this_machine(run_cli) -> None:
    status, found = found_by(run_cli, "--quick")
    assert status == 0 and list(dict.fromkeys(c["group"] for c in found.values())) == GROUPS
    assert 1 <= int(found["cores"]["what"].split()[0]) <= len(os.sched_getaffinity(0))
    assert {check["status"] for check in found.values()} <= {OK, NOTE}
    assert found["torch"]["what"].startswith("PyTorch")


@pytest.mark.needs("torch", "tensorflow", "dali")
@pytest.mark.slow
def test_everything_on_this_machine(run_cli) -> None:
    done = run_cli("doctor")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines[:-1] if not line.startswith(" ")] == GROUPS
    for start in ("PyTorch 2", "TensorFlow 2", "DALI "):
        assert any(line.startswith(f"  ok:      {start}") for line in lines)
    assert lines[-1].startswith("Training can run here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "signal 11 (SIGSEGV)"),
        ("raise ImportError('libcudart.so.13: cannot open')", "libcudart.so.13"),
    ],
)
def test_a_pytorch_that_does_not_import(run_cli, tmp_path: Path, code: str, words: str) -> None:
    write_package(tmp_path / "site", "torch", code)
    env = write_package(tmp_path / "site", "tensorflow", "raise ImportError('left out')")
    status, found = found_by(run_cli, **env)
    assert status == 1 and found["torch"]["status"] == PROBLEM
    assert words in found["torch"]["what"] and "make setup" in found["torch"]["remedy"]
    assert found["tensorflow"]["status"] == NOTE and "left out" in found["tensorflow"]["what"]


@pytest.mark.parametrize("variable", ["RN50_RUNS", "RN50_DATA"])
def test_a_folder_that_cannot_be_written(run_cli, tmp_path: Path, variable: str) -> None:
    (tmp_path / "file").touch()
    done = run_cli("doctor", "--quick", env={variable: str(tmp_path / "file" / "inside")})
    assert done.returncode == 1
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("  problem:")]
    assert variable in line and str(tmp_path / "file") in line
    assert done.stdout.splitlines()[-1].startswith("Training cannot run here until")


def test_a_probe_that_hangs_or_crashes() -> None:
    assert "0.5 s" in doctor.probe("import time; time.sleep(600)", limit_s=0.5)["problem"]
    code = 'import os; print(\'{"version": "1"}\', flush=True); os.kill(os.getpid(), 11)'
    assert doctor.probe(code) == {
        "version": "1", "problem": "it crashed with signal 11 (SIGSEGV)"
    }  # fmt: skip


# --- machine --------------------------------------------------------------------------------------


def test_limits_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("100000 100000")
    check = doctor.check_cores(tmp_path)
    assert check.status == NOTE and "1 of the machine's 64" in check.what and "1.0" in check.what
    for gib, status in ((1, PROBLEM), (3, NOTE), (16, OK)):
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(str(gib * GIB))
        check = doctor.check_memory(tmp_path)
        assert check.status == status and f"{gib} GiB" in check.what


def test_a_full_disk_and_small_shared_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RN50_DATA", str(tmp_path))
    monkeypatch.setenv("RN50_RUNS", str(tmp_path))
    usage = namedtuple("usage", "total used free")(GIB, GIB, 2**26)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    data, runs = doctor.check_data_folder(), doctor.check_runs_folder()
    assert data.status == PROBLEM and "RN50_DATA" in data.remedy and runs.status == NOTE
    assert not list(tmp_path.iterdir())  # the trial file is gone
    check = doctor.check_shared_memory(tmp_path)
    assert check.status == NOTE and "64 MiB" in check.what and "--ipc=host" in check.remedy
    (tmp_path / "roadsigns").mkdir()
    (tmp_path / "roadsigns" / ".complete").touch()
    assert doctor.check_data_folder().status == OK


def test_a_host_name_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.socket, "gethostname", lambda: "no-such-host.invalid")
    check = doctor.check_host_name()
    assert check.status == NOTE and "/etc/hosts" in check.remedy


# --- GPUs and frameworks --------------------------------------------------------------------------


def test_gpus_and_their_driver(run_cli) -> None:
    _, found = found_by(run_cli, "--quick", **fake.environment([fake.A100 | {"used": 40000}]))
    assert found["driver"]["status"] == OK and "12.2" in found["driver"]["what"]
    assert found["gpu0"]["status"] == NOTE and "39.1 GiB of it are in use" in found["gpu0"]["what"]
    old = fake.environment([fake.V100], "470.82.01", "11.4")
    _, found = found_by(run_cli, "--quick", **old)
    assert found["driver"]["status"] == NOTE and "525" in found["driver"]["remedy"]
    cards = fake.environment([fake.A100] * 4)
    _, found = found_by(run_cli, "--quick", **cards, CUDA_VISIBLE_DEVICES="2,3")
    assert {"gpu2", "gpu3", "hidden"} <= set(found) and "2 of 4" in found["hidden"]["what"]
    _, found = found_by(run_cli, "--quick", **cards, CUDA_VISIBLE_DEVICES="")
    assert "gpu0" not in found and "unset it" in found["hidden"]["remedy"]
    mig = fake.A100 | fake.slices(("3g.40gb", 40, "MIG-7c3e4d5f-0000-1111"))
    _, found = found_by(run_cli, "--quick", **fake.environment([mig]))
    assert "MIG 3g.40gb, 40 GiB" in found["gpu0"]["what"]


@pytest.mark.parametrize(
    ("fails", "remedy"),
    [("Driver/library version mismatch", "restart the machine"), ("Not Found", "reinstall")],
)
def test_a_broken_driver(run_cli, fails: str, remedy: str) -> None:
    _, found = found_by(run_cli, "--quick", **fake.environment(fails=fails))
    check = found["driver"]
    assert check["status"] == NOTE and fails in check["what"] and remedy in check["remedy"]


def test_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVIDIA_BUILD_ID", raising=False)
    (check,) = doctor.check_gpus(doctor.Driver(), tmp_path)
    assert check.remedy == ""
    (tmp_path / ".dockerenv").touch()
    (check,) = doctor.check_gpus(doctor.Driver(), tmp_path)
    assert "--gpus all" in check.remedy


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        ({"cuda": None, "gpus": 0}, PROBLEM, "built for CPU only"),
        ({"cuda": "13.0", "gpus": 1, "gpu_problem": "driver too old"}, NOTE, "driver too old"),
        ({"cuda": "13.0", "gpus": 0}, NOTE, "sees 0 of 1"),
        ({"cuda": "12.6", "gpus": 1}, OK, "computes on 1 GPU"),
    ],
)
def test_pytorch_and_the_gpu(monkeypatch, facts: dict, status: str, words: str) -> None:
    fake.install(monkeypatch, [fake.V100])
    check = doctor.check_framework("torch", {"version": "2.13.0"} | facts, doctor.hardware.gpus())
    assert check.status == status and words in check.what


@pytest.mark.needs("torch", "horovod")
@pytest.mark.slow
def test_a_horovod_that_does_not_import(run_cli, tmp_path: Path) -> None:
    write_package(tmp_path, "tensorflow", "raise ImportError('left out')")
    env = write_package(tmp_path, "horovod", "")
    write_package(tmp_path / "horovod", "torch", f"raise ImportError({MISSING!r})")
    status, found = found_by(run_cli, **env)
    assert status == 0 and found["horovod"]["status"] == NOTE
    assert MISSING in found["horovod"]["what"] and "make horovod" in found["horovod"]["remedy"]


def test_horovod_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install(monkeypatch, [fake.A100] * 2)
    monkeypatch.setattr(doctor, "has", lambda module: True)
    built = {"torch": {"version": "2", "horovod": ["gloo", "mpi"]}}
    assert doctor.check_horovod(built, ()).status == OK
    check = doctor.check_horovod(built, doctor.hardware.gpus())
    assert check.status == NOTE and "HOROVOD_GPU_OPERATIONS=NCCL" in check.remedy


@pytest.mark.needs("horovod")
@pytest.mark.acceptance  # --check-build loads every framework several times
def test_horovod_agrees_with_check_build() -> None:
    command = [sys.executable, "-m", "horovod.runner.launch", "--check-build"]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    code = doctor.PROBES["torch"] + doctor.HOROVOD.replace("FRAMEWORK", "torch") + doctor.PRINT
    found = doctor.probe(code)
    assert ("[X] PyTorch" in text) == ("horovod" in found)
    controllers = text.split("Controllers:")[1].split("Tensor")[0]
    for name in ("Gloo", "MPI"):
        assert (f"[X] {name}" in controllers) == (name.lower() in found["horovod"])

"""`rn50 doctor`, on this machine and on ones where something is missing or broken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rn50 import doctor
from rn50.doctor import NOTE, OK, PROBLEM
from tests.launch import fake_gpus as fake

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
@pytest.mark.acceptance
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
def test_broken_pytorch_is_reported(run_cli, tmp_path: Path, code: str, words: str) -> None:
    write_package(tmp_path / "site", "torch", code)
    env = write_package(tmp_path / "site", "tensorflow", "raise ImportError('left out')")
    status, found = found_by(run_cli, **env)
    assert status == 1 and found["torch"]["status"] == PROBLEM
    assert words in found["torch"]["what"] and "make setup" in found["torch"]["remedy"]
    assert found["tensorflow"]["status"] == NOTE and "left out" in found["tensorflow"]["what"]


@pytest.mark.parametrize("variable", ["RN50_RUNS", "RN50_DATA"])
def test_unwritable_folder_is_reported(run_cli, tmp_path: Path, variable: str) -> None:
    (tmp_path / "file").touch()
    done = run_cli("doctor", "--quick", env={variable: str(tmp_path / "file" / "inside")})
    assert done.returncode == 1
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("  problem:")]
    assert variable in line and str(tmp_path / "file") in line
    assert done.stdout.splitlines()[-1].startswith("Training cannot run here until")


def test_hanging_probe_is_reported() -> None:
    assert "0.5 s" in doctor.probe("import time; time.sleep(600)", limit_s=0.5)["problem"]


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
    mig = fake.A100 | fake.slices(("3g.40gb", 40, "MIG-7c3e4d5f-0000-1111"))
    slice_of = fake.environment([mig]) | {"CUDA_VISIBLE_DEVICES": "MIG-7c3e4d5f-0000-1111"}
    _, found = found_by(run_cli, "--quick", **slice_of)
    assert "MIG 3g.40gb, 40 GiB" in found["gpu0"]["what"]
    mismatch = fake.environment(fails="Driver/library version mismatch")
    _, found = found_by(run_cli, "--quick", **mismatch)
    assert found["driver"]["status"] == NOTE and "restart the machine" in found["driver"]["remedy"]


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        ({"cuda": None, "gpus": 0}, PROBLEM, "built for CPU only"),
        ({"cuda": "13.0", "gpus": 1, "gpu_problem": "no kernel image"}, PROBLEM, "no kernel image"),
        ({"cuda": "13.0", "gpus": 0}, PROBLEM, "sees 0 of 1"),
        ({"cuda": "12.6", "gpus": 1}, OK, "computes on 1 GPU"),
    ],
)
def test_pytorch_and_the_gpu(monkeypatch, facts: dict, status: str, words: str) -> None:
    fake.install(monkeypatch, [fake.V100])
    check = doctor.check_framework("torch", {"version": "2.13.0"} | facts, doctor.hardware.gpus())
    assert check.status == status and words in check.what


@pytest.mark.needs("torch", "horovod")
@pytest.mark.slow
def test_broken_horovod_is_reported(run_cli, tmp_path: Path) -> None:
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
    check = next(doctor.check_communication(built, doctor.hardware.gpus()))
    assert check.status == NOTE and "NCCL's headers" in check.remedy

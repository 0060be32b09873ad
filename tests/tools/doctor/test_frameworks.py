"""The doctor on DALI and Horovod: what is missing and what does not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rn50.doctor import frameworks, gpu
from rn50.doctor.check import NOTE, OK, Answer, Check, ask
from rn50lib.hardware import nvidia
from tests.launch import fake_nvidia_smi as fake


def test_a_probe_that_hangs_is_ended() -> None:
    answer = ask("import time; time.sleep(600)", limit_s=0.5)
    assert "no answer within 0.5 s" in answer.problem


def test_a_crash_leaves_what_was_found_before() -> None:
    code = 'import os; print(\'{"version": "1"}\', flush=True); os.kill(os.getpid(), 11)'
    answer = ask(code)
    assert answer.facts == {"version": "1"}
    assert answer.problem == "it crashed with signal 11 (SIGSEGV)"


def test_the_dali_wheel_is_the_one_that_the_setup_takes(repository: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(repository / "scripts"))
    import facts
    import plan

    for generation in (None, 10, 11, 12, 13):
        machine = facts.Facts("3.11.0", "Linux", "x86_64", generation, None, True, False, None)
        wheel, _ = plan.choose_dali(machine)
        assert wheel is not None
        assert frameworks.wheel_for((generation, 0) if generation else None) == wheel.split("==")[0]


def test_a_dali_for_a_newer_driver(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "has", lambda module: True)
    monkeypatch.setattr(
        frameworks, "version", lambda name: "2.4.0" if name == frameworks.DALI[2] else None
    )
    check = frameworks.dali(Answer({"version": "2.4.0"}), gpus([fake.A100], "525.60.13", "12.0"))
    assert check.status == NOTE and "nvidia-dali-cuda120" in check.remedy


def horovod(tmp_path: Path, monkeypatch, answers, found=None, installed=True) -> Check:
    monkeypatch.setattr(frameworks, "has", lambda module: installed or module != "horovod")
    monkeypatch.setattr(frameworks, "version", lambda name: "0.28.1")
    found = found or gpu.Gpus(nvidia.Driver(False), None, ())
    return frameworks.horovod(answers, found)


BUILT = {"version": "2", "horovod_gloo": True, "horovod_mpi": True, "horovod_nccl": False}
MISSING = "Extension horovod.torch has not been built: /x/mpi_lib_v2.so not found"


def test_horovod_in_plain_words(tmp_path: Path, monkeypatch, gpus) -> None:
    both = {"torch": Answer(BUILT), "tensorflow": Answer(BUILT)}
    check = horovod(tmp_path, monkeypatch, both)
    assert (check.status, check.what) == (
        OK,
        "Horovod 0.28.1: for PyTorch and TensorFlow, over Gloo and MPI",
    )
    one = {
        "torch": Answer({"version": "2", "horovod_problem": MISSING}),
        "tensorflow": Answer(BUILT),
    }
    check = horovod(tmp_path, monkeypatch, one)
    assert check.status == NOTE and "make horovod" in check.remedy
    assert "not for PyTorch: Extension horovod.torch has not been built" in check.what
    crashed = {"torch": Answer({"version": "2"}, "it crashed with signal 11 (SIGSEGV)")}
    check = horovod(tmp_path, monkeypatch, crashed)
    assert check.status == NOTE and "signal 11" in check.what
    check = horovod(tmp_path, monkeypatch, both, gpus([fake.A100]))
    assert check.status == NOTE and "HOROVOD_GPU_OPERATIONS=NCCL" in check.remedy
    check = horovod(tmp_path, monkeypatch, {}, installed=False)
    assert check.status == NOTE and "make horovod" in check.remedy


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_horovods_own_message_arrives(stub, tmp_path: Path, monkeypatch) -> None:
    env = stub(tmp_path, "horovod", "")
    stub(tmp_path / "horovod", "torch", f"raise ImportError({MISSING!r})")
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])
    code = frameworks.TORCH_PROBE + frameworks.HOROVOD_PROBE.replace("FRAMEWORK", "torch")
    answer = ask(code)
    assert not answer.problem
    assert answer.facts["horovod_problem"] == MISSING
    assert answer.facts["version"] and answer.facts["gloo"] is True


@pytest.mark.needs("horovod")
@pytest.mark.acceptance  # --check-build loads every framework several times
def test_horovod_agrees_with_check_build() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "horovod.runner.launch", "--check-build"],
        capture_output=True,
        text=True,
    ).stdout
    code = frameworks.TORCH_PROBE + frameworks.HOROVOD_PROBE.replace("FRAMEWORK", "torch")
    answer = ask(code)
    assert ("[X] PyTorch" in said) == ("horovod_gloo" in answer.facts)
    controllers = said.split("Controllers:")[1].split("Tensor")[0]
    for name in ("Gloo", "MPI"):
        assert (f"[X] {name}" in controllers) == answer.facts[f"horovod_{name.lower()}"]

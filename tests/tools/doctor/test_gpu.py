"""The doctor on GPUs and drivers, and on whether PyTorch uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rn50.doctor import frameworks, gpu
from rn50.doctor.check import NOTE, OK, PROBLEM, Answer, Check
from tests.launch import fake_nvidia_smi as fake


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.mark.parametrize(
    ("card", "driver", "cuda", "driver_status", "words"),
    [
        (fake.V100, "450.80.02", "11.0", NOTE, "CUDA 13 has dropped it"),
        (fake.V100, "525.60.13", "12.0", OK, "CUDA 13 has dropped it"),
        (fake.A100, "525.60.13", "12.0", OK, "bfloat16 and TF32"),
        (fake.H100, "580.65.06", "13.0", OK, "capability 9.0"),
        (fake.T4, "580.65.06", "13.0", OK, "neither bfloat16 nor TF32"),
        (fake.P100, "470.82.01", "11.4", NOTE, "no Tensor Cores"),
    ],
)
def test_gpus(gpus, card, driver, cuda, driver_status, words) -> None:
    found = by_name(gpu.gpus(gpus([card], driver, cuda)))
    assert found["driver"].status == driver_status
    assert driver in found["driver"].what and cuda in found["driver"].what
    if driver_status == NOTE:
        assert "525" in found["driver"].remedy
    card_check = found["gpu0"]
    assert card["name"] in card_check.what and words in card_check.what


def test_the_choice_of_gpus_is_told(gpus) -> None:
    some = gpu.gpus(gpus([fake.A100] * 4, visible="2,3"))
    assert [c.name for c in some] == ["driver", "gpu2", "gpu3", "hidden"]
    assert "hides 2 of 4" in some[-1].what
    none = gpu.gpus(gpus([fake.A100] * 4, visible=""))
    assert [c.name for c in none] == ["driver", "hidden"]
    assert "unset it" in none[-1].remedy


def test_a_mig_slice_is_told_as_the_gpu(gpus) -> None:
    first, second = "MIG-7c3e4d5f-0000-1111", "MIG-e5550000-0000-1111"
    card = fake.A100 | fake.slices(("1g.10gb", first), ("3g.40gb", second))
    named = by_name(gpu.gpus(gpus([card], visible=second)))
    assert named["gpu0"].status == OK and "MIG 3g.40gb, 40 GiB" in named["gpu0"].what
    assert (
        "hides 1 of 2 GPU(s) or MIG slice(s)" in named["hidden"].what and not named["hidden"].remedy
    )
    unnamed = by_name(gpu.gpus(gpus([card])))
    assert "MIG 1g.10gb" in unnamed["gpu0"].what
    assert "sees one MIG slice" in unnamed["hidden"].what
    assert "CUDA_VISIBLE_DEVICES" in unnamed["hidden"].remedy
    (none,) = gpu.gpus(gpus([fake.A100 | fake.slices()]))
    assert "MIG mode is on" in none.what and "nvidia-smi mig" in none.remedy


def test_memory_held_by_others(gpus) -> None:
    found = by_name(gpu.gpus(gpus([fake.A100 | {"memory.used": "40000"}])))
    assert found["gpu0"].status == NOTE
    assert "39 GiB of it are in use" in found["gpu0"].what


@pytest.mark.parametrize(
    ("fails", "remedy"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "reinstall",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", "restart the machine"),
        ("No devices were found", "--gpus all"),
    ],
)
def test_a_broken_driver(gpus, fails: str, remedy: str) -> None:
    (check,) = gpu.gpus(gpus(fails=fails))
    assert check.status == NOTE
    assert fails in check.what and remedy in check.remedy


def test_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NVIDIA_BUILD_ID", raising=False)
    (plain,) = gpu.gpus(gpu.find(), root=tmp_path)
    assert plain.remedy == ""
    (tmp_path / ".dockerenv").touch()
    (inside,) = gpu.gpus(gpu.find(), root=tmp_path)
    assert "--gpus all" in inside.remedy


@pytest.mark.parametrize(
    ("card", "driver", "cuda", "answer", "status", "said", "remedy"),
    [
        (fake.A100, "535.1", "12.2", {"cuda": None}, PROBLEM, "no run starts", "make setup"),
        (fake.A100, "535.1", "12.2", {"cuda": "13.0"}, NOTE, "serves CUDA 12.2", "driver 580"),
        (
            fake.H100,
            "580.1",
            "13.0",
            {"cuda": "13.0", "gpu_problem": "CUDA error: out of memory"},
            NOTE,
            "out of memory",
            "nvidia-smi",
        ),
        (
            fake.H100,
            "580.1",
            "13.0",
            {"cuda": "13.0", "gpus": 0},
            NOTE,
            "sees 0 of 1",
            "CUDA_VISIBLE_DEVICES",
        ),
        (
            fake.V100,
            "525.1",
            "12.0",
            {"cuda": "12.6", "gpus": 1},
            OK,
            "computes on 1 GPU",
            "",
        ),
    ],
)
def test_pytorch_and_the_gpu(gpus, card, driver, cuda, answer, status, said, remedy) -> None:
    facts = {"version": "2.13.0"} | answer
    check = frameworks.torch(Answer(facts), gpus([card], driver, cuda))
    assert check.status == status, check
    assert said in check.what and remedy in check.remedy

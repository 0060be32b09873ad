"""Cores, memory, processor, GPUs: from files as the kernel writes them, and on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rn50lib import hardware
from tests.launch import fake_gpus as fake

GIB = 2**30
V2 = {"proc/self/cgroup": "0::/user.slice/job\n"}


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota", "limit"),
    [
        pytest.param({}, None, None, id="no control groups"),
        pytest.param(V2 | {"user.slice/job/cpu.max": "max 100000"}, None, None, id="no limit"),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "cpu.max": "150000 100000", "memory.max": str(4 * GIB)},
            1.5, 4 * GIB, id="container",
        ),
        pytest.param(
            V2 | {"user.slice/job/cpu.max": "800000 100000", "user.slice/cpu.max": "200000 100000",
                  "user.slice/job/memory.max": "max", "user.slice/memory.max": str(3 * GIB)},
            2.0, 3 * GIB, id="a parent's limit is lower",
        ),
        pytest.param(V2 | {"cpu.max": "50000 100000"}, 0.5, None, id="the path is the host's"),
        pytest.param(
            {"proc/self/cgroup": "0::/../../other\n", "cpu.max": "100000 100000"}, 1.0, None,
            id="different namespace",
        ),
    ],
)  # fmt: skip
def test_limits_of_control_groups(tmp_path: Path, files, quota, limit) -> None:
    moved = {n if n.startswith("proc") else f"sys/fs/cgroup/{n}": t for n, t in files.items()}
    root = lay_out(tmp_path, moved)
    assert hardware.cpu_quota(root) == quota
    allowed = hardware.affinity() if quota is None else max(1, int(quota))
    assert hardware.usable_cores(root) == min(hardware.affinity(), allowed)
    total = hardware.total_memory()
    assert hardware.usable_memory(root) == min(total, limit or total)


def test_this_machine_agrees_with_nproc_and_meminfo() -> None:
    if shutil.which("nproc") and hardware.cpu_quota() is None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
        command = [
            sys.executable,
            "-c",
            "from rn50lib import hardware as h; print(h.machine().cores)",
        ]
        for taskset in ([], ["taskset", "-c", str(min(os.sched_getaffinity(0)))]):
            cores = subprocess.check_output([*taskset, "nproc"], env=env)
            assert subprocess.check_output([*taskset, *command], env=env) == cores
    total = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) * 1024
    assert hardware.total_memory() == pytest.approx(total, rel=0.01)


def test_gpus_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {"name": "NVIDIA GB10", "mib": 0, "capability": (12, 1)}  # memory is not reported
    fake.install(monkeypatch, [fake.H100, shared], "580.65.06", "13.0")
    driver = hardware.driver()
    assert (driver.version, driver.cuda, driver.problem) == ("580.65.06", (13, 0), "")
    first, second = hardware.gpus()
    assert (first.name, first.capability, first.index) == (fake.H100["name"], (9, 0), 0)
    assert first.memory == 81559 * 2**20 and second.memory == 0 and first.uuid != second.uuid
    hardware.machine.cache_clear()
    report = json.loads(json.dumps(hardware.machine().to_dict()))
    hardware.machine.cache_clear()
    assert len(report["gpus"]) == 2 and report["python"]


def test_without_a_gpu_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = "Driver/library version mismatch"
    fake.install(monkeypatch, fails=fails)
    assert hardware.driver() == hardware.Driver(problem=fails) and hardware.gpus() == ()
    fake.install(monkeypatch)
    assert "0 GPUs" in hardware.driver().problem and hardware.gpus() == ()


@pytest.mark.parametrize(
    ("devices", "indexes"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("1,9,0", [1]),  # CUDA stops at the first that it does not find
        ("0, GPU-2a7c ,7", [0, 2]),
        ("GPU-", []),
        ("MIG-1a7c1e2d-0000-1111-2222-333344445555", []),
    ],
)
def test_cuda_visible_devices(monkeypatch, devices, indexes) -> None:
    fake.install(monkeypatch, [fake.A100] * 3)
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    assert [gpu.index for gpu in hardware.gpus()] == indexes


SLICES = (
    ("1g.10gb", 10, "MIG-7c3e4d5f-0000-1111-2222-333344445555"),
    ("3g.40gb", 40, "MIG-e5550000-0000-1111-2222-333344445555"),
)


def test_a_mig_slice_is_a_gpu(monkeypatch) -> None:
    fake.install(monkeypatch, [fake.A100, fake.A100 | fake.slices(*SLICES)])
    for _, gib, uuid in SLICES:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
        (gpu,) = hardware.gpus()
        assert (gpu.uuid, gpu.memory, gpu.capability) == (uuid, gib * GIB, (8, 0))
        assert gpu.index == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(uuid for _, _, uuid in SLICES))
    assert [gpu.uuid for gpu in hardware.gpus()] == [SLICES[0][2]]  # CUDA shows one slice
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"0,{SLICES[1][2]}")
    assert [gpu.uuid for gpu in hardware.gpus()] == [SLICES[1][2]]  # and no whole GPU next to it
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # the first slice of a GPU in MIG mode
    assert [(gpu.uuid, gpu.memory) for gpu in hardware.gpus()] == [(SLICES[0][2], 10 * GIB)]
    fake.install(monkeypatch, [fake.A100 | fake.slices(*SLICES)])
    assert [(gpu.uuid, gpu.memory) for gpu in hardware.gpus()] == [(SLICES[0][2], 10 * GIB)]


@pytest.mark.needs("gpu")
def test_a_real_gpu_agrees_with_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listed = subprocess.check_output(["nvidia-smi", "-L"], text=True)
    found = hardware.driver().gpus
    assert len(found) == sum("UUID: GPU-" in line for line in listed.splitlines())
    for gpu in found:
        assert gpu.uuid in listed and gpu.memory > GIB and gpu.capability > (3, 0)

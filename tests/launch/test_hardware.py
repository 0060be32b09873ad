"""Cores, memory, processor, GPUs: from files as the kernel lays them out, and as they are here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rn50.doctor.gpu import cuda_version
from rn50lib import hardware
from rn50lib.hardware import nvidia
from tests.launch import fake_nvidia_smi as fake


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/user.slice/job\n"}
V1 = {"proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n"}
CONTAINER = {"proc/self/cgroup": "0::/\n"}
GIB = 2**30


@pytest.mark.parametrize(
    ("files", "quota", "limit"),
    [
        pytest.param({}, None, None, id="no control groups"),
        pytest.param(
            V2 | {"sys/fs/cgroup/user.slice/job/cpu.max": "max 100000"}, None, None, id="max"
        ),
        pytest.param(
            CONTAINER
            | {"sys/fs/cgroup/cpu.max": "150000 100000", "sys/fs/cgroup/memory.max": str(4 * GIB)},
            1.5,
            4 * GIB,
            id="container with version 2",
        ),
        pytest.param(
            V2
            | {
                "sys/fs/cgroup/user.slice/job/cpu.max": "800000 100000",
                "sys/fs/cgroup/user.slice/cpu.max": "200000 100000",
                "sys/fs/cgroup/user.slice/job/memory.max": "max",
                "sys/fs/cgroup/user.slice/memory.max": str(3 * GIB),
            },
            2.0,
            3 * GIB,
            id="a group above is tighter",
        ),
        pytest.param(
            V2 | {"sys/fs/cgroup/cpu.max": "300000 100000", "sys/fs/cgroup/memory.max": str(GIB)},
            3.0,
            GIB,
            id="the path is the host's",
        ),
        pytest.param(
            V1
            | {
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            4.0,
            2 * GIB,
            id="version 1",
        ),
        pytest.param(
            V1
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
            None,
            id="version 1 without limits",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/../../other\n", "sys/fs/cgroup/cpu.max": "100000 100000"},
            1.0,
            None,
            id="another namespace",
        ),
        pytest.param(
            CONTAINER | {"sys/fs/cgroup/cpu.max": "", "sys/fs/cgroup/memory.max": "?"},
            None,
            None,
            id="garbage",
        ),
    ],
)
def test_limits_of_control_groups(tmp_path: Path, files, quota, limit) -> None:
    root = lay_out(tmp_path, files)
    assert hardware.cpu_quota(root) == quota
    assert hardware.memory_limit(root) == limit
    cores = hardware.usable_cores(root)
    expected = (
        hardware.affinity() if quota is None else min(hardware.affinity(), max(1, int(quota)))
    )
    assert cores == expected
    memory = hardware.usable_memory(root)
    assert memory == min(hardware.total_memory(), limit or hardware.total_memory())


def test_half_a_core_counts_as_one(tmp_path: Path) -> None:
    root = lay_out(tmp_path, CONTAINER | {"sys/fs/cgroup/cpu.max": "50000 100000"})
    assert hardware.usable_cores(root) == 1


def test_affinity_is_respected() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from rn50lib import hardware; print(hardware.usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_this_machine_agrees_with_the_system() -> None:
    found = hardware.machine()
    nproc = shutil.which("nproc")
    if nproc and hardware.cpu_quota() is None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
        assert found.cores == int(subprocess.check_output([nproc], env=env))
    meminfo = Path("/proc/meminfo")
    if meminfo.exists() and hardware.memory_limit() is None:
        total = int(meminfo.read_text().split("MemTotal:")[1].split()[0]) * 1024
        assert abs(found.memory - total) < 0.01 * total


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse avx512_bf16 amx_bf16 amx_tile", {"avx512_bf16", "amx_bf16"}),
        ("fpu sse avx2", set()),
    ],
)
def test_processor(tmp_path: Path, flags: str, expected: set[str]) -> None:
    text = f"processor\t: 0\nmodel name\t: A Fast One\nflags\t\t: {flags}\n\nprocessor\t: 1\n"
    name, found = hardware.processor(lay_out(tmp_path, {"proc/cpuinfo": text}))
    assert name == "A Fast One"
    assert found & {"avx512_bf16", "amx_bf16"} == expected


def test_machine_needs_no_framework() -> None:
    code = (
        "import sys; from rn50lib import hardware; hardware.machine();"
        "print([m for m in ('numpy', 'torch', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- GPUs -----------------------------------------------------------------------------------------


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.driver() == nvidia.Driver(present=False)
    assert nvidia.gpus() == ()


def test_gpus_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", fake.install(tmp_path, [fake.H100, fake.H100], "535.104.05", "12.2"))
    first, second = nvidia.gpus()
    assert (first.name, first.capability, first.driver) == (fake.H100["name"], (9, 0), "535.104.05")
    assert first.memory == 81559 * 2**20
    assert (first.index, second.index) == (0, 1) and first.uuid != second.uuid
    assert cuda_version() == (12, 2)


@pytest.mark.parametrize("gpu", [fake.V100, fake.T4, fake.A100, fake.P100])
def test_old_drivers_do_not_tell_the_capability(tmp_path: Path, monkeypatch, gpu) -> None:
    monkeypatch.setenv("PATH", fake.install(tmp_path, [gpu], "450.80.02", "11.0"))
    (found,) = nvidia.driver().gpus
    assert ".".join(map(str, found.capability)) == gpu["compute_cap"]


def test_what_the_driver_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"name": "NVIDIA Something New", "memory.total": "[N/A]", "compute_cap": "[N/A]"}
    monkeypatch.setenv("PATH", fake.install(tmp_path, [odd]))
    (found,) = nvidia.driver().gpus
    assert found.memory == 0 and found.capability == nvidia.UNKNOWN


def test_a_driver_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    monkeypatch.setenv("PATH", fake.install(tmp_path, fails=said))
    assert nvidia.driver() == nvidia.Driver(True, problem=said)
    assert nvidia.gpus() == ()


def test_a_driver_that_hangs(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    program.chmod(0o755)
    code = "from rn50lib.hardware import nvidia; print(nvidia.ask(timeout_s=0.3))"
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "gave no answer within 0.3 s" in done.stdout


@pytest.mark.parametrize(
    ("devices", "indexes"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("1,9,0", [1]),  # CUDA stops at the first that it does not find
        ("GPU-1a7c1e2d-0000-1111-2222-333344445555", [1]),
        ("GPU-2a7c", [2]),
        ("GPU-", []),  # the beginning of all of them
        ("0, GPU-2a7c ,7", [0, 2]),
        ("MIG-1a7c1e2d-0000-1111-2222-333344445555", []),
    ],
)
def test_cuda_visible_devices(tmp_path: Path, monkeypatch, devices, indexes) -> None:
    if devices is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    monkeypatch.setenv("PATH", fake.install(tmp_path, [fake.A100] * 3))
    assert [gpu.index for gpu in nvidia.gpus()] == indexes


SLICES = (
    ("1g.10gb", "MIG-7c3e4d5f-0000-1111-2222-333344445555"),
    ("1c.3g.40gb", "MIG-7c9990aa-0000-1111-2222-333344445555"),
    ("1g.10gb+me", "MIG-e5550000-0000-1111-2222-333344445555"),
)


@pytest.mark.parametrize(
    ("devices", "uuid", "gigabytes"),
    [
        (SLICES[1][1], SLICES[1][1], 40),
        ("MIG-e5", SLICES[2][1], 10),
        ("MIG-7c", None, 0),  # the beginning of two
        ("MIG-7c9,MIG-e5", SLICES[1][1], 40),  # CUDA shows a process one slice, the first
        ("0,MIG-e5", SLICES[2][1], 10),  # and no whole GPU beside it
        ("1", SLICES[0][1], 10),
        ("GPU-1a7c", SLICES[0][1], 10),
        (None, SLICES[0][1], 10),
        ("", None, 0),
        ("-1", None, 0),
    ],
)
def test_a_mig_slice_is_a_gpu(tmp_path: Path, monkeypatch, devices, uuid, gigabytes) -> None:
    """As NVIDIA's MIG user guide has it, "CUDA Device Enumeration" and "CUDA Visible Devices"."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    cards = [fake.A100, fake.A100 | fake.slices(*SLICES)]
    monkeypatch.setenv("PATH", fake.install(tmp_path, cards))
    found = nvidia.gpus()
    if uuid is None:
        assert found == ()
        return
    (gpu,) = found
    assert gpu.uuid == uuid
    assert gpu.memory == gigabytes * 2**30 and gpu.capability == (8, 0) and gpu.index == 1


def test_mig_mode_without_a_slice_is_no_gpu(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", fake.install(tmp_path, [fake.A100 | fake.slices()]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert nvidia.gpus() == ()
    assert nvidia.driver().problem == "MIG mode is on, and there are no slices"


def test_the_report_holds_plain_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(json.dumps(hardware.machine().to_dict()))
    assert set(found) >= {"processor", "cores", "memory", "bfloat16", "gpus", "system", "python"}


@pytest.mark.needs("gpu")
def test_a_real_gpu_agrees_with_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listed = subprocess.check_output(["nvidia-smi", "-L"], text=True)
    found = nvidia.gpus()
    assert len(found) == sum(line.startswith("GPU ") for line in listed.splitlines())
    for gpu in found:
        assert gpu.uuid in listed and gpu.memory > 2**30 and gpu.capability > (3, 0)

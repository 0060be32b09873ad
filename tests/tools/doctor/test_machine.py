"""The doctor on cores, memory, shared memory, disk and the name of machines laid out for it."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path

import pytest

from rn50.doctor import machine
from rn50.doctor.check import NOTE, OK, PROBLEM, size

GIB = 2**30
Usage = namedtuple("Usage", "total used free")


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_quota_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(machine.hardware, "affinity", lambda: 8)
    root = lay_out(
        tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000"}
    )
    check = machine.cores(root)
    assert check.status == NOTE
    for part in ("2 of the machine's 64", "affinity mask leaves 8", "quota is 2.5"):
        assert part in check.what


@pytest.mark.parametrize(
    ("limit", "status", "part"),
    [
        (1 * GIB, PROBLEM, "--memory"),
        (3 * GIB, NOTE, "-b"),
        (16 * GIB, OK, "16 GiB of memory (the control group's limit"),
    ],
)
def test_memory(tmp_path: Path, monkeypatch, limit, status, part) -> None:
    monkeypatch.setattr(machine.hardware, "total_memory", lambda: 64 * GIB)
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(limit),
        },
    )
    check = machine.memory(root)
    assert check.status == status, check
    assert part in str(check)


def test_small_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: Usage(2**26, 0, 2**26))
    check = machine.shared(tmp_path)
    assert check.status == NOTE
    assert "64 MiB" in check.what and "--ipc=host" in check.remedy


def test_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine.shared_memory, "SharedMemory", refuse)
    check = machine.shared(tmp_path)
    assert check.status == PROBLEM and "--data-nthreads 0" in check.remedy


def test_sizes() -> None:
    texts = [size(n) for n in (2**16, 2**26, 3.4 * GIB, 252 * GIB, 1.5 * 2**40)]
    assert texts == ["64 KiB", "64 MiB", "3.4 GiB", "252 GiB", "1.5 TiB"]


def test_a_complete_data_set_may_be_read_only(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RN50_DATA", str(tmp_path))
    (tmp_path / "roadsigns").mkdir()
    (tmp_path / "roadsigns" / ".complete").touch()
    monkeypatch.setattr(machine, "room", lambda folder: (0, "Read-only file system"))
    assert machine.data_folder().status == OK


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RN50_DATA", str(tmp_path))
    monkeypatch.setenv("RN50_RUNS", str(tmp_path))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: Usage(GIB, GIB, 2**20))
    assert machine.data_folder().status == PROBLEM
    assert "RN50_DATA" in machine.data_folder().remedy
    assert machine.runs_folder().status == NOTE
    assert not list(tmp_path.iterdir())  # the trial file is gone


def test_a_nameless_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.socket, "gethostname", lambda: "no-such-host.invalid")
    check = machine.localhost()
    assert check.status == NOTE and "/etc/hosts" in check.remedy

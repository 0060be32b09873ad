"""Timings that other processes disturbed are marked, and are not compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rn50lib import contention, hardware
from rn50lib.contention import Contention, Used, cores
from rn50lib.report import Report
from tests import fake_nvidia_smi as fake
from tests.support import TINY, Photos, strict_json
from workshop import session
from workshop.expected import Expected

PATIENCE = 60.0


@pytest.mark.parametrize(
    ("everything", "idle", "own", "per_cent"),
    [
        (20.0, 0.0, 20.0, 0),  # two cores for 10 s, all of it the run's
        (20.0, 0.0, 11.0, 45),
        (18.0, 2.0, 15.0, 15),
        (20.0, 0.0, 19.0, 0),  # what a kernel and a notebook take
        (12.0, 8.0, 4.0, 0),  # others were busy, but a core was free all the time
        (0.3, 0.0, 0.1, None),  # too short to tell
    ],
)
def test_others_are_told_where_they_took_what_was_wanted(everything, idle, own, per_cent) -> None:
    first = Used(1000.0, 500.0, 7.0)
    found = cores(first, Used(1000.0 + everything, 500.0 + idle, 7.0 + own))
    if not per_cent:
        assert found == (None if per_cent is None else [])
    else:
        assert found == [f"other processes used {per_cent} % of the cores while it was timed"]


def test_only_the_run_s_cores_are_looked_at(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3})
    (tmp_path / "proc").mkdir()
    lines = [f"cpu{i} {100 * 10**i} 1 2 {50 * 10**i} 5 3 4 6 70 80" for i in range(4)]
    (tmp_path / "proc/stat").write_text("\n".join(["cpu 9 9 9 9 9 9 9 9 9 9", *lines, "intr 7"]))
    found = contention.used(tmp_path)
    tick = os.sysconf("SC_CLK_TCK")
    assert found is not None
    assert found.all * tick == pytest.approx(1000 + 100_000 + 2 * (1 + 2 + 3 + 4 + 6))
    assert found.idle * tick == pytest.approx(500 + 50_000 + 2 * 5)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hardware.machine.cache_clear()
    yield
    hardware.machine.cache_clear()


def test_where_nobody_looks_nothing_is_claimed(
    tmp_path: Path, no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Contention(root=tmp_path) as others:  # no /proc/stat, as on macOS
        assert others.found() is None
    with Contention(looks=False) as others:
        assert others.found() is None
    monkeypatch.setattr(contention, "psutil", None)
    with Contention() as others:
        assert others.found() is None


@pytest.mark.needs("linux_x86_64")
def test_an_empty_list_says_that_somebody_looked(tmp_path: Path, no_gpu: None) -> None:
    stat = tmp_path / "proc/stat"
    stat.parent.mkdir()
    idle = "".join(f"cpu{i} 1 0 1 {{}} 0 0 0 0 0 0\n" for i in range(os.cpu_count() or 1))
    stat.write_text(idle.format(*[1000] * (os.cpu_count() or 1)))
    with Contention(root=tmp_path) as others:
        assert others.found() is None  # nothing timed yet
        stat.write_text(idle.format(*[2000] * (os.cpu_count() or 1)))
        assert others.found() == []


SPIN = "import time\nend = time.time() + {}\nwhile time.time() < end: pass"


@pytest.mark.needs("linux_x86_64")
def test_a_run_s_own_processes_are_no_others() -> None:
    """The work of a child counts as the run's while it lives and when it has ended."""
    before = contention.used()
    child = subprocess.Popen([sys.executable, "-c", SPIN.format(0.3)])
    while child.poll() is None:
        time.sleep(0.05)
        during = contention.used()
        assert before and during and during.own >= before.own
    child.wait()
    after = contention.used()
    assert before and after and after.own - before.own > 0.05  # it may have had to wait for a core


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[None]:
    """Processes that are nobody's children and keep every core busy."""
    folder = tmp_path / "crowd"
    folder.mkdir()
    program = f"""import os
if os.fork():
    os._exit(0)
os.setsid()
open(f"{folder}/{{os.getpid()}}", "w").close()
{SPIN.format(60)}"""
    cores = len(os.sched_getaffinity(0))
    for _ in range(cores):
        subprocess.run([sys.executable, "-c", program], check=True)
    end = time.monotonic() + PATIENCE
    while len(list(folder.iterdir())) < cores and time.monotonic() < end:
        time.sleep(0.02)
    yield
    for file in folder.iterdir():
        os.kill(int(file.name), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.needs("torch", "linux_x86_64")
def test_a_report_says_that_others_used_the_cores(
    rn50: Callable[..., Any], photos: Photos, trained: Path, crowd: None, tmp_path: Path
) -> None:
    # `trained` has imported the framework, which would take its time beside the crowd
    ended = rn50("train", "--data-root", photos.root, *TINY, "-e", "4", "--no-val",
                 "--report", "r.json")  # fmt: skip
    assert ended.status == 0, ended.err
    (line,) = strict_json(tmp_path / "r.json")["env"]["contended"]
    share = int(line.removeprefix("other processes used ").split()[0])
    assert 25 <= share <= 100


# --- GPUs -----------------------------------------------------------------------------------------


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., set[int]]]:
    """`gpus([(gpu, pid, per cent), ...])`: the strangers that a look finds on GPUs 0 and 1."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def look(at_work: list[tuple[int, int, int]], visible: str = "0,1") -> set[int]:
        path = fake.install(tmp_path / "bin", [fake.H100] * 3, at_work=at_work)
        monkeypatch.setenv("PATH", path)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        hardware.machine.cache_clear()
        with Contention() as others:
            end = time.monotonic() + PATIENCE
            while not others.looked and time.monotonic() < end:
                time.sleep(0.02)
            return set(others.pids)

    yield look
    hardware.machine.cache_clear()


def test_others_at_work_on_the_run_s_gpus_are_found(gpus) -> None:
    me, stranger = os.getpid(), 1
    assert gpus([(0, me, 90)]) == set()
    assert gpus([(0, me, 90), (0, stranger, 30)]) == {stranger}
    assert gpus([(0, me, 90), (1, stranger, 30)]) == set()  # alone there: taken to be a rank
    assert gpus([(0, me, 90), (0, stranger, 2)]) == set()  # holds memory, computes nothing
    assert gpus([(0, me, 90), (2, stranger, 90)]) == set()  # on a GPU that the run does not use
    assert gpus([(0, 70001, 90), (1, 70002, 90)]) == set()  # pids of outside the container
    assert gpus([(0, 70001, 90), (0, 70002, 60)]) == {70002}
    assert gpus([]) == set()


# --- nothing is divided by them -------------------------------------------------------------------


WHY = ["other processes used 41 % of the cores while it was timed"]


def report(folder: Path, name: str, ips: float, contended: list[str]) -> Path:
    env = {"axes": {"batch_size": {"value": 32}}, "contended": contended}
    made = Report("resnet50", 1, ["rn50"], env, 3600.0)
    made.add("train", {"total_ips": ips, "top1": 40.0})
    made.write(folder / f"{name}.json")
    return folder / f"{name}.json"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Reports of equal runs, the second one disturbed, and a benchmark with a disturbed cell."""
    for name, ips, contended in (("a", 50.0, []), ("b", 25.0, WHY), ("c", 100.0, [])):
        report(tmp_path, name, ips, contended)
    speeds = {"1": {"32": {"train.total_ips": 40.0}}, "2": {"32": {"train.total_ips": 70.0}}}
    cells = {"1": {"32": {"reason": None, "contended": WHY}}, "2": {"32": {"reason": None}}}
    told = {"metric_keys": ["train.total_ips"], "metrics": speeds, "env": {"cells": cells}}
    (tmp_path / "bench.json").write_text(json.dumps(told))
    return ["a.json", "b.json", "c.json", "bench.json"]


def test_a_contended_speed_is_shown_and_not_compared(rn50, files) -> None:
    text = rn50("compare", *files).out
    rows = [line.split() for line in text.splitlines()]
    assert ["1", "32", "50.00", "25.00*", "100.0", "40.00*", "-", "2.00", "-"] in rows
    assert ["2", "32", "-", "-", "-", "70.00", "-", "-", "-"] in rows
    assert "times the speed of one worker" not in text  # that of one worker was disturbed
    assert "* b: other processes used 41 % of the cores while it was timed: this speed" in text
    assert "* bench, n 1, batch 32: other processes" in text
    assert ["train.top1", "1", "40.000", "40.000", "40.000", "-"] in rows  # accuracy is compared
    alone = rn50("compare", "a.json", "b.json").out
    assert "(others used the machine, so there is no ratio)" in alone


def test_json_says_which(rn50, files) -> None:
    told = json.loads(rn50("compare", *files, "--json").out)
    found = {cell["workers"]: cell["contended"] for cell in told["rates"]}
    assert found == {1: [False, True, False, True], 2: [False] * 4}


def test_a_notebook_does_not_lay_a_contended_speed_beside_a_recorded_one(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(session, "_disturbed", {})
    results = {
        key: Expected(key, key, 100.0, "published", unit, source="somebody")
        for key, unit in (("speed", "img/s"), ("top1", "%"))
    }
    here = session.Session("02", "cpu", "", hardware.machine(), tmp_path, tmp_path, results)
    here.expect({"speed": 50.0, "top1": 40.0})
    assert "contended" not in capsys.readouterr().out
    session.disturbed(strict_json(report(tmp_path, "b", 50.0, WHY))["env"]["contended"])
    here.expect({"top1": 40.0})
    assert "contended" not in capsys.readouterr().out
    here.expect({"speed": 50.0, "top1": 40.0})
    text = capsys.readouterr().out
    assert "50.0 img/s (contended)" in text and "40.0 % (contended)" not in text
    assert f"Not to be compared: {WHY[0]}." in text

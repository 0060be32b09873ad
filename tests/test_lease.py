"""Leases of GPUs, taken by real processes; the GPUs themselves are made up."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rn50lib import hardware, launch
from tests import fake_nvidia_smi as fake
from tests.conftest import clean_environment
from tests.support import TINY, Photos, full, open_to_all

PATIENCE = 60.0  # seconds for what takes none when the machine is idle
PROGRAM = """
import os, sys
from rn50lib import lease

if "LEASE_USER" in os.environ:  # only now, as the user may not be allowed to read Python's files
    os.setgroups([])
    os.setgid(int(os.environ["LEASE_USER"]))
    os.setuid(int(os.environ["LEASE_USER"]))
count, names, *work = sys.argv[1:]
devices = {name: number for number, name in enumerate("ABCD") if name in names}
say = lambda line: print(line, flush=True)
with lease.take(devices, int(count), say, *work) as got:
    say("has " + " ".join(got))
    sys.stdin.readline()
"""


class Learner:
    """A process that takes leases and keeps them until it is told to let go."""

    def __init__(
        self, place: Path, count: int, names: str, *work: str, user: int | None = None
    ) -> None:
        as_user = {} if user is None else {"LEASE_USER": str(user)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(count), names, *work],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=clean_environment(RN50_LEASES=str(place), **as_user),
            umask=0o077,  # a careful user's: it must keep nobody out
            # a shell starts what runs behind it with Ctrl-C switched off
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line.rstrip())

    def says(self) -> str:
        return self.lines.get(timeout=PATIENCE)

    def is_silent(self) -> bool:
        time.sleep(0.6)  # it looks again every quarter of a second
        return self.lines.empty()

    def let_go(self) -> None:
        self.process.communicate("\n", timeout=PATIENCE)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@pytest.fixture
def learner(place: Path) -> Iterator[Callable[..., Learner]]:
    started: list[Learner] = []

    def start(count: int, names: str, *work: str, user: int | None = None) -> Learner:
        started.append(Learner(place, count, names, *work, user=user))
        return started[-1]

    yield start
    for one in started:
        one.end()


def waiting(place: Path) -> list[Path]:
    return list((place / "queue").glob("[0-9]*"))


def test_a_free_gpu_is_taken_at_once_and_a_taken_one_waited_for(learner, place) -> None:
    first, second = learner(1, "AB"), None
    assert first.says() == "has A"
    second = learner(1, "AB")
    assert second.says() == "has B"
    third = learner(1, "AB")
    who, _, estimate = third.says().rpartition(", ")
    assert who == "waiting for 1 of the GPUs 0, 1: 2 runs ahead"
    assert estimate == "it is not known for how long"
    assert third.is_silent()
    second.let_go()
    assert third.says() == "has B"
    assert waiting(place) == []


def test_a_lease_ends_with_its_holder_however_it_dies(learner) -> None:
    first = learner(2, "AB")
    assert first.says() == "has A B"
    second = learner(1, "B")
    assert second.says().startswith("waiting for GPU 1: one run ahead")
    first.process.kill()
    assert second.says() == "has B"
    assert learner(1, "A").says() == "has A"


def test_who_waits_is_served_in_turn(learner, place) -> None:
    first, second = learner(1, "A"), learner(1, "B")
    assert (first.says(), second.says()) == ("has A", "has B")
    both = learner(2, "AB")
    assert both.says().startswith("waiting for GPUs 0, 1: 2 runs ahead")
    last = learner(1, "AB")
    assert last.says().startswith("waiting for 1 of the GPUs 0, 1: 3 runs ahead")
    first.let_go()  # one is free, and it is kept for the one who needs two
    assert both.says().startswith("waiting for GPUs 0, 1: one run ahead")
    assert last.says().startswith("waiting for 1 of the GPUs 0, 1: 2 runs ahead")
    assert last.is_silent()
    second.let_go()
    assert both.says() == "has A B"
    both.let_go()
    while (said := last.says()).startswith("waiting"):
        pass
    assert said == "has A"


def test_a_gpu_that_nobody_waits_for_is_not_kept_back(learner) -> None:
    assert learner(1, "A").says() == "has A"
    assert learner(1, "A").says().startswith("waiting for GPU 0: one run ahead")
    assert learner(1, "AB").says() == "has B"


def test_one_that_died_in_the_queue_is_nobody(learner, place) -> None:
    first = learner(1, "A")
    assert first.says() == "has A"
    second, third = learner(1, "A"), None
    assert second.says().startswith("waiting")
    second.process.kill()
    second.process.wait()
    third = learner(1, "A")
    assert third.says().startswith("waiting for GPU 0: one run ahead")
    assert len(waiting(place)) == 1
    first.let_go()
    assert third.says() == "has A"


def remember(place: Path, name: str, *recent: tuple[str | None, float]) -> None:
    """Leases that were held before: what was done, and for how many seconds."""
    (place / "queue").mkdir(parents=True)
    (place / f"{name}.lease").write_text(json.dumps({"recent": recent}))


def test_the_wait_is_estimated_from_what_the_same_work_took(learner, place) -> None:
    remember(place, "A", ("short", 5.0), ("long", 39.0), ("long", 41.0), ("long", 40.0))
    assert learner(1, "A", "long").says() == "has A"
    line = learner(1, "A", "short").says()
    assert line == "waiting for GPU 0: one run ahead, about 40 s"
    line = learner(1, "A").says()  # behind the short one too
    assert line == "waiting for GPU 0: 2 runs ahead, about 45 s"


def test_new_work_is_estimated_as_the_usual(learner, place) -> None:
    remember(place, "A", (None, 100.0), ("other", 1200.0), (None, 200.0))
    assert learner(1, "A", "new").says() == "has A"
    assert learner(1, "A").says() == "waiting for GPU 0: one run ahead, about 3 min"


def test_what_a_lease_took_is_remembered(learner, place) -> None:
    one = learner(1, "A", "work")
    assert one.says() == "has A"
    told = json.loads((place / "A.lease").read_text())
    assert told["holder"]["pid"] == one.process.pid
    one.let_go()
    told = json.loads((place / "A.lease").read_text())
    assert told["holder"] is None
    ((what, seconds),) = told["recent"]
    assert what == "work" and 0 <= seconds < PATIENCE


def test_ctrl_c_ends_the_wait(learner, place) -> None:
    assert learner(1, "A").says() == "has A"
    second = learner(1, "A")
    assert second.says().startswith("waiting")
    second.process.send_signal(signal.SIGINT)
    assert second.process.wait(PATIENCE) != 0
    assert waiting(place) == []


def test_a_folder_that_cannot_be_used_is_told_and_nobody_waits(learner, place) -> None:
    place.write_text("a file")
    for _ in range(2):
        one = learner(1, "AB")
        line = one.says()
        assert line.startswith(f"GPUs are not leased, so runs may collide: {place}")
        assert "RN50_LEASES" in line and one.says() == "has A"


@pytest.mark.needs("root")
def test_users_wait_for_each_other(learner, place, tmp_path) -> None:
    open_to_all(tmp_path)
    tmp_path.chmod(0o1777)  # like /tmp
    first = learner(1, "A", user=1234)
    assert first.says() == "has A"
    other = learner(1, "AB", user=4321)
    assert other.says() == "has B"
    third = learner(1, "AB", user=4321)
    assert third.says().startswith("waiting for 1 of the GPUs 0, 1: 2 runs ahead")
    root = learner(1, "B", user=0)
    assert root.says().startswith("waiting for GPU 1: 2 runs ahead")
    first.let_go()
    assert third.says() == "has A"
    other.end()
    assert root.says() == "has B"
    owners = {path.name: path.stat().st_uid for path in place.glob("*.lease")}
    assert owners == {"A.lease": 1234, "B.lease": 4321}


# --- rn50 run -------------------------------------------------------------------------------------


@pytest.fixture
def machine_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> list[str]:
    """This process and those it starts see two GPUs; returns their ids."""
    monkeypatch.setenv("PATH", fake.install(tmp_path / "bin", [fake.H100] * 2))
    monkeypatch.setenv("RN50_LEASES", str(place))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    hardware.machine.cache_clear()
    yield [gpu.uuid for gpu in hardware.machine().gpus]
    hardware.machine.cache_clear()


def test_ranks_see_only_the_gpus_that_were_leased(machine_of_two, monkeypatch, place) -> None:
    first, second = machine_of_two
    with launch.gpus(full(), None) as one, launch.gpus(full(), None) as two:
        assert one == {"CUDA_VISIBLE_DEVICES": first} and two == {"CUDA_VISIBLE_DEVICES": second}
    with launch.gpus(full(n=2, comm="ddp"), None) as both:
        assert both == {}  # all there are
        assert json.loads((place / f"{second}.lease").read_text())["holder"]["pid"] == os.getpid()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    hardware.machine.cache_clear()
    with launch.gpus(full(), None) as visible:
        assert visible == {}
        told = [json.loads((place / f"{name}.lease").read_text()) for name in (first, second)]
        assert told[0]["holder"] is None and told[1]["holder"]["pid"] == os.getpid()


def test_nothing_is_leased_where_no_gpu_is_used(machine_of_two, monkeypatch, place) -> None:
    for run in (full(step=100.0), full(test_io=True), full(n=2, comm="horovod", hosts="a:1,b:1")):
        with launch.gpus(run, None) as more:
            assert more == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hardware.machine.cache_clear()
    with launch.gpus(full(), None) as more:
        assert more == {} and not place.exists()


def test_the_same_work_has_the_same_name() -> None:
    one, two = full(data_root="a", seed=1), full(data_root="b", report="r.json")
    assert launch.work(one) == launch.work(two) != launch.work(full(num_epochs=5))


def start_run(photos: Photos, folder: Path, *flags: str) -> subprocess.Popen[str]:
    argv = [*launch.program("run"), "--data-root", str(photos.root), *TINY, *flags]
    environ = {k: os.environ[k] for k in ("PATH", "RN50_LEASES")}
    return subprocess.Popen(
        [*argv, "--loader", "native", "--run-dir", str(folder / "run")],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=clean_environment(RN50_RUNS=str(folder), **environ), cwd=folder, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def lines_until(process: subprocess.Popen[str], begin: str) -> list[str]:
    assert process.stdout
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith(begin):
            return lines
    raise AssertionError("\n".join(lines))


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_run_waits_for_its_gpu_and_can_be_interrupted(
    machine_of_two, learner, place, photos: Photos, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("PATH", fake.install(tmp_path / "bin", [fake.H100]))
    remember(place, machine_of_two[0], (None, 40.0))
    hardware.machine.cache_clear()
    flags = ("-e", "1", "--benchmark-iters", "2", "--no-val")
    with launch.gpus(full(), None):
        stopped = start_run(photos, tmp_path, *flags)
        waits = lines_until(stopped, "waiting")[-1]
        assert waits.startswith("waiting for GPU 0: one run ahead, about ")
        os.killpg(stopped.pid, signal.SIGINT)
        rest = stopped.communicate(timeout=PATIENCE)[0]
        assert (stopped.returncode, rest) == (130, "interrupted\n")
        goes_on = start_run(photos, tmp_path, *flags)
        lines_until(goes_on, "waiting")
    rest = goes_on.communicate(timeout=PATIENCE)[0]
    assert goes_on.returncode == 0, rest
    told = json.loads((place / f"{machine_of_two[0]}.lease").read_text())
    assert told["holder"] is None and len(told["recent"]) == 3

"""The cost of an all-reduce: the line through known times, and two real workers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from rn50lib.comm import Local
from rn50lib.errors import UserError
from rn50lib.tools.doctor import allreduce

SIZES = allreduce.SIZES


def measured(**changes) -> allreduce.AllReduceCost:
    seconds = tuple(2e-4 + size / 3e9 for size in SIZES)
    values = {
        "comm": "horovod", "backend": "torch", "n": 4, "device": "host memory", "way": "w",
        "repeats": 5, "sizes": SIZES, "seconds": seconds, "latency_s": 2e-4, "bytes_per_s": 3e9,
        "machine": {"processor": "x"}, "date": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return allreduce.AllReduceCost(**(values | changes))


@pytest.mark.parametrize(("latency", "bandwidth"), [(2e-4, 3e9), (0.0, 1e9), (5e-3, 1.5e8)])
def test_the_line_is_found_again(latency: float, bandwidth: float) -> None:
    seconds = [latency + size / bandwidth for size in SIZES]
    found = allreduce.fit(SIZES, seconds)
    assert found == pytest.approx((latency, bandwidth), rel=1e-6, abs=1e-9)


def test_the_line_serves_small_and_large_sizes_alike() -> None:
    """Noise of 10 % on every size moves both numbers by about as much, and one disturbed size
    hardly at all: a plain fit would take the latency from the error of the largest."""
    rng = np.random.default_rng(0)
    true = np.array([1e-3 + size / 1e9 for size in SIZES])
    for _ in range(20):
        noisy = true * rng.uniform(0.9, 1.1, len(SIZES))
        latency, bandwidth = allreduce.fit(SIZES, noisy)
        assert latency == pytest.approx(1e-3, rel=0.15)
        assert bandwidth == pytest.approx(1e9, rel=0.15)
    true[4] *= 8
    assert allreduce.fit(SIZES, true)[0] == pytest.approx(1e-3, rel=0.25)


def test_neither_number_is_negative() -> None:
    convex = [size / 1e9 * (1 + size / 2**27) for size in SIZES]
    latency, bandwidth = allreduce.fit(SIZES, convex)
    assert latency >= 0 and bandwidth > 0
    falling = [1 / (k + 1) for k in range(len(SIZES))]
    assert min(allreduce.fit(SIZES, falling)) > 0
    for sizes, seconds in (((1024,), (0.1,)), ((1, 2), (0.1, 0.0)), ((1, 2), (0.1,))):
        with pytest.raises(UserError, match="two sizes"):
            allreduce.fit(sizes, seconds)


def test_bus_bandwidth() -> None:
    assert allreduce.bus_bandwidth(2, 100e6, 0.1) == 1e9
    assert allreduce.bus_bandwidth(8, 100e6, 0.1) == pytest.approx(1.75e9)


def test_every_size_is_measured_as_asked() -> None:
    calls: list[int] = []

    def exchange(size: int):
        return lambda: calls.append(size)

    told: list[str] = []
    seconds = allreduce.measure(exchange, Local(), (1024, 2**20), 5, told.append)
    assert len(seconds) == 2 and min(seconds) > 0
    assert calls == [1024] * 8 + [2**20] * 8  # three to warm up
    assert [line.split(":")[0].strip() for line in told] == ["1 KB", "1 MB"]


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps(asdict(measured())))
    assert allreduce.read(path) == measured()
    assert allreduce.read(path).predicted(6e8) == pytest.approx(0.2002)
    for text in ("", "{}", "[]", '{"comm": "horovod"}'):
        path.write_text(text)
        with pytest.raises(UserError, match="rn50 doctor --allreduce"):
            allreduce.read(path)


def test_one_worker_has_nobody_to_exchange_with(rn50) -> None:
    assert "use -n 2 or more" in rn50("doctor", "--allreduce", "-n", "1").error


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "comm", [pytest.param("horovod", marks=pytest.mark.needs("horovod")), "ddp"]
)
def test_two_workers_measure(run_cli, tmp_path: Path, comm: str) -> None:
    """Through the front door, with all sizes; the numbers depend on the machine, so they are held
    against each other: the line, the table and the times belong together."""
    done = run_cli("doctor", "--allreduce", "-n", "2", "--comm", comm, timeout=900)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "runs" / f"allreduce-{comm}-2.json"
    assert str(path) in done.stdout
    told = json.loads(path.read_text())
    assert (told["comm"], told["n"], told["sizes"]) == (comm, 2, list(SIZES))
    assert told["machine"]["cores"] >= 1 and told["date"].endswith("Z")
    found = allreduce.read(path)
    assert (found.latency_s, found.bytes_per_s) == allreduce.fit(found.sizes, found.seconds)
    assert found.seconds[-1] > found.seconds[0]
    assert allreduce.sentence(found) in done.stdout
    assert "128 MB" in done.stdout

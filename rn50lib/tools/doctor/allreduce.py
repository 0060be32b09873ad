"""What an exchange between workers costs here, by its size: `rn50 doctor --allreduce -n 2`.

    time = latency + bytes / bandwidth

The verb starts the workers, each of which runs this module; rank 0 writes the result to a JSON
file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib import launch
from rn50lib.comm import Comm, connect
from rn50lib.config import Experiment
from rn50lib.config.defaults import resolve
from rn50lib.errors import UserError
from rn50lib.files import read_json
from rn50lib.hardware import machine
from rn50lib.launch import group, launchers
from rn50lib.report import write_json
from rn50lib.stop import die_with_parent

KB, MB = 2**10, 2**20
SIZES = (1 * KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, 1 * MB, 4 * MB, 16 * MB, 64 * MB, 128 * MB)
REPEATS = 15
WARM_UP = 3


@dataclass(frozen=True)
class AllReduceCost:
    """All-reduces of `sizes` bytes took `seconds` (medians, mean over the ranks).

    `latency_s` and `bytes_per_s` are the line through them. `device` is where the data was, `way`
    how it was exchanged; `machine` and `date` (UTC) say where and when.
    """

    comm: str
    backend: str
    n: int
    device: str
    way: str
    repeats: int
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    latency_s: float
    bytes_per_s: float
    machine: dict[str, Any]
    date: str

    def predicted(self, size: float) -> float:
        """Seconds of an all-reduce of `size` bytes by the fitted line."""
        return self.latency_s + size / self.bytes_per_s


def measure(
    exchange: Callable[[int], Callable[[], object]],
    comm: Comm,
    sizes: Sequence[int] = SIZES,
    repeats: int = REPEATS,
    report: Callable[[str], None] = lambda line: None,
) -> list[float]:
    """Seconds per all-reduce for each size: the median of `repeats`, averaged over the ranks.

    `exchange(size)` returns a function that reduces `size` bytes and comes back when that is done.
    An all-reduce waits for all ranks, so one after the other they start together.
    """
    seconds = []
    for size in sizes:
        reduce = exchange(size)
        for _ in range(WARM_UP):
            reduce()
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            reduce()
            times.append(time.perf_counter() - begin)
        (total,) = comm.sum([np.array([np.median(times)])])
        seconds.append(float(total[0]) / comm.size)
        report(f"{named(size):>7}: {1000 * seconds[-1]:.2f} ms")
    return seconds


def plain(comm: Comm) -> Callable[[int], Callable[[], object]]:
    """All-reduces of NumPy arrays by `comm.sum`: with its copies, for every kind of group."""

    def exchange(size: int) -> Callable[[], object]:
        array = np.ones(max(1, size // 4), np.float32)
        return lambda: comm.sum([array])

    return exchange


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """(latency in seconds, bytes per second) of the line with the least squared relative error.

    Relative, so that the microseconds of small messages count as much as the milliseconds of large
    ones. Neither number is negative: where the best line would have one, it is 0 (latency), or the
    line through the largest sizes is taken. Raises UserError for fewer than two sizes.
    """
    at, took = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    if len(at) < 2 or len(at) != len(took) or (took <= 0).any():
        raise UserError("a line needs at least two sizes with a time greater than 0 for each")
    weights = np.stack([1 / took, at / took], axis=1)
    latency, per_byte = np.linalg.lstsq(weights, np.ones(len(at)), rcond=None)[0]
    if per_byte <= 0:
        return float(took.min()), float(at.max() / took[at.argmax()])
    if latency < 0:
        ratio = at / took
        latency, per_byte = 0.0, float(ratio.sum() / (ratio**2).sum())
    return float(latency), float(1 / per_byte)


def bus_bandwidth(n: int, size: float, seconds: float) -> float:
    """Bytes per second over each worker's link: a ring moves 2 (n - 1) / n of the data over it."""
    return 2 * (n - 1) / n * size / seconds


def named(size: int) -> str:
    """A size for people: 1 KB is 1024 bytes."""
    return f"{size / MB:g} MB" if size >= MB else f"{size / KB:g} KB"


def rows(measured: AllReduceCost) -> tuple[list[list[Any]], list[str]]:
    """(rows, columns) of a table: size, time, the line's time, bus bandwidth."""
    found: list[list[Any]] = []
    for size, seconds in zip(measured.sizes, measured.seconds, strict=True):
        line = 1000 * measured.predicted(size)
        bus = bus_bandwidth(measured.n, size, seconds) / 1e9
        found.append([named(size), 1000 * seconds, line, bus])
    return found, ["size", "ms", "by the line, ms", "bus bandwidth, GB/s"]


def sentence(measured: AllReduceCost) -> str:
    """The finding, in one line."""
    bus = bus_bandwidth(measured.n, measured.bytes_per_s, 1) / 1e9
    return (
        f"{measured.n} workers over {measured.comm} ({measured.way}, {measured.device}): an"
        f" all-reduce takes {1000 * measured.latency_s:.3g} ms however small it is, and"
        f" {1000 * MB / measured.bytes_per_s:.3g} ms more for every MB; bus bandwidth"
        f" {bus:.3g} GB/s."
    )


def read(path: str | Path) -> AllReduceCost:
    """A file that a measurement wrote. Raises UserError where it is none."""
    try:
        content = read_json(path)
        known = {f.name: content[f.name] for f in fields(AllReduceCost)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is no measurement of an all-reduce ({error}): `rn50 doctor --allreduce -n 2`"
            " writes one"
        ) from error
    lists = {name: tuple(known[name]) for name in ("sizes", "seconds")}
    return AllReduceCost(**(known | lists))


# --- the verb -------------------------------------------------------------------------------------


def default_path(comm: str, n: int) -> Path:
    """Where a measurement is kept: `$RN50_RUNS/allreduce-<comm>-<n>.json`."""
    return launch.runs_home() / f"allreduce-{comm}-{n}.json"


def run(
    n: int,
    comm: str | None = None,
    backend: str | None = None,
    hosts: str | None = None,
    output: str | Path | None = None,
    sizes: tuple[int, ...] = SIZES,
    repeats: int = REPEATS,
) -> tuple[AllReduceCost, Path]:
    """Start `n` workers, let them measure, and return what they found and the file of it.

    Raises UserError where the workers cannot be started or one of them fails.
    """
    if n < 2:
        raise UserError(f"-n {n}: one worker has nobody to exchange with: use -n 2 or more")
    given: dict[str, Any] = {"n": n, "comm": comm, "backend": backend, "hosts": hosts}
    asked = Experiment(loader="synthetic", network="tiny", **given)
    done = resolve(asked, machine(), 10).experiment
    assert done.comm is not None
    path = Path(output) if output else default_path(done.comm, n)
    path = path.absolute()
    worker = [sys.executable, "-m", "rn50lib.tools.doctor.allreduce", "--comm", done.comm]
    worker += ["--backend", done.backend, "--output", str(path), "--repeats", str(repeats)]
    worker += ["--sizes", *map(str, sizes)]
    with tempfile.TemporaryDirectory() as folder:
        status, failure, _ = group.run(
            launchers.command(done, worker, Path(folder)),
            launch.rank_environment(done),
            show=lambda line: print(line, file=sys.stderr, flush=True),
        )
    if status:
        raise UserError(f"--allreduce: {failure or 'interrupted'}")
    return read(path), path


def show(
    n: int,
    comm: str | None,
    backend: str | None,
    hosts: str | None,
    output: str | None,
    as_json: bool,
) -> int:
    """`rn50 doctor --allreduce`; returns the exit status."""
    found, path = run(n, comm, backend, hosts, output)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return 0
    table, columns = rows(found)
    print("  ".join(f"{name:>20}" for name in columns))
    for size, *numbers in table:
        print("  ".join([f"{size:>20}", *(f"{number:20.3f}" for number in numbers)]))
    print(sentence(found))
    print(path)
    return 0


# --- one worker -----------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """One of the workers: measures with the others; rank 0 writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comm", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="in bytes")
    args = parser.parse_args(argv)
    die_with_parent()
    try:
        comm = connect(args.comm, args.backend)
        device, way, exchange = "host memory", "NumPy arrays", plain(comm)
        if args.backend == "torch":
            from rn50lib.backends.torch.peak import bare_all_reduce

            device, way, exchange = bare_all_reduce(comm)
        first = comm.rank == 0
        seconds = measure(
            exchange, comm, args.sizes, args.repeats,
            lambda line: print(line, flush=True) if first else None,
        )  # fmt: skip
        if first:
            latency, bandwidth = fit(args.sizes, seconds)
            date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            found = AllReduceCost(
                args.comm, args.backend, comm.size, device, way, args.repeats, tuple(args.sizes),
                tuple(seconds), latency, bandwidth, machine().to_dict(), date,
            )  # fmt: skip
            args.output.parent.mkdir(parents=True, exist_ok=True)
            write_json(args.output, asdict(found))
        comm.barrier()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

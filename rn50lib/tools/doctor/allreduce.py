"""What an exchange between workers costs here: `rn50 doctor --allreduce -n 2`."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rn50lib import launch
from rn50lib.comm import measure
from rn50lib.config import Experiment, resolve
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from rn50lib.launch import group, launchers


def default_path(comm: str, n: int) -> Path:
    """Where a measurement is kept: `$RN50_RUNS/allreduce-<comm>-<n>.json`."""
    return launch.runs_home() / f"allreduce-{comm}-{n}.json"


def run(
    n: int,
    comm: str | None = None,
    backend: str | None = None,
    hosts: str | None = None,
    output: str | Path | None = None,
    sizes: tuple[int, ...] = measure.SIZES,
    repeats: int = measure.REPEATS,
) -> tuple[measure.Measured, Path]:
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
    worker = [sys.executable, "-m", "rn50lib.comm.measure", "--comm", done.comm]
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
    return measure.read(path), path


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
    rows, columns = measure.rows(found)
    print("  ".join(f"{name:>20}" for name in columns))
    for size, *numbers in rows:
        print("  ".join([f"{size:>20}", *(f"{number:20.3f}" for number in numbers)]))
    print(measure.sentence(found))
    print(path)
    return 0

"""Stands for `nvidia-smi` on PATH: prints in its formats what a scenario says.

    install(folder, gpus=[V100], driver="450.80.02", cuda="11.0")

As the real one, it refuses a field that its driver does not know: `compute_cap` came later than
driver 470. `A100 | slices(("1g.5gb", "MIG-..."))` is a GPU in MIG mode.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

V100 = {"name": "Tesla V100-SXM2-16GB", "memory.total": "16160", "compute_cap": "7.0"}
T4 = {"name": "Tesla T4", "memory.total": "15109", "compute_cap": "7.5"}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory.total": "81920", "compute_cap": "8.0"}
H100 = {"name": "NVIDIA H100 80GB HBM3", "memory.total": "81559", "compute_cap": "9.0"}
P100 = {"name": "Tesla P100-PCIE-16GB", "memory.total": "16280", "compute_cap": "6.0"}

SCENARIO = "scenario.json"


def slices(*found: tuple[str, str]) -> dict[str, Any]:
    """What a GPU is besides when it is divided: (profile, UUID) of each MIG slice."""
    return {"mig.mode.current": "Enabled", "slices": found}


def install(
    folder: Path,
    gpus: Sequence[dict[str, Any]] = (),
    driver: str = "535.104.05",
    cuda: str = "12.2",
    fails: str = "",
    topo: str = "",
) -> str:
    """Write the program into `folder`; returns a PATH that begins with it. `fails`: what it says
    instead of an answer, with status 9. `topo`: what `nvidia-smi topo -m` prints."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for index, gpu in enumerate(gpus):
        row = {"index": str(index), "uuid": f"GPU-{index}a7c1e2d-0000-1111-2222-333344445555"}
        row |= {"driver_version": driver, "memory.used": "3", "mig.mode.current": "[N/A]"}
        rows.append(row | gpu)
    scenario = {"rows": rows, "driver": driver, "cuda": cuda, "fails": fails, "topo": topo}
    (folder / SCENARIO).write_text(json.dumps(scenario))
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" "{folder}" "$@"\n')
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def header(scenario: dict[str, Any]) -> str:
    """The top of the table that `nvidia-smi` prints without arguments."""
    driver, cuda = scenario["driver"], scenario["cuda"]
    rule = "+" + "-" * 77 + "+"
    line = f"| NVIDIA-SMI {driver:<13} Driver Version: {driver:<13} CUDA Version: {cuda:<9}|"
    return f"Sat Nov 21 12:00:00 2026\n{rule}\n{line}\n{rule}"


def main() -> int:
    scenario = json.loads(Path(sys.argv[1], SCENARIO).read_text())
    arguments = sys.argv[2:]
    if scenario["fails"]:
        print(scenario["fails"])
        return 9
    if not arguments:
        print(header(scenario))
        return 0
    if arguments[0] == "-L":
        for row in scenario["rows"]:
            print(f"GPU {row['index']}: {row['name']} (UUID: {row['uuid']})")
            for number, (profile, uuid) in enumerate(row.get("slices", ())):
                print(f"  MIG {profile:<11} Device {number:2}: (UUID: {uuid})")
        return 0
    if arguments == ["topo", "-m"]:
        print(scenario["topo"], end="")
        return 0
    what, _, fields = arguments[0].partition("=")
    if what == "--query-compute-apps":
        return 0
    assert what == "--query-gpu" and arguments[1:] == ["--format=csv,noheader,nounits"], arguments
    wanted = fields.split(",")
    if "compute_cap" in wanted and int(scenario["driver"].split(".")[0]) < 510:
        print('Field "compute_cap" is not a valid field to query.\n')
        return 2
    if not scenario["rows"]:
        print("No devices were found")
        return 6
    for row in scenario["rows"]:
        print(", ".join(row[field] for field in wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main())

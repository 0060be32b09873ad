"""What this machine has, what is missing, and what to do about it.

    rn50 doctor [--quick] [--json]

Everything is read off the machine as it runs. The exit status is 0 where training can run, 1 where
something that it cannot do without is broken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from rn50.doctor import frameworks, gpu, machine
from rn50.doctor.check import NOTE, PROBLEM, Check, ask, has
from rn50.parser import Parser


def examine(quick: bool = False) -> Iterator[tuple[str, list[Check]]]:
    """(heading, findings), each group as soon as it is known. `quick` imports no framework."""
    with ThreadPoolExecutor(max_workers=3) as pool:  # what takes seconds goes on beside the rest
        running = {} if quick else {name: pool.submit(ask, code) for name, code in probes().items()}
        yield "machine", [machine.system(), machine.cores()]
        room = [machine.memory(), machine.shared(), machine.data_folder(), machine.runs_folder()]
        yield "memory and disk", room
        found = gpu.find()
        yield "GPU", gpu.gpus(found)
        answers = {name: answer.result() for name, answer in running.items()}
        torch, tensorflow, dali = (answers.get(n) for n in ("torch", "tensorflow", "dali"))
        checks = [
            frameworks.torch(torch, found),
            frameworks.tensorflow(tensorflow, found),
            frameworks.dali(dali, found),
        ]
        yield "frameworks", checks
        checks = [frameworks.horovod({"torch": torch, "tensorflow": tensorflow}, found)]
        if torch is not None and "version" in torch.facts:
            checks.append(frameworks.torch_distributed(torch, found))
        yield "communication", [*checks, machine.localhost()]


def probes() -> dict[str, str]:
    """The code that asks each framework that is installed, and Horovod with it."""
    codes = {"torch": frameworks.TORCH_PROBE, "tensorflow": frameworks.TENSORFLOW_PROBE}
    if has("horovod"):
        codes = {
            name: code + frameworks.HOROVOD_PROBE.replace("FRAMEWORK", name)
            for name, code in codes.items()
        }
    modules = {"torch": "torch", "tensorflow": "tensorflow", "dali": "nvidia.dali"}
    codes["dali"] = frameworks.DALI_PROBE
    return {name: codes[name] for name, module in modules.items() if has(module)}


def verdict(checks: list[Check]) -> str:
    """The last line."""
    notes = sum(check.status == NOTE for check in checks)
    noted = f"{notes} note{'' if notes == 1 else 's'}"
    names = ", ".join(check.name for check in checks if check.status == PROBLEM)
    if not names:
        return f"Training can run here ({noted})."
    return f"Training cannot run here until this is put right: {names} ({noted})."


def main(argv: list[str]) -> int:
    """`rn50 doctor`; returns the exit status."""
    parser = Parser(
        prog="rn50 doctor",
        description="What this machine has, what is missing, and what to do about it.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.add_argument("--quick", action="store_true", help="import no framework: under a second")
    args = parser.parse_args(argv)
    begin, groups = time.perf_counter(), {}
    for name, found in examine(args.quick):
        groups[name] = found
        if not args.json:
            print("\n".join([name, *(f"  {check}" for check in found)]), flush=True)
    checks = [check for found in groups.values() for check in found]
    can_train = not any(check.status == PROBLEM for check in checks)
    if args.json:
        rows = [{"group": name, **asdict(c)} for name, found in groups.items() for c in found]
        seconds = round(time.perf_counter() - begin, 2)
        print(json.dumps({"can_train": can_train, "seconds": seconds, "checks": rows}, indent=2))
    else:
        print(verdict(checks))
    return 0 if can_train else 1

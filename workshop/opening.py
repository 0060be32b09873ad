"""`start("02", profile)`: the first call of a notebook.

It shows the machine, chooses a profile with a reason, and makes sure that the data exists. An
exercise notebook, `start("ex02", profile)`, shows its exercises instead; its data is made when a
run needs it.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

from rn50 import plot
from rn50.allocator import spins
from rn50lib import hardware
from rn50lib.config import FLAGS
from rn50lib.errors import UserError
from workshop import catalogue, errors, expected, output, paths, session
from workshop.checks import ask
from workshop.session import Session

FULL_GPU = 31 * 2**30  # bytes: for a GPU with less, some sizes are halved, once or more


def start(number: str, profile: str = "auto") -> Session:
    """Start notebook `number`: show the machine and the profile, and make the data if needed.

    For an exercise notebook, "ex02", show its exercises and your progress.

    Raises:
        UserError: The number or profile is unknown, or the data cannot be made.
    """
    errors.show_user_errors_plainly()
    catalogue.lesson(number.removeprefix("ex"))
    machine = hardware.machine()
    chosen, reason = choose_profile(profile, machine)
    os.environ |= spins(os.environ)  # for the notebook's scripts
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no lines about the processor
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # nor when a profiler starts and stops
    programs, path = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    if machine.gpus and machine.gpus[0].uuid.startswith("MIG-"):  # PyTorch counts whole GPUs
        os.environ["CUDA_VISIBLE_DEVICES"] = machine.gpus[0].uuid
    if path.split(os.pathsep)[0] != programs:  # for `rn50` in a %%bash cell
        os.environ["PATH"] = f"{programs}{os.pathsep}{path}"
    plot.use()
    memories = [gpu.memory for gpu in machine.gpus if gpu.memory] if chosen == "gpu" else []
    memory = min(memories, default=FULL_GPU)
    checkout = paths.need_checkout()
    sizes = profile_sizes(checkout, number, chosen, memory)
    if sizes != profile_sizes(checkout, number, chosen):
        reason += f"; batches are smaller, for {memory / 2**30:.0f} GiB"
    data, runs = paths.data_home(), paths.runs_home()
    os.environ |= {"RN50_DATA": str(data), "RN50_RUNS": str(runs)}
    root = data / ("roadsigns-ci" if chosen == "ci" else "roadsigns")
    if number.startswith("ex"):
        ask.show_exercises(number)
    else:
        show_machine(machine, chosen, reason)
        session.ensure_data(root, chosen)
    results = expected.load(checkout / "notebooks" / "expected")
    return session.open_session(Session(number, chosen, machine, root, runs, results, sizes))


def choose_profile(asked: str, machine: hardware.Machine) -> tuple[str, str]:
    """Return (profile, reason).

    Raises:
        UserError: The profile is unknown, or it is gpu and there is no GPU.
    """
    if asked not in (profiles := FLAGS["profile"].choices):
        raise UserError(f"profile {asked!r} does not exist: use one of {', '.join(profiles)}")
    if asked == "gpu" and not machine.gpus:
        raise UserError('profile "gpu": there is no GPU here; use profile = "cpu" or "auto"')
    if asked != "auto":
        short = "; runs are cut to seconds, and their numbers mean nothing"
        return asked, "requested" + short * (asked == "ci")
    if machine.gpus:
        return "gpu", f"{len(machine.gpus)} GPU(s) found"
    return "cpu", "no GPU found, so the lessons are sized for a few cores"


def profile_sizes(
    checkout: Path, number: str, profile: str, memory: int = FULL_GPU
) -> dict[str, Any]:
    """Return the sizes of a notebook under a profile; one that is not listed is that of cpu.

    On a GPU with less `memory` than FULL_GPU bytes, those under `halved` are halved, once or more.

    Raises UserError if a size has no value for cpu.
    """
    import yaml

    file = checkout / "notebooks" / "profiles.yaml"
    listed = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get(number, {})
    halved = listed.pop("halved", [])
    for name, values in listed.items():
        if not isinstance(values, dict) or "cpu" not in values:
            raise UserError(f"{file}: {number}: {name} needs a value for cpu, such as {{cpu: 8}}")
    sizes = {name: values.get(profile, values["cpu"]) for name, values in listed.items()}
    times = max(0, math.ceil(math.log2(FULL_GPU / memory)))
    return sizes | {name: max(8, sizes[name] >> times) for name in halved if times}


def show_machine(machine: hardware.Machine, profile: str, reason: str) -> None:
    memory = f"{machine.memory / 2**30:.0f} GiB" if machine.memory else "not known"
    bfloat16 = machine.bfloat16 or "none: bfloat16 would be emulated, slower than float32"
    rows = [
        ["Processor", f"{machine.processor}, {machine.cores} core(s) usable, {memory} of memory"],
        ["bfloat16 on the CPU", bfloat16],
    ]
    for gpu in machine.gpus:
        capability = ".".join(map(str, gpu.capability))
        text = f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB, capability {capability}"
        rows.append([f"GPU {gpu.index}", f"{text}, driver {gpu.driver}"])
    if not machine.gpus:
        rows.append(["GPU", "none"])
    output.table([*rows, ["Profile", f"{profile}: {reason}"]], ["", "this machine"])

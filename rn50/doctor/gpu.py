"""GPUs: what the driver lists, which precisions they compute in, which builds fit the driver.

Nothing is asked of a framework here: `frameworks.torch` says whether PyTorch uses them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rn50.doctor.check import Check, note, ok, size
from rn50lib.hardware import nvidia
from rn50lib.hardware.nvidia import Driver, Gpu

OLDEST_DRIVER = {11: "450", 12: "525", 13: "580"}  # the first to serve a CUDA generation
SETUP_CUDA = 12  # `make setup` installs CUDA builds for a driver of this generation or a later one


@dataclass(frozen=True)
class Gpus:
    """What other checks need: the driver, the newest CUDA it serves, the GPUs left visible."""

    driver: Driver
    cuda: tuple[int, int] | None
    visible: tuple[Gpu, ...]


def find() -> Gpus:
    """Ask the driver."""
    driver = nvidia.driver()
    visible = nvidia.visible(driver.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Gpus(driver, cuda_version() if driver.gpus else None, visible)


def cuda_version() -> tuple[int, int] | None:
    """The newest CUDA version that the driver serves, None where it does not say."""
    text, _ = nvidia.ask()
    found = re.search(r"CUDA(?: \w+)? Version:\s*(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def gpus(found: Gpus, root: Path = Path("/")) -> list[Check]:
    """The driver and every GPU."""
    driver = found.driver
    if not driver.present:
        return [no_driver(root)]
    if driver.problem:
        what = f"the NVIDIA driver gives no GPU: {driver.problem}"
        return [note("driver", what, broken_driver(driver.problem))]
    checks = [driver_check(found)]
    in_use = memory_in_use()
    checks += [gpu_check(gpu, in_use.get(gpu.uuid)) for gpu in found.visible]
    hidden = len(driver.gpus) - len(found.visible)
    if hidden:
        checks.append(hidden_check(found, hidden))
    return checks


def hidden_check(found: Gpus, hidden: int) -> Check:
    """GPUs or MIG slices that this process does not see, and which of its choices that follows."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:  # CUDA shows a process one slice
        what = f"a process sees one MIG slice; {hidden} other GPU(s) or slice(s) are not used"
        remedy = "to use another one, put its UUID of `nvidia-smi -L` into CUDA_VISIBLE_DEVICES"
        return note("hidden", what, remedy)
    count = f"{hidden} of {len(found.driver.gpus)} GPU(s) or MIG slice(s)"
    remedy = "" if found.visible else "unset it to train on the GPU"
    return note("hidden", f"CUDA_VISIBLE_DEVICES={value!r} hides {count}", remedy)


def no_driver(root: Path) -> Check:
    """No nvidia-smi: usually no GPU; in a container, often one that was not handed in."""
    if (root / ".dockerenv").exists() or os.environ.get("NVIDIA_BUILD_ID"):
        remedy = "if the machine has one, start the container with --gpus all"
        return note("driver", "no NVIDIA GPU in this container: runs use the processor", remedy)
    return note("driver", "no NVIDIA driver: runs use the processor")


def broken_driver(message: str) -> str:
    """What usually helps, by what nvidia-smi says."""
    if "mismatch" in message:
        return "the driver was updated while it was loaded: restart the machine"
    if message == nvidia.MIG_WITHOUT_SLICES:
        return "`nvidia-smi mig -lgip` lists the slices to make; `nvidia-smi -mig 0` ends the mode"
    return "reinstall the driver until `nvidia-smi` lists the GPU; in a container, use --gpus all"


def driver_check(found: Gpus) -> Check:
    """The driver's version against the builds that `make setup` installs."""
    version, cuda = found.driver.version, found.cuda
    if cuda is None:
        return note("driver", f"driver {version}; it does not say which CUDA it serves")
    what = f"driver {version}, for CUDA {cuda[0]}.{cuda[1]} and earlier"
    if cuda[0] < SETUP_CUDA:
        what += f": too old for the CUDA {SETUP_CUDA} builds that the set-up installs"
        least = OLDEST_DRIVER[SETUP_CUDA]
        return note(
            "driver", what, f"install driver {least} or later; until then runs use the processor"
        )
    return ok("driver", what)


def precisions(capability: tuple[int, int]) -> str:
    """Which reduced precisions a GPU computes in, from its compute capability.

    Taken from the capability, as a framework's own answer may count emulation in.
    """
    if capability == nvidia.UNKNOWN:
        return "of unknown capability"
    if capability < (7, 0):
        return "no Tensor Cores: float16 saves memory, not time"
    if capability < (8, 0):
        return "Tensor Cores for float16; neither bfloat16 nor TF32"
    return "Tensor Cores for float16, bfloat16 and TF32"


def gpu_check(gpu: Gpu, in_use: int | None) -> Check:
    """One GPU: memory, capability, precisions, and how much of it others hold."""
    major, minor = gpu.capability
    memory = size(gpu.memory) if gpu.memory else "memory unknown"
    name = f"gpu{gpu.index}"
    what = f"GPU {gpu.index}: {gpu.name}, {memory}, capability {major}.{minor}"
    what += f": {precisions(gpu.capability)}"
    if in_use and gpu.memory and in_use > gpu.memory / 10:
        what += f"; {size(in_use)} of it are in use by others"
        remedy = "shut down the notebook kernels that hold it, or use a smaller -b"
        return note(name, what, remedy)
    if nvidia.UNKNOWN < gpu.capability < (7, 5):
        what += "; CUDA 13 has dropped it"
        return note(name, what, "keep to frameworks built for CUDA 12")
    return ok(name, what)


def memory_in_use() -> dict[str, int]:
    """Bytes in use by GPU UUID."""
    rows, _ = nvidia.query("gpu", "uuid", "memory.used")
    return {uuid: int(used) * 2**20 for uuid, used in rows if used.isdigit()}

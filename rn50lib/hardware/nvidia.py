"""The NVIDIA driver and its GPUs, as `nvidia-smi` reports them; no framework is asked.

A broken driver can crash whatever loads it, so it is only ever asked in a process of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace

FIRST_WITH_MIG = (8, 0)  # of a GPU that can be divided into slices
MIG_WITHOUT_SLICES = "MIG mode is on, and there are no slices"
UNKNOWN = (0, 0)  # the capability of a GPU that neither the driver nor the table below knows

# Drivers before 510 do not report the compute capability; these are the GPUs that they serve.
OLD_CAPABILITIES = (
    (r"V100|TITAN V\b", (7, 0)),
    (r"T4\b|RTX 20\d\d|TITAN RTX|Quadro RTX", (7, 5)),
    (r"A100|A30\b", (8, 0)),
    (r"A40\b|A10\b|A10G|A16\b|RTX 30\d\d|RTX A\d000", (8, 6)),
    (r"P100", (6, 0)),
    (r"P40\b|P4\b|GTX 10\d\d|TITAN Xp?\b", (6, 1)),
    (r"M60|M40|GTX 9\d\d", (5, 2)),
    (r"K80", (3, 7)),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU, or a MIG slice of one, which is used like a small GPU. `memory` in bytes (0:
    unknown), `capability` as (major, minor). A slice has its GPU's index, and that GPU's UUID as
    `slice_of`."""

    index: int
    name: str
    memory: int
    capability: tuple[int, int]
    driver: str
    uuid: str
    slice_of: str = ""


@dataclass(frozen=True)
class Driver:
    """What the driver answers. Without one, `present` is False; with one that fails, `problem` is
    its message. `gpus` are all that it lists, also those that CUDA_VISIBLE_DEVICES hides; a GPU
    that is divided into MIG slices is not among them, its slices are."""

    present: bool
    problem: str = ""
    gpus: tuple[Gpu, ...] = ()

    @property
    def version(self) -> str:
        return self.gpus[0].driver if self.gpus else ""


def ask(*arguments: str, timeout_s: float = 20) -> tuple[str, str]:
    """Run nvidia-smi; returns its output and, where it failed, the reason in one line."""
    try:
        ended = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return "", f"nvidia-smi gave no answer within {timeout_s:g} s"
    except OSError as error:
        return "", f"nvidia-smi does not start ({error.strerror})"
    if ended.returncode == 0:
        return ended.stdout, ""
    message = (ended.stdout + "\n" + ended.stderr).strip().splitlines()
    return "", message[0].strip() if message else f"nvidia-smi ended with status {ended.returncode}"


def query(what: str, *fields: str) -> tuple[list[list[str]], str]:
    """Rows of `nvidia-smi --query-WHAT=FIELDS`, and the reason where there is no answer."""
    text, problem = ask(f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits")
    lines = [line for line in text.splitlines() if line.strip()]
    rows = [[part.strip() for part in line.split(",")] for line in lines]
    return [row for row in rows if len(row) == len(fields)], problem


def driver() -> Driver:
    """Ask the driver for its GPUs."""
    if shutil.which("nvidia-smi") is None:
        return Driver(present=False)
    common = ("index", "name", "memory.total", "driver_version", "uuid")
    rows, problem = query("gpu", *common, "compute_cap", "mig.mode.current")
    if not rows and "compute_cap" in problem:  # a driver before 510
        rows, problem = query("gpu", *common)
    found: list[Gpu] = []
    divided = ""
    for row in rows:
        index, name, memory, version, uuid, *rest = row
        size = int(memory) * 2**20 if memory.isdigit() else 0
        reported, mode = rest or ("", "")
        capability = _capability(reported, name)
        if not index.isdigit():
            continue
        gpu = Gpu(int(index), name, size, capability, version, uuid)
        if mode == "Enabled" or (not rest and capability >= FIRST_WITH_MIG):
            divided = divided or ask("-L")[0]
            slices = _slices(gpu, divided)
            found += slices or ([] if mode == "Enabled" else [gpu])
        else:
            found.append(gpu)
    if not found and not problem:
        problem = MIG_WITHOUT_SLICES if rows else "nvidia-smi lists no GPU"
    return Driver(True, problem, tuple(found))


def _slices(gpu: Gpu, listed: str) -> list[Gpu]:
    """The MIG slices of a GPU, from what `nvidia-smi -L` lists below it:

    GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-...)
      MIG 1g.5gb      Device  0: (UUID: MIG-7c3e4d5f-...)
    """
    found, below = [], False
    for line in listed.splitlines():
        if not line.startswith(" "):
            below = f"(UUID: {gpu.uuid})" in line
            continue
        slice_ = re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)", line)
        if below and slice_:
            profile, uuid = slice_.groups()  # "1g.5gb", "1c.3g.20gb", "1g.10gb+me"
            gb = re.search(r"\.(\d+)gb", profile)
            memory = int(gb[1]) * 2**30 if gb else 0
            name = f"{gpu.name} MIG {profile}"
            found.append(replace(gpu, name=name, memory=memory, uuid=uuid, slice_of=gpu.uuid))
    return found


def _capability(reported: str, name: str) -> tuple[int, int]:
    numbers = re.fullmatch(r"(\d+)\.(\d+)", reported)
    if numbers:
        return int(numbers[1]), int(numbers[2])
    return next((known for pattern, known in OLD_CAPABILITIES if re.search(pattern, name)), UNKNOWN)


def visible(gpus: tuple[Gpu, ...], devices: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order (None: not set, all of them).

    As CUDA reads it: indexes or (beginnings of) UUIDs; what follows the first entry that fits no
    GPU is ignored, so that "-1" hides all. Of a GPU that is divided, an entry means the first
    slice; and a process that is given a slice sees that one and nothing else.
    """
    left: list[Gpu] = []
    for item in devices.split(",") if devices is not None else ():
        fits = _named(gpus, item.strip())
        if fits is None:
            break
        left.append(fits)
    if devices is None:
        left = list(gpus)
    slices = [gpu for gpu in left if gpu.slice_of]
    return tuple(slices[:1] or left)


def _named(gpus: tuple[Gpu, ...], word: str) -> Gpu | None:
    """The one GPU or slice that an entry of CUDA_VISIBLE_DEVICES means; None: none, or several."""
    fits = [g for g in gpus if _means(word, g.uuid)]
    if not fits:
        whole = [g for g in gpus if word == str(g.index) or _means(word, g.slice_of)]
        fits = whole[:1] if len({g.index for g in whole}) == 1 else []
    return fits[0] if len(fits) == 1 else None


def _means(word: str, uuid: str) -> bool:
    """Whether a word is a UUID, or more of its beginning than the "GPU-" that all have."""
    return len(word) > 4 and uuid.startswith(word)


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that a program started here can use; none where no driver answers."""
    return visible(driver().gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))

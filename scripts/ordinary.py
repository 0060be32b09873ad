"""Plans the environment of an ordinary machine: exact versions, DALI by driver, Horovod built.

The versions are those of requirements-cpu.txt, or of requirements-gpu.txt where a driver for CUDA
12 or later answers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import requirements
from facts import Facts
from plan import DALI_WHEELS, Plan, Step, choose_dali, project_step, state
from requirements import ROOT, name_of


def make(facts: Facts, venv: Path, dali: str) -> Plan:
    """The plan: every pinned version; `dali` is as in `plan.choose_dali`."""
    notes = []
    gpu = facts.linux_x86_64 and (facts.cuda or 0) >= 12
    if facts.cuda is not None and not gpu:
        notes.append(
            "GPU: the CUDA builds of requirements-gpu.txt need Linux x86_64 and a driver for"
            " CUDA 12 or later; the CPU builds are installed."
        )
    wanted = requirements.read(ROOT / ("requirements-gpu.txt" if gpu else "requirements-cpu.txt"))
    wheel, why = choose_dali(facts, dali)
    notes.append(f"DALI: {wheel or 'none'} ({why})")
    lines = [line for line in wanted.asked if not name_of(line).startswith("nvidia-dali-")]
    lines += [wheel] if wheel else []
    pip = (str(venv / "bin" / "python"), "-m", "pip", "install")
    brought = [line for line in wanted.brought if not foreign(line, wheel)]
    packages = "\n".join([*lines, *brought, ""])
    # two builds of one package lie in the same folder: a change of mind must not leave both
    here = {name_of(line) for line in lines}
    rivals = [f"nvidia-dali-{name}" for name in DALI_WHEELS] + ["tensorflow", "tensorflow-cpu"]
    gone = [name for name in rivals if name not in here]
    steps = [
        *_apt(facts, notes),
        Step(
            "packages",
            (
                (*pip[:3], "uninstall", "-q", "-y", *gone),
                (*pip, "-r", str(state(venv) / "requirements.txt")),
            ),
            "look at the log; `make setup` goes on from here",
            key=packages + facts.python,
        ),
        Step(
            "tf-keras",
            ((*pip, "--no-deps", *wanted.no_deps),),
            "look at the log; `make setup` goes on from here",
            key=facts.python,
        ),
        project_step(pip, facts),
        *_horovod(facts, venv, packages, notes),
    ]
    return Plan(False, wanted.path.name, tuple(steps), {"requirements.txt": packages}, tuple(notes))


DECODERS = re.compile(r"nvidia-(libnvcomp|nvimgcodec|nvjpeg|nvjpeg2k|nvtiff)-cu12==")


def foreign(line: str, wheel: str | None) -> bool:
    """Whether a package came with the DALI for CUDA 12, and `wheel` is another one: that for CUDA
    13 brings its own, with files of the same names."""
    cuda12 = (wheel or "").startswith("nvidia-dali-cuda120")
    return bool(DECODERS.match(line)) and not cuda12


def _apt(facts: Facts, notes: list[str]) -> list[Step]:
    """Compiler and Open MPI from Debian's packages, where this user may install them."""
    if facts.system != "Linux" or (facts.compiler and facts.mpi):
        return []
    names = [] if facts.compiler else ["g++", "make"]
    names += [] if facts.mpi else ["openmpi-bin", "libopenmpi-dev"]
    if not facts.may_apt:
        without = "is built without MPI" if facts.compiler else "is not built"
        how = f"`sudo apt-get install {' '.join(names)}`, then `make horovod`"
        notes.append(f"Horovod {without}; to have it, {how}")
        return []
    apt = ("apt-get", "-q", "-o", "Dpkg::Use-Pty=0")
    install = (*apt, "install", "-y", "--no-install-recommends", *names)
    remedy = f"install them yourself (apt-get install {' '.join(names)}), or go on without"
    return [Step("apt: " + " ".join(names), ((*apt, "update"), install), remedy, fatal=False)]


def _horovod(facts: Facts, venv: Path, packages: str, notes: list[str]) -> list[Step]:
    if facts.system != "Linux":
        notes.append(
            "Horovod: built on Linux only; PyTorch's DDP runs the lessons on several processes."
        )
        return []
    if not (facts.compiler or facts.may_apt):
        return []  # _apt has said so
    if facts.cuda is not None and "HOROVOD_GPU_OPERATIONS" not in os.environ:
        notes.append(
            "Horovod is built for the host's memory. To exchange GPUs' gradients, as TensorFlow"
            " on several GPUs must: `HOROVOD_GPU_OPERATIONS=NCCL make horovod`, with the CUDA"
            " toolkit, NCCL's headers and TensorFlow 2.20 or older"
        )
    script = ROOT / "scripts" / "horovod_wheel.py"
    return [
        Step(
            "horovod",
            ((str(venv / "bin" / "python"), str(script), "--install"),),
            "the rest works, and DDP runs the lessons on several processes; `make horovod` retries",
            key=f"{packages}{facts.python}{facts.mpi}{facts.compiler}{script.read_text()}",
            fatal=False,
        )
    ]

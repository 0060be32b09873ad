"""What a set-up is made of: steps, the plan that holds them, and what every plan has in common.

`ordinary.py` plans for an ordinary machine, `container.py` for one whose frameworks are kept; none
of them runs a command.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from facts import Facts
from requirements import ROOT

DALI_WHEELS = {  # the newest wheel of each name that holds DALI itself
    "cuda110": "nvidia-dali-cuda110==1.34.0",
    "cuda120": "nvidia-dali-cuda120==2.4.0",
    "cuda130": "nvidia-dali-cuda130==2.4.0",
}


@dataclass(frozen=True)
class Step:
    """One line of the set-up: commands that are run in order, and when to run them again."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    remedy: str  # what to do when it fails
    key: str = ""  # beside the commands, what the result depends on
    fatal: bool = True

    @property
    def stamp(self) -> str:
        """Changes when the step has to be done again."""
        return hashlib.sha256(repr((self.commands, self.key)).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Plan:
    """What will be done, what is kept, and what the user should know."""

    system_site: bool  # --system-site-packages
    source: str  # where the versions come from
    steps: tuple[Step, ...]
    files: dict[str, str] = field(default_factory=dict)  # name in the state folder -> content
    notes: tuple[str, ...] = ()
    kept: dict[str, str] = field(default_factory=dict)  # distribution -> version


def choose_dali(facts: Facts, override: str = "") -> tuple[str | None, str]:
    """The DALI requirement for this machine and the reason; None where there is no wheel.

    `override` is `cuda110`, `cuda120`, `cuda130`, a requirement, `none`, or empty for the choice by
    driver. Raises ValueError for anything else.
    """
    if override == "none":
        return None, "left out, as asked"
    if override in DALI_WHEELS:
        return DALI_WHEELS[override], "as asked"
    if override:
        if not override.startswith("nvidia-dali-"):
            names = ", ".join(DALI_WHEELS)
            raise ValueError(
                f"DALI={override}: use one of {names}, none, or nvidia-dali-NAME==VERSION"
            )
        return override, "as asked"
    if facts.linux_x86_64:
        if facts.cuda is None or facts.cuda <= 11:
            why = "no NVIDIA driver" if facts.cuda is None else f"driver for CUDA {facts.cuda}"
            return DALI_WHEELS["cuda110"], why
        return DALI_WHEELS[
            "cuda120" if facts.cuda == 12 else "cuda130"
        ], f"driver for CUDA {facts.cuda}"
    if facts.system == "Linux" and facts.machine == "aarch64" and (facts.cuda or 0) >= 13:
        return DALI_WHEELS["cuda130"], f"driver for CUDA {facts.cuda}, arm64"
    return None, f"no wheel for {facts.system} {facts.machine}: the lessons use the other loaders"


def project_step(pip: tuple[str, ...], facts: Facts) -> Step:
    return Step(
        "rn50-workbook",
        ((*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)),),
        "look at the log; `make setup` goes on from here",
        key=(ROOT / "pyproject.toml").read_text() + facts.python,
    )


def state(venv: Path) -> Path:
    """The folder in the environment where the set-up keeps its files, stamps and log."""
    return venv / "rn50-setup"


def describe(plan: Plan, facts: Facts, venv: Path) -> str:
    """The whole plan as text, commands as one would type them."""
    rows = [
        f"machine: {facts.words}",
        f"versions: {plan.source}",
        *(f"note: {n}" for n in plan.notes),
    ]
    rows += [f"kept: {name} {version}" for name, version in sorted(plan.kept.items())]
    site = " --system-site-packages" if plan.system_site else ""
    rows.append(f"$ python3 -m venv{site} {venv}")
    rows += ["$ " + shlex.join(command) for step in plan.steps for command in step.commands]
    return "\n".join(rows)

"""Reads the project's requirement files: what it asks for, what that brings, what comes apart.

Standard library only, because the set-up imports it before anything is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASKED = "# --- what the project asks for ---"
BROUGHT = "# --- what these bring on Linux x86_64 ---"


@dataclass(frozen=True)
class Requirements:
    """One requirement file. Every line is as pip reads it, `name==version; marker`."""

    path: Path
    asked: tuple[str, ...]  # the project's own list
    brought: tuple[str, ...]  # pins of what those depend on
    no_deps: tuple[str, ...]  # installed apart with --no-deps (tf-keras)
    patched: tuple[str, ...]  # built by scripts/horovod_wheel.py


def normal(name: str) -> str:
    """The name of a distribution as package indexes compare it: `ml_dtypes` -> `ml-dtypes`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(line: str) -> str:
    """Normalised distribution name of a requirement line: `ml_dtypes==1; ...` -> `ml-dtypes`."""
    found = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", line)
    if found is None:
        raise ValueError(f"not a requirement: {line!r}")
    return normal(found[1])


def read(path: Path) -> Requirements:
    """Read a requirement file of this project.

    Raises ValueError if it lacks the line that starts the project's own list.
    """
    text = path.read_text()
    head, found, rest = text.partition(ASKED)
    if not found:
        raise ValueError(f"{path.name} lacks the line {ASKED!r}")
    asked, _, brought = rest.partition(BROUGHT)
    return Requirements(
        path=path,
        asked=_lines(asked),
        brought=_lines(brought),
        no_deps=tuple(re.findall(r"^#\s+--no-deps (\S+)", head, re.M)),
        patched=tuple(re.findall(r"^#\s+--patched (\S+)", head, re.M)),
    )


def _lines(text: str) -> tuple[str, ...]:
    lines = (line.split(" #")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))

"""Where the workbook runs, as data: platforms, and NVIDIA's containers.

docs/platforms.md and `rn50 doctor` show these tables; a test holds the page to them.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Platform:
    """One platform. `seen`: whether the workbook has been run there. `missing`, in a sentence's
    tail: what it lacks there, empty where nothing is lacking."""

    name: str
    pytorch: str
    tensorflow: str
    horovod: str
    dali: str  # empty: there is no wheel
    seen: str
    missing: str = ""


LINUX = Platform(
    "Linux x86_64",
    pytorch="yes",
    tensorflow="yes (tensorflow-cpu)",
    horovod="built by the set-up",
    dali="yes (cuda110, cuda120 or cuda130, by driver)",
    seen="on the processor; not on a GPU yet",
)
LINUX_ARM = Platform(
    "Linux arm64",
    pytorch="yes",
    tensorflow="yes (tensorflow)",
    horovod="built by the set-up",
    dali="with a driver for CUDA 13 (cuda130)",
    seen="no",
    missing="DALI needs a driver for CUDA 13; not run here yet",
)
WSL = Platform(
    "Windows, inside WSL2",
    pytorch="yes",
    tensorflow="yes (tensorflow-cpu)",
    horovod="built by the set-up",
    dali="yes (as on Linux)",
    seen="no",
    missing="not run here yet",
)
MACOS = Platform(
    "macOS",
    pytorch="yes",
    tensorflow="yes (tensorflow)",
    horovod="no; PyTorch's own workers instead",
    dali="",
    seen="no",
    missing="no DALI and no Horovod; not run here yet",
)

PLATFORMS = (LINUX, LINUX_ARM, WSL, MACOS)
PLATFORM_COLUMNS = ("platform", "PyTorch", "TensorFlow", "Horovod", "DALI", "run there")


@dataclass(frozen=True)
class InContainer:
    """How a notebook runs in the two kinds of NVIDIA container, from what they bring."""

    notebook: str
    pytorch: str
    tensorflow: str


NGC = (
    InContainer("00", "natively", "natively"),
    InContainer("01", "natively", "natively"),
    InContainer("02", "natively", "after `make setup WITH=torch`, on the processor"),
)
NGC_COLUMNS = ("notebook", "NGC PyTorch image", "last NGC TensorFlow image (25.02)")


def this() -> Platform | None:
    """The row of this machine, None where there is none."""
    system, machine = platform.system(), platform.machine()
    if system == "Darwin":
        return MACOS
    if system != "Linux":
        return None
    if "microsoft" in platform.release().lower() or os.environ.get("WSL_DISTRO_NAME"):
        return WSL
    return {"x86_64": LINUX, "aarch64": LINUX_ARM}.get(machine)


def platform_rows() -> list[tuple[str, ...]]:
    """The platform table with its heading."""
    rows = [(p.name, p.pytorch, p.tensorflow, p.horovod, p.dali or "no", p.seen) for p in PLATFORMS]
    return [PLATFORM_COLUMNS, *rows]


def ngc_rows(product: str = "") -> list[tuple[str, ...]]:
    """The container table with its heading; only the column of `product` where it names one."""
    rows: list[tuple[str, ...]] = [NGC_COLUMNS]
    rows += [(row.notebook, row.pytorch, row.tensorflow) for row in NGC]
    for column, word in ((1, "pytorch"), (2, "tensorflow")):
        if product.lower() == word:
            return [(row[0], row[column]) for row in rows]
    return rows


def as_text(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table for a terminal."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)

"""Where the workbook runs, as data: operating systems, and NVIDIA's containers.

`rn50 doctor` says from here what a platform lacks; docs/platforms.md shows the same to readers, and
a test holds the two together.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Platform:
    """An operating system. `lacks`: what a learner misses there, empty where nothing is missing."""

    name: str
    dali: bool  # whether there is a wheel for every machine of this kind
    tried: bool
    lacks: str = ""


LINUX = Platform("Linux x86_64", dali=True, tried=True)
LINUX_ARM = Platform("Linux arm64", False, False, "DALI needs a driver for CUDA 13")
WSL = Platform("Windows", True, False)  # inside WSL2; outside it is not supported
MACOS = Platform("macOS", False, False, "there is no DALI, and Horovod is not built")
PLATFORMS = (LINUX, LINUX_ARM, WSL, MACOS)


@dataclass(frozen=True)
class InContainer:
    """How a notebook runs in the two kinds of NVIDIA container, from what their images hold."""

    notebook: str
    pytorch: str
    tensorflow: str


NGC = (
    InContainer("00 start here", "as it is", "as it is"),
    InContainer("01 dataset preparation", "as it is: record files need no framework", "as it is"),
    InContainer(
        "02 single GPU", "as it is", "needs PyTorch: `make setup WITH=torch` adds it to `.venv`"
    ),
    InContainer(
        "03 Horovod",
        "on PyTorch's DDP with NCCL: the image has no Horovod, and none is built there",
        "needs PyTorch, as 02 does; its part on TensorFlow with the image's Horovod",
    ),
    InContainer(
        "04 TFRecord",
        "the record files and the DALI reader as they are; the `tf.data` part needs"
        " `make setup WITH=tensorflow`, which brings a build for the CPU",
        "as it is",
    ),
    InContainer(
        "05 DALI",
        "with the image's DALI; its `tf.data` part needs `make setup WITH=tensorflow`",
        "with the image's DALI; needs PyTorch, as 02 does",
    ),
    InContainer("06 mixed precision", "as it is", "needs PyTorch, as 02 does"),
    InContainer(
        "07 inference",
        "as it is; its SavedModel part needs `make setup WITH=tensorflow`",
        "needs PyTorch, as 02 does",
    ),
    InContainer("08 benchmark and scaling", "as it is", "needs PyTorch, as 02 does"),
)


def this() -> Platform | None:
    """The platform of this machine, None for one that the workbook knows nothing of."""
    system, machine = platform.system(), platform.machine()
    if system == "Darwin":
        return MACOS
    if system != "Linux":
        return None
    if "microsoft" in platform.release().lower() or os.environ.get("WSL_DISTRO_NAME"):
        return WSL
    return {"x86_64": LINUX, "aarch64": LINUX_ARM}.get(machine)


def ngc_rows(product: str = "") -> list[tuple[str, ...]]:
    """The container table for a terminal, with its heading.

    `product` is what the image calls itself: only its column is shown where it is one of the two.
    """
    heading = ("notebook", "NGC PyTorch image", "NGC TensorFlow image")
    rows: list[tuple[str, ...]] = [heading]
    rows += [(row.notebook, row.pytorch, row.tensorflow) for row in NGC]
    for column, word in ((1, "pytorch"), (2, "tensorflow")):
        if product.lower() == word:
            return [(row[0], row[column]) for row in rows]
    return rows


def as_text(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table for a terminal."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = ([cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in rows)
    return ["  " + "  ".join(cells).rstrip() for cells in padded]

"""Where the workbook runs, as data: operating systems.

`rn50 doctor` says from here what a platform lacks; docs/platforms.md shows the same to readers, and
a test holds the two together.
"""

from __future__ import annotations

import os
import platform
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

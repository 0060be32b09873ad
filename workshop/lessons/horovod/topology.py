"""Which way data takes between the GPUs of a machine.

The matrix of `nvidia-smi topo -m`, and what it means. Where there is no NVIDIA driver, or a single
GPU, there is a recorded one, labelled as such.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rn50 import plot
from rn50lib.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {  # from the shortest way to the longest
    "NV": "directly over NVLink; the number counts the links that are bonded",
    "PIX": "through one PCIe switch",
    "PXB": "through several PCIe switches, without the processor",
    "PHB": "through the processor's PCIe host bridge",
    "NODE": "through several host bridges of one processor (one NUMA node)",
    "SYS": "through both processors and the link between their sockets",
}
OLD_NAMES = {"SOC": "SYS", "CPU": "SYS", "PSB": "PIX"}  # drivers before 390

RECORDED_FROM = (
    "recorded on a DGX-1 (8 x V100, two processors), published in microsoft/msccl-tools,"
    " tests/test_topologies.py; not this machine"
)
RECORDED = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_2\tmlx5_1\tmlx5_3\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tSYS\tPIX\tSYS\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tSYS\tPIX\tSYS\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tPIX\tSYS\tPHB\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tPIX\tSYS\tPHB\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tPHB\tSYS\tPIX\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tPHB\tSYS\tPIX\t20-39,60-79
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS\tPHB\tSYS\t
mlx5_2\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tPHB\tPHB\tSYS\t X \tSYS\tPHB\t
mlx5_1\tPHB\tPHB\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\tPHB\tSYS\t X \tSYS\t
mlx5_3\tSYS\tSYS\tSYS\tSYS\tPHB\tPHB\tPIX\tPIX\tSYS\tPHB\tSYS\t X \t
"""


@dataclass(frozen=True)
class Topology:
    """The GPUs, then the network cards, and the kind of link between two of them ("NV2", "PIX",
    ...); `source` is where this is from."""

    devices: tuple[str, ...]
    links: dict[tuple[str, str], str]
    source: str

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.devices if name.startswith("GPU"))

    def nvlinks(self, one: str, other: str) -> int:
        """How many NVLinks join two devices."""
        found = re.fullmatch(r"NV(\d+)", self.links[one, other])
        return int(found[1]) if found else 0


def parse(text: str, source: str) -> Topology:
    """The matrix that `nvidia-smi topo -m` prints, whatever the driver's layout of it.

    Its columns have changed with the drivers (network cards, CPU and NUMA affinity), and it comes
    with tabs, with spaces where it was copied, and underlined for a terminal. Raises UserError
    where no matrix is in there.
    """
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    at = next((i for i, line in enumerate(lines) if re.match(r"\s*GPU0(\s|$)", line)), None)
    if at is None:
        raise UserError(f"{source}: there is no matrix of GPUs in it, which begins with GPU0")
    header = lines[at].split()
    beyond = [i for i, name in enumerate(header) if name in ("CPU", "NUMA")]
    devices = tuple(header[: beyond[0]] if beyond else header)
    links: dict[tuple[str, str], str] = {}
    for line in lines[at + 1 :]:
        name, *cells = line.split() or [""]
        if name not in devices or len(cells) < len(devices):
            continue
        for other, kind in zip(devices, cells, strict=False):
            links[name, other] = OLD_NAMES.get(kind, kind)
    for a in devices:
        if (a, devices[0]) not in links:
            raise UserError(f"{source}: the row of {a} is missing or incomplete")
    return Topology(devices, links, source)


def recorded() -> Topology:
    """The DGX-1's matrix, for machines that have nothing to show."""
    return parse(RECORDED, RECORDED_FROM)


def find() -> tuple[Topology, str]:
    """(topology, remark): this machine's; where it has none, the recorded one and the reason."""
    if shutil.which("nvidia-smi") is None:
        return recorded(), "This machine has no NVIDIA driver, so there is nothing to ask."
    done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"
        return recorded(), f"nvidia-smi topo -m fails here: {reason}."
    try:
        here = parse(done.stdout, "this machine, by nvidia-smi topo -m")
    except UserError as error:
        return recorded(), f"{error}."
    if len(here.gpus) == 1:
        return recorded(), "This machine has one GPU, which has no other to talk to."
    return here, ""


# --- what it means --------------------------------------------------------------------------------


def figure(found: Topology) -> tuple[Figure, str]:
    """The matrix with its cells shaded, the fastest ways darkest; and the sentence."""
    import numpy as np
    from matplotlib.figure import Figure

    kinds = sorted({kind for kind in found.links.values() if kind != "X"}, key=rank)
    count = len(found.devices)
    with plot.style():
        drawing = Figure(figsize=(3 + 0.55 * count, 1.4 + 0.42 * count))
        axes = drawing.subplots()
        shades = np.full((count, count), np.nan)
        for (a, b), kind in found.links.items():
            row, column = found.devices.index(a), found.devices.index(b)
            if kind != "X":
                shades[row, column] = 0.75 - 0.75 * kinds.index(kind) / max(1, len(kinds) - 1)
                ink = "white" if shades[row, column] > 0.4 else "black"
                axes.text(column, row, kind, ha="center", va="center", color=ink, fontsize=9)
        axes.imshow(shades, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.grid(False)
        axes.set_xticks(range(count), found.devices, rotation=45, ha="right")
        axes.set_yticks(range(count), found.devices)
        axes.set_title("How the GPUs of a machine are joined")
        axes.set_xlabel(found.source, fontsize=8)
    return drawing, sentence(found)


def rank(kind: str) -> tuple[int, int]:
    """Sorts kinds of links from the fastest to the slowest."""
    number = re.fullmatch(r"NV(\d+)", kind)
    if number:
        return 0, -int(number[1])
    names = list(KINDS)
    return (names.index(kind) if kind in names else len(names)), 0


def explain(kind: str) -> str:
    """What a kind of link is."""
    number = re.fullmatch(r"NV(\d+)", kind)
    if number:
        return f"{number[1]} NVLink{'' if number[1] == '1' else 's'}, directly"
    return KINDS.get(kind, "a kind of link that is not known here")


def sentence(found: Topology) -> str:
    """What the matrix means for an all-reduce over all GPUs."""
    gpus = found.gpus
    pairs = [(a, b) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
    if not pairs:
        return "One GPU has no other to talk to."
    direct = [pair for pair in pairs if found.nvlinks(*pair)]
    if not direct:
        worst = max((found.links[pair] for pair in pairs), key=rank)
        return (
            f"No two of the {len(gpus)} GPUs are joined by NVLink: an all-reduce goes over PCIe,"
            f" at its slowest {explain(worst)}."
        )
    joined = f"{len(direct)} of {len(pairs)} pairs of GPUs are joined by NVLink."
    around = ring(found)
    if around is None:
        return f"{joined} No ring over all of them uses NVLink alone."
    path = " - ".join(gpu.removeprefix("GPU") for gpu in (*around, around[0]))
    return f"{joined} A ring over all {len(gpus)} needs nothing else: {path}."


def ring(found: Topology) -> tuple[str, ...] | None:
    """A round trip over all GPUs by NVLink alone, the thickest links first; None without one."""
    gpus = found.gpus
    if len(gpus) < 3:
        return gpus if len(gpus) == 2 and found.nvlinks(*gpus) else None

    def extend(path: tuple[str, ...]) -> tuple[str, ...] | None:
        if len(path) == len(gpus):
            return path if found.nvlinks(path[-1], path[0]) else None
        near = [g for g in gpus if g not in path and found.nvlinks(path[-1], g)]
        for gpu in sorted(near, key=lambda g: -found.nvlinks(path[-1], g)):
            whole = extend((*path, gpu))
            if whole is not None:
                return whole
        return None

    return extend(gpus[:1])

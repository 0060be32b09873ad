"""What NCCL says at its start, line by line: the output of a run with NCCL_DEBUG=INFO explained.

It is the first thing to look at when several GPUs are slower than they should be: it tells the way
that the data really takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from workshop import output


@dataclass(frozen=True)
class Explained:
    """A line of the log that says something: its kind, the line and what it means."""

    kind: str
    line: str
    meaning: str


# Real lines, so that every reader sees the same; a machine with GPUs shows its own.
RECORDED = """\
NCCL version 2.10.3+cuda11.0
nodea:26799:26799 [0] NCCL INFO NET/IB : Using [0]mlx5_6:1/RoCE ; OOB xgbe4:nodea_ip<0>
nodea:26799:27025 [0] NCCL INFO Channel 00/02 :    0   7   6   5  12  11  10   9   8  15  14  13   4   3   2   1
nodeb:65671:65850 [0] NCCL INFO Channel 00 : 8[20000] -> 15[cf000] via P2P/direct pointer/read
nodeb:65671:65858 [5] NCCL INFO Channel 01 : 13[92000] -> 4[89000] [send] via NET/IB/0/GDRDMA
nodea:26799:27030 [4] NCCL INFO Connected all rings
"""  # noqa: E501
RECORDED_FROM = (
    "recorded on two machines with 8 x A800-SXM4-80GB each, NCCL 2.10.3 with CUDA 11.0; six lines"
    " of the log in github.com/NVIDIA/nccl-tests/issues/133"
)

WAYS = (  # how two GPUs talk, from the fastest way to the slowest
    (r"P2P/(direct pointer|CUMEM|IPC)", "directly, one GPU reading the other's memory (NVLink or"
     " PCIe)"),
    (r"SHM", "through memory of the host that both processes share: there is no direct way between"
     " these two GPUs"),
    (r"NET/\S*IB\S*GDRDMA", "over InfiniBand or RoCE, the card reading the GPU's memory itself"
     " (GPUDirect RDMA)"),
    (r"NET/\S*IB", "over InfiniBand or RoCE, by way of the host's memory"),
    (r"NET/Socket", "over TCP, by way of the host's memory: the slowest way; between machines with"
     " InfiniBand it means that NCCL does not use it"),
    (r"NET/", "over the network by a plugin"),
)  # fmt: skip

Line = re.Match[str]


def _version(found: Line) -> str:
    return f"NCCL {found[1]}, built for CUDA {found[2]}: every rank must have the same."


def _ring(found: Line) -> str:
    ranks = found[3].split()
    path = " → ".join([*ranks, ranks[0]])
    return (
        f"Ring {int(found[1])} of {int(found[2])}: the order in which the {len(ranks)} ranks pass"
        f" the gradients on: {path}. Several channels use several links at once."
    )


def _way(found: Line) -> str:
    told = next((words for pattern, words in WAYS if re.match(pattern, found[4])), "some other way")
    return f"Channel {int(found[1])}: rank {found[2]} sends to rank {found[3]} {told}."


def _network(found: Line) -> str:
    kind, rest = found[1], found[2]
    if "No device" in rest:
        return "No InfiniBand or RoCE card was found; between machines only TCP is left."
    what = "InfiniBand or RoCE cards" if kind == "IB" else "network interfaces"
    return (
        f"The {what} that NCCL found and would use between machines: {rest.split(';')[0].strip()}"
    )


def _complete(found: Line) -> str:
    return (
        f"Rank {found[1]} of {found[2]} is ready, on the GPU with number {found[3]} of its process"
        f" (PCI bus {found[4]}). There must be one such line for each of the {found[2]} ranks; the"
        " rank without one is the one that hangs."
    )


_BUS = r"(\d+)(?:\[[0-9a-f]+\])?"
RULES: tuple[tuple[str, str, Callable[[Line], str]], ...] = (
    ("problem", r"NCCL WARN (.*)", lambda m: f"A warning, and usually the cause: {m[1]}"),
    ("version", r"NCCL version (\d[\d.]*)\+cuda(\d[\d.]*)", _version),
    ("ready", r"comm 0x\S+ rank (\d+) nranks (\d+) cudaDev (\d+).*?busId (\w+).*Init COMPLETE",
     _complete),
    ("ring", r"(?:Channel|Ring) (\d+)/(\d+) :((?: +\d+)+)\s*$", _ring),
    ("way", rf"(?:Channel|Ring) (\d+)(?:/\d+)? : {_BUS} -> {_BUS} (?:\[\w+\] )?via (.+)", _way),
    ("network", r"NET/(IB|Socket) : (.+)", _network),
    ("network", r"Using network (\S+)",
     lambda m: f"Between machines the data goes over {m[1]}."),
    ("connected", r"Connected all (rings|trees)",
     lambda m: f"This rank has all its connections for the {m[1]}."),
)  # fmt: skip


def explain(text: str) -> list[Explained]:
    """The lines of a log that say something, in their order; what launchers put in front of a line
    does not matter. Of lines of one kind and wording that differ in ranks only, the first."""
    found: list[Explained] = []
    seen: set[tuple[str, str]] = set()
    for line in text.splitlines():
        for kind, pattern, words in RULES:
            match = re.search(pattern, line)
            if match is None:
                continue
            way = match[4].strip() if kind == "way" else match[0] if kind == "problem" else ""
            if kind in ("network", "connected"):
                way = match[0]
            if (kind, way) not in seen:
                seen.add((kind, way))
                found.append(Explained(kind, line.strip(), words(match)))
            break
    return found


def table(text: str | None = None) -> None:
    """Show a log with its explanations; the recorded one, marked as such, where none is given."""
    found = explain(RECORDED if text is None else text)
    caption = f"NCCL_DEBUG=INFO: {RECORDED_FROM}" if text is None else "NCCL_DEBUG=INFO"
    if not found:
        output.show("<p>No line of NCCL in there.</p>", "No line of NCCL in there.")
        return
    output.table([[item.line, item.meaning] for item in found], ["NCCL says", "meaning"], caption)

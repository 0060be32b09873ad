"""What NCCL says at its start, line by line: the output of a run with NCCL_DEBUG=INFO explained.

It is the first thing to look at when several GPUs are slower than they should be: it tells the way
that the data really takes.
"""

from __future__ import annotations

import re

from workshop import output

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

WAYS = (  # how two GPUs talk, from the fastest way to the slowest; the first that fits counts
    (r"P2P/(?:direct pointer|CUMEM|IPC)", "directly, one GPU reading the other's memory (NVLink or"
     " PCIe)"),
    (r"SHM", "through memory of the host that both processes share: there is no direct way between"
     " these two GPUs"),
    (r"NET/\S*IB\S*GDRDMA", "over InfiniBand or RoCE, the card reading the GPU's memory itself"
     " (GPUDirect RDMA)"),
    (r"NET/\S*IB", "over InfiniBand or RoCE, by way of the host's memory"),
    (r"NET/Socket", "over TCP, by way of the host's memory: the slowest way; between machines with"
     " InfiniBand it means that NCCL does not use it"),
    (r"", "some other way"),
)  # fmt: skip

_RANK = r"(\d+)(?:\[[0-9a-f]+\])?"
_CHANNEL = rf"(?:Channel|Ring) 0*(\d+)(?:/\d+)? : {_RANK} -> {_RANK} (?:\[\w+\] )?via "
MEANINGS = (  # a pattern and what it means, in which \1 is the pattern's first group
    (r"NCCL WARN (.*)", r"A warning, and usually the cause: \1"),
    (r"NCCL version (\d[\d.]*)\+cuda(\d[\d.]*)",
     r"NCCL \1, built for CUDA \2: every rank must have the same."),
    (r"comm 0x\S+ rank (\d+) nranks (\d+) cudaDev (\d+).*?busId (\w+).*Init COMPLETE",
     r"Rank \1 of \2 is ready, on the GPU with number \3 of its process (PCI bus \4). There must be"
     r" one such line for each of the \2 ranks; the rank without one is the one that hangs."),
    (r"(?:Channel|Ring) 0*(\d+)/0*(\d+) :((?: +\d+)+)\s*$",
     r"Ring \1 of \2: the order in which the ranks pass the gradients on, the last one to the"
     r" first:\3. Several channels use several links at once."),
    *((_CHANNEL + way, rf"Channel \1: rank \2 sends to rank \3 {words}.") for way, words in WAYS),
    (r"NET/IB : No device", "No InfiniBand or RoCE card was found; between machines only TCP is"
     " left."),
    (r"NET/(?:IB|Socket) : (?:Using )?([^;]+)",
     r"The network cards that NCCL found and would use between machines: \1"),
    (r"Using network (\S+)", r"Between machines the data goes over \1."),
    (r"Connected all (rings|trees)", r"This rank has all its connections for the \1."),
)  # fmt: skip


def explain(text: str) -> list[list[str]]:
    """[line, meaning] of the lines of a log that say something, in their order; what launchers put
    in front of a line does not matter. Of meanings that differ in numbers only, the first."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        for pattern, words in MEANINGS:
            if match := re.search(pattern, line):
                meaning = " ".join(match.expand(words).split())
                found.setdefault(re.sub(r"[\d ]+", "", meaning), [line.strip(), meaning])
                break
    return list(found.values())


def table(text: str | None = None) -> None:
    """Show a log with its explanations; the recorded one, marked as such, where none is given."""
    caption = f"NCCL_DEBUG=INFO: {RECORDED_FROM}" if text is None else "NCCL_DEBUG=INFO"
    rows = explain(RECORDED if text is None else text)
    output.table(rows, ["NCCL says", "meaning"], caption)

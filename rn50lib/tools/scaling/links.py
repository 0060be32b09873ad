"""Links between GPUs and between hosts: bandwidth and latency, each number with its source.

The numbers are those by which NCCL (2.18 and later) itself chooses its algorithms: `SM70_NVLINK_BW`
and its like in src/graph/topo.h, `hwLat` and `baseLat` in src/graph/tuning.cc (the ring with the
Simple protocol). They say what a link gives to an all-reduce, not what its data sheet promises, and
nothing here is ever fitted to a training run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rn50lib.errors import UserError

GB = 1e9


@dataclass(frozen=True)
class Link:
    """A message of `size` bytes takes latency_s + size / bytes_per_s, one way."""

    name: str
    bytes_per_s: float
    latency_s: float
    source: str

    def slower(self, share: float) -> Link:
        """The same link that gives only `share` of its bandwidth."""
        return replace(self, bytes_per_s=self.bytes_per_s * share)


# What NCCL adds to every all-reduce, however small, and the 0.96 of a network's line rate that it
# counts on (12 GB/s of the 12.5 of 100 Gbit/s).
START_S = 8.4e-6
LINE_RATE = 0.96
LOCAL = {
    link.name: link
    for link in (
        Link("pcie", 12 * GB, 5.7e-6, "PCI Express 3.0 x16: NCCL, PCI_BW 12, ring latency 5.7 us"),
        Link(
            "nvlink", 6 * 20 * GB, 3.4e-6, "V100: 6 NVLinks; NCCL, SM70_NVLINK_BW 20 each, 3.4 us"
        ),
        Link("nvlink3", 12 * 20 * GB, 3.4e-6, "A100: 12 NVLinks; NCCL, SM80_NVLINK_BW 20, 3.4 us"),
        Link("nvlink4", 18 * 20.6 * GB, 3.4e-6, "H100: 18; NCCL, SM90_NVLINK_BW 20.6, 3.4 us"),
    )
}
NETWORK = re.compile(r"(?:(\d+)x)?(\d+)g")
NETWORK_LATENCY_S = 14e-6


def between_hosts(name: str) -> Link:
    """A host's connection to the others: `100g` is 100 Gbit/s, `8x200g` eight such adapters."""
    match = NETWORK.fullmatch(name)
    if match is None or not int(match[2]) or match[1] == "0":
        raise UserError(f"{name!r} is no network: name it like 10g, 100g or 8x200g (Gbit/s)")
    gbits = int(match[1] or 1) * int(match[2])
    rate = LINE_RATE * gbits / 8 * GB
    return Link(name, rate, NETWORK_LATENCY_S, "NCCL, NET_BW 12 for 100 Gbit/s, ring latency 14 us")


def parse(name: str) -> tuple[Link, Link | None]:
    """`nvlink`, or `nvlink+100g`: (the link in a host, the one between hosts or None).

    Raises UserError for a name that is not known.
    """
    local, plus, outside = name.partition("+")
    if local not in LOCAL:
        raise UserError(
            f"--network {name}: there are {', '.join(LOCAL)}, each alone or with a network between"
            " hosts, as in nvlink+100g"
        )
    try:
        return LOCAL[local], between_hosts(outside) if plus else None
    except UserError as error:
        raise UserError(f"--network {name}: {error}") from None

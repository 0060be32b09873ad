"""The links between GPUs and between hosts, with the constants by which NCCL chooses algorithms.

From NCCL 2.20: `SM70_NVLINK_BW` and its like in src/graph/topo.h, `hwLat` and `baseLat` in
src/graph/tuning.cc (ring, Simple protocol). They are what a link gives to an all-reduce, not what
its data sheet promises. Nothing here is fitted to a training run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rn50lib.errors import UserError

GB = 1e9
START_S = 8.4e-6  # what NCCL adds to every all-reduce, however small


@dataclass(frozen=True)
class Link:
    """A link on which `size` bytes take latency_s + size / bytes_per_s, one way."""

    name: str
    bytes_per_s: float
    latency_s: float

    def slower(self, share: float) -> Link:
        """Return this link with only a share of its bandwidth."""
        return replace(self, bytes_per_s=self.bytes_per_s * share)


LOCAL = {
    "pcie": Link("pcie", 12 * GB, 5.7e-6),  # PCI Express 3.0 x16: PCI_BW
    "nvlink": Link("nvlink", 6 * 20 * GB, 3.4e-6),  # V100, 6 NVLinks: SM70_NVLINK_BW each
    "nvlink3": Link("nvlink3", 12 * 20 * GB, 3.4e-6),  # A100, 12: SM80_NVLINK_BW
    "nvlink4": Link("nvlink4", 18 * 20.6 * GB, 3.4e-6),  # H100, 18: SM90_NVLINK_BW
}
NETWORK = re.compile(r"(?:([1-9]\d*)x)?([1-9]\d*)g")  # adapters, and Gbit/s of each
LINE_RATE = 0.96  # the share that NCCL counts on: NET_BW is 12 GB/s of the 12.5 of 100 Gbit/s
NETWORK_LATENCY_S = 14e-6


def parse(name: str) -> tuple[Link, Link | None]:
    """Return the link within a host and the one between hosts of 'nvlink+100g' or 'nvlink'.

    `8x200g` is a host with eight adapters of 200 Gbit/s. Raise UserError for an unknown name.
    """
    local, plus, outside = name.partition("+")
    if local not in LOCAL:
        raise UserError(
            f"--network {name}: there are {', '.join(LOCAL)}, each alone or with a network between"
            " hosts, as in nvlink+100g"
        )
    if not plus:
        return LOCAL[local], None
    match = NETWORK.fullmatch(outside)
    if match is None:
        raise UserError(
            f"--network {name}: {outside!r} is not a network: use 10g, 100g or 8x200g (Gbit/s)"
        )
    bytes_per_s = LINE_RATE * int(match[1] or 1) * int(match[2]) / 8 * GB
    return LOCAL[local], Link(outside, bytes_per_s, NETWORK_LATENCY_S)

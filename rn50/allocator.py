"""Settings of a process on a CPU: freed memory is kept, and waiting threads soon sleep.

glibc returns large blocks to the kernel at every free, and each training step frees its
activations: the next arrays cost page faults. A process that starts reads GLIBC_TUNABLES; one that
runs can call `keep_memory`. benchmarks/README.md says how to measure without it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

# Huge pages (2 MB) need fewer address lookups.
ALLOCATOR = ":".join(
    f"glibc.malloc.{setting}"
    for setting in ("mmap_threshold=4294967296", "trim_threshold=8589934592", "hugetlb=1")
)


def keep_memory() -> None:
    """Set in this process what ALLOCATOR sets, but for huge pages; without glibc, do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-4, 0)  # M_MMAP_MAX: mallopt limits the threshold, so large arrays do without mmap
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: the largest int


def spins(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that lets OpenMP's waiting threads spin 5,000 times, if none is set.

    The default is 300,000. It saves about 3% on a quiet machine, but a step takes up to ten times
    as long if other programs take a core. Set it before PyTorch is imported.
    """
    return {} if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & env.keys() else {"GOMP_SPINCOUNT": "5000"}

"""The calls of Linux that Python's `os` lacks: namespaces, mounts, what happens when a parent ends.

Each raises OSError where the machine does not allow it, and on other systems always.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

NEW_MOUNTS, NEW_NAMES, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEV = 1, 2, 4
REMOUNT, BIND, RECURSIVE, PRIVATE = 32, 4096, 16384, 1 << 18
DETACH = 2
PARENT_DEATH_SIGNAL, NO_NEW_PRIVILEGES, SUBREAPER = 1, 38, 36
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}
MOUNT_SETATTR, CAPSET = 442, {"x86_64": 126, "aarch64": 91, "ppc64le": 184}
CAPABILITIES_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _call(name: str, *args: object) -> int:
    if _libc is None:
        raise OSError(f"{name} needs Linux")
    ctypes.set_errno(0)
    result: int = getattr(_libc, name)(*args)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces that this process shares with its parent."""
    _call("unshare", ctypes.c_int(flags))


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    kind_b = kind.encode() if kind else None
    data_b = data.encode() if data else None
    _call("mount", os.fsencode(source), os.fsencode(target), kind_b, ctypes.c_ulong(flags), data_b)


def bind(source: Path, target: Path) -> None:
    """Show a file or folder in another place, read-only with all that is mounted below it."""
    mount(str(source), str(target), None, BIND | RECURSIVE)
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY | NO_SUID, 0, 0, 0)
    try:  # Linux 5.12: the mounts below too
        _call("syscall", ctypes.c_long(MOUNT_SETATTR), ctypes.c_int(-100), os.fsencode(target),
              ctypes.c_uint(0x8000), attributes, ctypes.c_size_t(32))  # fmt: skip
    except OSError:
        kept = os.statvfs(target).f_flag & (NO_SUID | NO_DEV | 8)
        mount(str(source), str(target), None, BIND | REMOUNT | READ_ONLY | kept)


def change_root(folder: Path) -> None:
    """Make `folder` the root of this process; what was there before is gone for it."""
    number = PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root is not known on {os.uname().machine}")
    os.chdir(folder)
    _call("syscall", ctypes.c_long(number), b".", b".")
    _call("umount2", b".", ctypes.c_int(DETACH))
    os.chdir("/")


def control(option: int, value: int) -> None:
    """prctl."""
    zero = ctypes.c_ulong(0)
    _call("prctl", ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero)


def raise_loopback() -> None:
    """Switch on 127.0.0.1 in a network namespace of one's own: ranks talk to each other over it."""
    get, put, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        name, flags = struct.unpack_from("16sH", fcntl.ioctl(line, get, b"lo".ljust(40, b"\0")))
        fcntl.ioctl(line, put, struct.pack("16sH22x", name, flags | up))


def drop_capabilities() -> None:
    """Give up what a user namespace gives to its first process."""
    number = CAPSET.get(os.uname().machine)
    if number is None:
        raise OSError(f"capset is not known on {os.uname().machine}")
    head = (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _call("syscall", ctypes.c_long(number), head, none)

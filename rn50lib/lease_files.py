"""The files behind `rn50lib.lease`: a lock per GPU with what is known of its leases, and the queue.

All of them can be written by every user of the machine. Only locks are believed: what a process
wrote that has died since is out of date, and its locks are gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACE = "RN50_LEASES"
DEFAULT = Path("/tmp/rn50-leases")  # not $TMPDIR, which may be each user's own
KEPT = 40  # how many past leases of a GPU are remembered


@dataclass(frozen=True)
class Holder:
    """Who has a GPU: since when (UTC, seconds), and for how many seconds in all if it is known."""

    pid: int
    user: str
    since: float
    expects: float | None

    def left(self) -> float | None:
        """Seconds until it is expected to end; None if not known, or if it should have ended."""
        if self.expects is None:
            return None
        left = self.since + self.expects - time.time()
        return left if left > 0 else None


def home() -> Path:
    """The folder of the leases. Several containers on one machine need a common one."""
    return Path(os.environ.get(PLACE) or DEFAULT)


# --- the locks ------------------------------------------------------------------------------------


def grab(devices: Sequence[str], count: int) -> dict[str, int] | None:
    """Descriptors, by device, of the first `count` that are free, locked; None, and no lock, where
    there are not so many: one who held some and waited for more could wait for ever."""
    held: dict[str, int] = {}
    for device in devices:
        descriptor = open_shared(home() / f"{device}.lease")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held[device] = descriptor
        except BlockingIOError:
            os.close(descriptor)
        if len(held) == count:
            return held
    release(held, None, None)
    return None


def release(held: Mapping[str, int], work: str | None, seconds: float | None) -> None:
    """Let go; where `seconds` says how long it was held, that is remembered."""
    for descriptor in held.values():
        if seconds is not None:
            recent = [*read(descriptor).get("recent", []), [work, round(seconds, 1)]]
            with contextlib.suppress(OSError):
                write(descriptor, {"holder": None, "recent": recent[-KEPT:]})
        os.close(descriptor)


def holder_of(device: str) -> Holder | None:
    """Who has a device now, None if nobody has. Its expectation is that of its work, else the
    median of what was done on the device."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = open_shared(home() / f"{device}.lease")
            stack.callback(os.close, descriptor)
            told = read(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # what its last holder wrote is out of date: it was killed
        except BlockingIOError:
            pass
        try:
            holder = Holder(**told["holder"])
        except (KeyError, TypeError):  # it is just being taken
            return Holder(0, "", 0.0, None)
    if holder.expects is None:
        return Holder(holder.pid, holder.user, holder.since, usual(told, None))
    return holder


def expected(held: Mapping[str, int], work: str | None) -> float | None:
    """How long this work took on these devices before; None if it was not done there."""
    if work is None:
        return None
    found = [usual(read(descriptor), work) for descriptor in held.values()]
    return max((seconds for seconds in found if seconds is not None), default=None)


def usual(told: Mapping[str, Any], work: str | None) -> float | None:
    """The median length of a device's past leases: of those for this work, or of all."""
    recent = [row[1] for row in told.get("recent", []) if work is None or row[0] == work]
    return statistics.median(recent) if recent else None


# --- the queue ------------------------------------------------------------------------------------


class Ticket:
    """A place in the queue: a file that stays locked as long as its owner waits."""

    def __init__(self, devices: Sequence[str], count: int, work: str | None) -> None:
        folder = home() / "queue"
        self.path = folder / f"{time.time_ns():020}-{os.getpid()}"
        draft = folder / f".{self.path.name}"
        self.descriptor = open_shared(draft)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        expects = [told for device in devices if (told := past(device, work)) is not None]
        write(self.descriptor, {"devices": devices, "count": count,
                                "expects": max(expects, default=None)})  # fmt: skip
        os.rename(draft, self.path)  # others see it locked, never without its lock

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self.descriptor)


def past(device: str, work: str | None) -> float | None:
    """How long this work usually has a device, or any work where this one is new."""
    descriptor = open_shared(home() / f"{device}.lease")
    try:
        told = read(descriptor)
    finally:
        os.close(descriptor)
    return (usual(told, work) if work else None) or usual(told, None)


def earlier(devices: Sequence[str], own: Path | None) -> list[dict[str, Any]]:
    """The tickets before `own` (None: all) that want one of these devices, the first one first."""
    found = []
    for path in sorted((home() / "queue").glob("[0-9]*")):
        if own is not None and path.name >= own.name:
            break
        told = ticket(path)
        if told and set(told.get("devices", ())) & set(devices):
            found.append(told)
    return found


def ticket(path: Path) -> dict[str, Any] | None:
    """What stands on a ticket; None where its owner no longer waits, and then it is removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read(descriptor)
    finally:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # another user's: the folder lets only the owner remove it
        path.unlink()
    return None


# --- files that all users share -------------------------------------------------------------------


def make(folder: Path) -> None:
    """Make the folders; everybody may add files, and only a file's owner remove it."""
    for path in (folder.parent, folder):
        try:
            path.mkdir()
        except FileExistsError:
            continue
        path.chmod(0o1777)  # mkdir's own mode is cut by the umask


def open_shared(path: Path) -> int:
    """Open a file that every user may write, and make it where it is missing.

    In a sticky folder Linux may refuse O_CREAT on a file of another user, so it is given only where
    the file is not there.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)
            return descriptor


def read(descriptor: int) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none, or half of one."""
    try:
        told = json.loads(os.pread(descriptor, 1 << 16, 0))
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def write(descriptor: int, told: Mapping[str, Any]) -> None:
    """Put an object in place of what stands in a file."""
    data = json.dumps(told).encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


def user() -> str:
    """The name of the user, or the number where there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())

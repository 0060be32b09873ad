"""A lease per GPU, so that the runs of several learners on one machine wait for each other.

    with take({"GPU-1a2b": 0, "GPU-3c4d": 1}, 1, say) as devices:
        ...  # devices is ("GPU-1a2b",): nobody else who asks here gets it

A lease is a lock on a file of the GPU's name, in a folder that all users share ($RN50_LEASES,
default /tmp/rn50-leases). The kernel releases it when its holder dies, however that happens. Who
has to wait stands in a queue, and is served in turn. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rn50lib.lease_files import (
    PLACE,
    Holder,
    Ticket,
    earlier,
    expected,
    grab,
    holder_of,
    home,
    make,
    read,
    release,
    user,
    write,
)

POLL_S = 0.25
SAY_S = 15.0  # between two lines of one that waits

Say = Callable[[str], None]


@contextlib.contextmanager
def take(
    devices: Mapping[str, int], count: int, say: Say, work: str | None = None
) -> Iterator[tuple[str, ...]]:
    """Hold `count` of the devices (id: the number by which people know it) inside the block.

    Free ones are taken at once, the first ones first; otherwise `say` gets a line every few seconds
    until it is this one's turn. `work` names what is done: how long the same took before is what
    others are told. Where leases cannot be kept, `say` gets the reason, and nobody waits.
    """
    queue = None
    try:
        make(home() / "queue")
        held = grab(unclaimed(devices, earlier(list(devices), None)), count)
        if held is None:
            queue = Ticket(list(devices), count, work)
            held = wait(devices, count, queue, say)
    except OSError as error:
        say(
            f"GPUs are not leased, so runs may collide: {home()}: {error.strerror or error}; set"
            f" {PLACE} to a folder that everybody here may write to"
        )
        yield tuple(devices)[:count]
        return
    finally:
        if queue is not None:
            queue.close()
    assert held is not None
    begin = time.time()
    holder = Holder(os.getpid(), user(), begin, expected(held, work))
    for descriptor in held.values():
        write(descriptor, read(descriptor) | {"holder": vars(holder)})
    try:
        yield tuple(held)
    finally:
        release(held, work, time.time() - begin)


def wait(devices: Mapping[str, int], count: int, ticket: Ticket, say: Say) -> dict[str, int]:
    """The locks of `count` devices, once they are free and nobody waited for them before."""
    told, said = "", float("-inf")
    while True:
        before = earlier(list(devices), ticket.path)
        held = grab(unclaimed(devices, before), count)
        if held is not None:
            return held
        text = waiting(devices, count, before)
        who = text.rpartition(",")[0]  # without the estimate, which changes all the time
        if text and (who != told or time.monotonic() - said > SAY_S):
            say(text)
            told, said = who, time.monotonic()
        time.sleep(POLL_S)


def unclaimed(devices: Mapping[str, int], before: Sequence[dict[str, Any]]) -> list[str]:
    """The devices that none of those before waits for: they are served first."""
    claimed = {device for ticket in before for device in ticket["devices"]}
    return [device for device in devices if device not in claimed]


def waiting(devices: Mapping[str, int], count: int, before: Sequence[dict[str, Any]]) -> str:
    """The line for one that waits: for what, how many runs are ahead, and for about how long; empty
    where nobody is ahead any more."""
    numbers = [str(number) for number in devices.values()]
    if count == len(numbers):
        what = f"GPU{'s' if count > 1 else ''} {', '.join(numbers)}"
    else:
        what = f"{count} of the GPUs {', '.join(numbers)}"
    holders = {device: holder_of(device) for device in devices}
    runs = len({(h.pid, h.since) for h in holders.values() if h}) + len(before)
    if not runs:
        return ""
    ahead = "one run ahead" if runs == 1 else f"{runs} runs ahead"
    seconds = estimate(holders, count, before)
    return f"waiting for {what}: {ahead}, {about(seconds)}"


def about(seconds: float | None) -> str:
    """A time for people, rounded up: no estimate is better than that."""
    if seconds is None:
        return "it is not known for how long"
    if seconds > 100:
        return f"about {seconds / 60:.0f} min"
    return f"about {max(5, 5 * round(seconds / 5))} s"


def estimate(
    holders: Mapping[str, Holder | None], count: int, before: Sequence[dict[str, Any]]
) -> float | None:
    """Seconds until `count` devices are free after those who wait already; None if not known."""
    free: dict[str, float] = {}
    for device, holder in holders.items():
        left = holder.left() if holder else 0.0
        if left is None:
            return None
        free[device] = left
    for ticket in before:
        if ticket.get("expects") is None:
            return None
        own = sorted((d for d in ticket["devices"] if d in free), key=free.__getitem__)
        own = own[: ticket["count"]]
        end = max((free[device] for device in own), default=0.0) + ticket["expects"]
        free |= dict.fromkeys(own, end)
    return sorted(free.values())[count - 1]

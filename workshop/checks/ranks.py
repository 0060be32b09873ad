"""Ranks as threads: enough of a group of workers to try a learner's function on.

    results = together(3, lambda comm: broadcast_start(arrays[comm.rank], comm))

A rank that waits for others which never come is found out at once, as `Stuck`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Stuck(Exception):
    """Some ranks called something that all have to call."""


class Meeting:
    """A barrier that knows when nobody is left who could come."""

    def __init__(self, size: int) -> None:
        self.size, self.arrived, self.gone, self.round = size, 0, 0, 0
        self.changed = threading.Condition()

    def wait(self) -> None:
        """Return when all ranks are here. Raises Stuck when some of them have ended before."""
        with self.changed:
            now = self.round
            self.arrived += 1
            if self.arrived == self.size:
                self.arrived, self.round = 0, self.round + 1
            self.changed.notify_all()
            while self.round == now:
                if self.arrived + self.gone >= self.size:
                    raise Stuck
                self.changed.wait()

    def leave(self) -> None:
        with self.changed:
            self.gone += 1
            self.changed.notify_all()


class Threads:
    """What `rn50lib.comm.Comm` promises, for ranks that are threads of this process.

    `calls` lists what this rank asked for.
    """

    def __init__(self, rank: int, size: int, meeting: Meeting, table: list[Any]) -> None:
        self.rank = self.local_rank = rank
        self.size = size
        self.calls: list[str] = []
        self._meeting, self._table = meeting, table

    def _exchange(self, what: str, value: Any) -> list[Any]:
        self.calls.append(what)
        self._table[self.rank] = (what, value)
        self._meeting.wait()
        found = list(self._table)
        self._meeting.wait()
        if {kind for kind, _ in found} != {what}:
            raise Stuck
        return [item for _, item in found]

    def broadcast(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        first = self._exchange("broadcast", {k: np.array(v) for k, v in arrays.items()})[0]
        return {name: array.copy() for name, array in first.items()}

    def sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        lists = self._exchange("sum", [np.array(a) for a in arrays])
        return [np.sum(column, axis=0) for column in zip(*lists, strict=True)]

    def barrier(self) -> None:
        self._exchange("barrier", None)

    def run(self, function: Callable[[Any], Any], state: Any) -> Any:
        return function(state)


def together(size: int, function: Callable[[Threads], Any]) -> list[Any]:
    """What `function(comm)` returns on each rank.

    Raises what the first failing rank raised, or Stuck when ranks waited in vain.
    """
    meeting = Meeting(size)
    table: list[Any] = [None] * size
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def work(rank: int) -> None:
        try:
            results[rank] = function(Threads(rank, size, meeting, table))
        except BaseException as error:
            errors[rank] = error
        finally:
            meeting.leave()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raised = [error for error in errors if error is not None]
    for error in raised:
        if not isinstance(error, Stuck):
            raise error
    if raised:
        raise raised[0]
    return results

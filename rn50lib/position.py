"""Where a run stands between two steps: what a group goes on from when its workers change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Position:
    """A committed point of a run. `images` of `epoch` are done; `sums` are the epoch's metric sums
    so far, over all ranks; `metrics` are the report's up to the epoch before; `scaling` is
    `Step.scaling()`."""

    epoch: int
    images: int
    arrays: dict[str, np.ndarray]
    sums: np.ndarray
    metrics: dict[str, list[float | None]]
    scaling: dict[str, float] = field(default_factory=dict)


@dataclass
class State:
    """What `Comm.run` carries from one group of workers to the next.

    `since` counts the images that were trained on since the last commit: they are lost, and done
    again, when a worker dies. `changes` tells every change of the group.
    """

    saved: Position | None = None
    since: int = 0
    repeated: int = 0
    tails: dict[int, int] = field(default_factory=dict)  # by epoch: what no global batch could take
    changes: list[dict[str, Any]] = field(default_factory=list)
    on_commit: Callable[[], None] = lambda: None  # an elastic group lets workers in here

    def commit(self, position: Position) -> None:
        """Take `position` as the point to go back to. May raise what makes the group start anew."""
        self.saved, self.since = position, 0
        self.on_commit()

    def roll_back(self) -> None:
        """A worker has gone: what was done since the last commit will be done again."""
        self.repeated += self.since
        self.since = 0

    def shared(self) -> tuple[Any, ...]:
        """What a worker that joins has to know."""
        return self.saved, self.repeated, self.tails, self.changes

    def take(self, shared: tuple[Any, ...]) -> None:
        """The other end of `shared`."""
        self.saved, self.repeated, self.tails, self.changes = shared
        self.since = 0

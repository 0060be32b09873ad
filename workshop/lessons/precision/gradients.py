"""How large the gradients of a real training step are, from a checkpoint and real pictures.

    found = look(prefix, epoch)

Computed in float32, where none is lost, and counted by powers of two: so one can ask of any format,
and of any loss scale, which of them it would keep. Two kinds are counted apart: those that flow
back through the network, and those of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rn50lib import launch
from rn50lib.config import Experiment
from rn50lib.tools.predict import trained_as
from workshop.lessons.precision.formats import Format
from workshop.worker import ask

LOWEST, HIGHEST = -80, 40  # powers of two that are counted; what lies outside goes to the ends
FLOWING, WEIGHTS = "flowing back", "of the weights"


@dataclass(frozen=True)
class Gradients:
    """Counts of one kind of gradient: `counts[i]` of those from 2^(LOWEST + i) to the next power,
    and `zeros`, which are zero in float32 already."""

    kind: str
    counts: np.ndarray
    zeros: int

    @property
    def total(self) -> int:
        """All that are not zero."""
        return int(self.counts.sum())

    @property
    def powers(self) -> np.ndarray:
        """The power of two at which each count begins."""
        return LOWEST + np.arange(len(self.counts))

    def between(self, low: float, high: float) -> float:
        """The share, 0 to 1, from 2^low up to 2^high."""
        inside = (self.powers >= low) & (self.powers < high)
        return float(self.counts[inside].sum() / max(1, self.total))

    def vanish(self, to: Format, scale: int = 0) -> float:
        """The share that becomes zero in a format after a loss scale of 2^scale: less than half of
        its smallest number."""
        return self.between(-np.inf, to.tiny - 1 - scale)

    def blurred(self, to: Format, scale: int = 0) -> float:
        """The share that is kept with fewer bits than the format has: its subnormal numbers."""
        return self.between(to.tiny - 1 - scale, to.lowest - scale)

    def overflow(self, to: Format, scale: int = 0) -> float:
        """The share that becomes infinite."""
        return self.between(to.highest + 1 - scale, np.inf)

    @property
    def largest(self) -> int:
        """The power of two below the largest one."""
        return int(self.powers[np.flatnonzero(self.counts)[-1]])


@dataclass(frozen=True)
class StepGradients:
    """What one step's gradients are, and the experiment that it belongs to."""

    kinds: tuple[Gradients, Gradients]
    experiment: Experiment
    loss: float


def look(prefix: str | Path, epoch: int) -> StepGradients:
    """The gradients of one training step in float32 after `epoch` epochs of a run.

    Raises UserError when the checkpoint or its data cannot be used.
    """
    config = trained_as(prefix, epoch)
    found = ask(
        "workshop.lessons.precision.worker:gradients", launch.rank_environment(config),
        "a training step in float32", prefix=str(prefix), epoch=epoch,
    )  # fmt: skip
    flowing, of_weights = (
        Gradients(name, np.array(counts), zeros) for name, (counts, zeros) in found["kinds"].items()
    )
    return StepGradients((flowing, of_weights), config, found["loss"])


def count(values: np.ndarray) -> tuple[np.ndarray, int]:
    """(counts by power of two, zeros) of an array of float32."""
    size = np.abs(values[values != 0])
    power = np.clip(np.frexp(size)[1] - 1, LOWEST, HIGHEST)
    counts = np.bincount(power - LOWEST, minlength=HIGHEST - LOWEST + 1)
    return counts, int(values.size - size.size)

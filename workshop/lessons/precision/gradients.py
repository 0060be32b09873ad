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

from rn50 import launch
from rn50.predict import trained_as
from rn50lib.config import TrainConfig
from workshop.worker import ask

LOWEST, HIGHEST = -80, 40  # powers of two that are counted; what lies outside goes to the ends
FLOWING, WEIGHTS = "flowing back", "of the weights"


@dataclass(frozen=True)
class Format:
    """A binary format with a sign, `exponent` bits and `mantissa` bits. The largest exponent is
    kept for infinity and NaN, as IEEE 754 has it."""

    name: str
    exponent: int
    mantissa: int

    @property
    def highest(self) -> int:
        """The exponent of the largest number: it lies below 2^(highest + 1)."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def lowest(self) -> int:
        """The exponent of the smallest number that has all bits of its mantissa."""
        return 1 - self.highest

    @property
    def tiny(self) -> int:
        """The exponent of the smallest number above zero, one bit of mantissa left."""
        return self.lowest - self.mantissa


BFLOAT16 = Format("bfloat16", 8, 7)
FLOAT16 = Format("float16", 5, 10)
FORMATS = {item.name: item for item in (BFLOAT16, FLOAT16)}


@dataclass(frozen=True)
class Gradients:
    """Counts of one kind of gradient: `counts[i]` of those from 2^(LOWEST + i) to the next power;
    what is zero in float32 already is not counted."""

    kind: str
    counts: np.ndarray

    @property
    def powers(self) -> np.ndarray:
        """The power of two at which each count begins."""
        return LOWEST + np.arange(len(self.counts))

    def vanish(self, to: Format, scale: int = 0) -> float:
        """The share that becomes zero in a format after a loss scale of 2^scale: less than half of
        its smallest number."""
        return self._share(self.powers + scale < to.tiny - 1)

    def overflow(self, to: Format, scale: int = 0) -> float:
        """The share that becomes infinite."""
        return self._share(self.powers + scale > to.highest)

    def _share(self, chosen: np.ndarray) -> float:
        return float(self.counts[chosen].sum() / max(1, self.counts.sum()))


@dataclass(frozen=True)
class StepGradients:
    """What one step's gradients are, and the experiment that it belongs to."""

    kinds: tuple[Gradients, Gradients]
    experiment: TrainConfig
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
        Gradients(name, np.array(counts)) for name, counts in found["kinds"].items()
    )
    return StepGradients((flowing, of_weights), config, found["loss"])


def count(values: np.ndarray) -> np.ndarray:
    """How many of an array of float32 have which power of two, zeros left out."""
    power = np.frexp(values[values != 0])[1] - 1
    return np.bincount(np.clip(power, LOWEST, HIGHEST) - LOWEST, minlength=HIGHEST - LOWEST + 1)

"""The memory that training steps take, by precision and batch: predicted, and measured.

    found = measure(experiment, batches=(4, 12), dtypes=("float32", "bfloat16"))

On a CPU each point is a process of its own, whose largest resident memory the kernel notes; on a
GPU PyTorch's allocator knows the most that was allocated at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rn50 import launch
from rn50lib import memory
from rn50lib.config import TrainConfig
from rn50lib.resnet import Network
from workshop import session
from workshop.lessons.figures import stacked
from workshop.worker import ask, pack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# a block that is freed goes back at once: what the allocator keeps for later is no need of the step
GIVE_BACK = "glibc.malloc.mmap_threshold=65536"


@dataclass(frozen=True)
class Peaks:
    """The most memory in bytes by (dtype, batch), and the experiment it was measured with."""

    bytes: dict[tuple[str, int], int]
    experiment: TrainConfig

    @property
    def dtypes(self) -> list[str]:
        return list(dict.fromkeys(dtype for dtype, _ in self.bytes))

    @property
    def batches(self) -> list[int]:
        return sorted({batch for _, batch in self.bytes})

    def per_image(self, dtype: str) -> float:
        """Bytes that one more image takes: what every batch needs drops out of the difference."""
        few, many = self.batches[0], self.batches[-1]
        return (self.bytes[dtype, many] - self.bytes[dtype, few]) / (many - few)

    def predicted_per_image(self, dtype: str) -> float:
        """The same by `rn50lib.memory`, without the allowance for scratch."""
        net, size = self.experiment.to_network(), self.experiment.image_shape
        none, one = (memory.predict(net, size, batch, dtype) for batch in (0, 1))
        return one.activations + one.images - none.activations - none.images


def measure(given: Mapping[str, Any], batches: Sequence[int], dtypes: Sequence[str]) -> Peaks:
    """Take a training step on random images at each point; the notebook's profile holds.

    Raises UserError when the process that measures fails.
    """
    config = session.resolve(given, loader="synthetic", no_metrics=True, batch_size=batches[0], n=1)
    points = [(dtype, batch) for dtype in dtypes for batch in batches]
    env = launch.rank_environment(config) | {"GLIBC_TUNABLES": GIVE_BACK}
    found = ask(
        "workshop.lessons.precision.worker:memory", env, "steps at two batch sizes",
        config=pack(config), points=points,
    )  # fmt: skip
    return Peaks(dict(zip(points, found, strict=True)), config)


def parts(
    net: Network, size: int, points: Sequence[tuple[str, int]], capacity: float
) -> tuple[Figure, str]:
    """What a step needs by `rn50lib.memory`: a stacked bar per (dtype, batch), and a line at
    `capacity` bytes."""
    found = {point: memory.predict(net, size, point[1], point[0]) for point in points}
    bars = {
        f"{dtype}, batch {batch}": {name: value / 1e9 for name, value in asdict(m).items()}
        for (dtype, batch), m in found.items()
    }
    told = [
        f"{dtype} with {batch}: {m.total / 1e9:.1f} GB ({100 * m.activations / m.total:.0f} %"
        " activations)"
        for (dtype, batch), m in found.items()
    ]
    title = f"A training step of {net.name} at {size} pixels, by part"
    return stacked(bars, "GB", title, capacity / 1e9), "; ".join(told) + "."

"""The memory that real training steps take, by precision and batch.

    found = measure(experiment, batches=(4, 12), dtypes=("float32", "bfloat16"))

On a CPU each point is a process of its own, whose largest resident memory the kernel notes; on a
GPU PyTorch's allocator knows the most that was allocated at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rn50lib import launch, memory
from rn50lib.config import Experiment, resolve, to_json
from rn50lib.hardware import machine
from workshop import measuring, session

# a block that is freed goes back at once: what the allocator keeps for later is no need of the step
GIVE_BACK = "glibc.malloc.mmap_threshold=65536"


@dataclass(frozen=True)
class Peaks:
    """The most memory in bytes by (dtype, batch), and the experiment it was measured with."""

    bytes: dict[tuple[str, int], int]
    experiment: Experiment

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


def measure(experiment: Experiment, batches: Sequence[int], dtypes: Sequence[str]) -> Peaks:
    """Take a training step on random images at each point; the notebook's profile holds.

    Raises UserError when the process that measures fails.
    """
    asked = replace(experiment, loader="synthetic", no_metrics=True, batch_size=batches[0], n=1)
    here = session.current()
    if here is not None and asked.profile == "auto":
        asked = replace(asked, profile=here.profile)
    done = resolve(asked, machine(), asked.num_classes or 1000).experiment
    points = [(dtype, batch) for dtype in dtypes for batch in batches]
    env = launch.rank_environment(done) | {"GLIBC_TUNABLES": GIVE_BACK}
    words = [",".join(f"{dtype}:{batch}" for dtype, batch in points), to_json(done)]
    found = measuring.ask(
        "workshop.lessons.precision.worker.memory", words, env, "steps at two batch sizes"
    )
    return Peaks(dict(zip(points, found, strict=True)), done)

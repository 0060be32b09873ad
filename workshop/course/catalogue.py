"""The course as data: its notebooks, their minutes and budgets, and the question each one asks.

A lesson exists when its master stands in `notebooks/source`; adding one is a master, its line
here and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rn50lib.errors import UserError

KERNEL_START_S = 120.0  # what a kernel may take to start, before a notebook's own time begins
FLOOR_S = 90.0  # no time limit is shorter
CPU_S = 300.0  # what Run All may take under profile cpu


@dataclass(frozen=True)
class Lesson:
    """One notebook. `minutes` is a learner's time, `ci_seconds` the budget under profile ci;
    `topic` is the part of a step that the lesson looks at, `question` what it answers."""

    number: str
    name: str  # the file's name without its ending
    short: str  # for the line of links and the map
    minutes: int
    ci_seconds: int
    topic: str
    question: str


COURSE = (
    Lesson("00", "00_start_here", "Start here", 5, 15,
           "machine", "What does this machine have?"),
    Lesson("01", "01_dataset_preparation", "Data", 30, 60,
           "input", "How does a model read a million JPEGs?"),
    Lesson("02", "02_single_gpu", "One GPU", 40, 90,
           "compute", "What happens in a training step?"),
    Lesson("03", "03_horovod", "Horovod", 45, 120,
           "communication", "How do many workers train one model?"),
    Lesson("04", "04_tfrecord", "TFRecord", 35, 60,
           "input", "Can the input keep up?"),
    Lesson("05", "05_dali", "DALI", 40, 60,
           "input", "Who decodes the pictures?"),
    Lesson("06", "06_mixed_precision", "Mixed precision", 40, 90,
           "compute", "How few bits are enough?"),
    Lesson("07", "07_inference", "Inference", 25, 60,
           "latency", "How fast is one answer?"),
    Lesson("08", "08_benchmark_and_scaling", "Scaling", 35, 90,
           "everything", "What will more hardware bring?"),
)  # fmt: skip


def lesson(number: str) -> Lesson:
    """The lesson of a number such as "02". Raises UserError for any other text."""
    for item in COURSE:
        if item.number == number:
            return item
    known = ", ".join(item.number for item in COURSE)
    raise UserError(f"there is no notebook {number!r} in the course: the numbers are {known}")


def existing(root: Path) -> tuple[Lesson, ...]:
    """The lessons that the checkout `root` has, in order."""
    return tuple(x for x in COURSE if (root / "notebooks" / "source" / f"{x.name}.py").exists())


def exercise_file(root: Path | None, notebook: str) -> str | None:
    """The file name of the exercise notebook "ex03", None where the checkout has none."""
    found = sorted((root / "exercises").glob(f"{notebook}_*.ipynb")) if root else []
    return next((path.name for path in found if ".changed-" not in path.name), None)


def neighbours(item: Lesson, root: Path) -> tuple[Lesson | None, Lesson | None]:
    """The lessons before and after `item` among those that exist."""
    there = list(existing(root))
    at = there.index(item)
    return (there[at - 1] if at else None), (there[at + 1] if at + 1 < len(there) else None)


def time_limit(budget: float | None, profile: str) -> float:
    """Seconds after which a notebook is stopped, its kernel's start not counted.

    Three times the budget under profile ci, but never under FLOOR_S: a busy machine must not fail
    the shortest notebook, and one that hangs is caught either way. Elsewhere three times what Run
    All may take on a CPU.
    """
    return max(FLOOR_S, 3 * (budget or CPU_S)) if profile == "ci" else 3 * CPU_S

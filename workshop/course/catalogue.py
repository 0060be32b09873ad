"""The course as data: its notebooks, their minutes and time budgets, and the question of each.

A lesson exists if its master is in `notebooks/source`: to add one, write the master and its line
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rn50lib.errors import UserError


@dataclass(frozen=True)
class Lesson:
    """One notebook: a learner's minutes, the budget under profile ci, its topic and question."""

    number: str
    name: str  # of the file, without .ipynb
    short: str  # for the line of links and the map
    minutes: int
    ci_seconds: int
    topic: str
    question: str


COURSE = (
    Lesson("00", "00_start_here", "Start here", 10, 15,
           "overview", "Why does training need so much computing power?"),
    Lesson("01", "01_dataset_preparation", "Data", 30, 60,
           "input", "How does a model read a million JPEGs?"),
    Lesson("02", "02_single_gpu", "One GPU", 55, 90,
           "compute", "What happens in a training step?"),
    Lesson("03", "03_horovod", "Horovod", 70, 120,
           "communication", "How do many workers train one model?"),
    Lesson("04", "04_tfrecord", "TFRecord", 65, 60,
           "input", "Can the input keep up?"),
    Lesson("05", "05_dali", "DALI", 60, 60,
           "input", "Who decodes the images?"),
    Lesson("06", "06_mixed_precision", "Mixed precision", 50, 90,
           "compute", "How few bits are enough?"),
    Lesson("07", "07_inference", "Inference", 45, 90,
           "latency", "How fast is one answer?"),
    Lesson("08", "08_benchmark_and_scaling", "Scaling", 45, 90,
           "everything", "How much faster are more GPUs?"),
)  # fmt: skip


def lesson(number: str) -> Lesson:
    """Return the lesson with a number such as "02". Raises UserError for any other text."""
    for item in COURSE:
        if item.number == number:
            return item
    known = ", ".join(item.number for item in COURSE)
    raise UserError(f"the course has no notebook {number!r}: the numbers are {known}")


def existing(root: Path) -> tuple[Lesson, ...]:
    """Return the lessons that the checkout `root` has, in order."""
    return tuple(x for x in COURSE if (root / "notebooks" / "source" / f"{x.name}.py").exists())

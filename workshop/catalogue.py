"""The course as data: its notebooks with their minutes and budgets, and the exercises.

A lesson exists if its master is in `notebooks/source`.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rn50 import installed
from rn50lib.errors import UserError

# --- notebooks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lesson:
    """One notebook, with a learner's minutes and the budget under profile ci."""

    number: str
    name: str  # of the file, without .ipynb
    short: str  # for the line of links
    minutes: int
    ci_seconds: int


COURSE = (
    Lesson("00", "00_start_here", "Start here", 30, 15),
    Lesson("01", "01_dataset_preparation", "Data", 60, 60),
    Lesson("02", "02_single_gpu", "One GPU", 90, 90),
    Lesson("03", "03_horovod", "Horovod and DDP", 120, 120),
    Lesson("04", "04_tfrecord", "TFRecord", 75, 60),
    Lesson("05", "05_dali", "DALI", 90, 90),
    Lesson("06", "06_mixed_precision", "Mixed precision", 100, 90),
    Lesson("07", "07_inference", "Inference", 75, 90),
    Lesson("08", "08_benchmark_and_scaling", "Scaling", 95, 90),
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


# --- exercises ------------------------------------------------------------------------------------

FILL, HUNT, PREDICT = "fill in", "find the bug", "predict, then measure"
TEST, TUNE = "write the test", "tune to a target"
PACKAGES = {
    "horovod": "Horovod",
    "nvidia.dali": "DALI",
    "onnxruntime": "ONNX Runtime",
    "tensorflow": "TensorFlow",
    "torch": "PyTorch",
}


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    `answer` is the name that the learner's cell defines; `goal` ends the sentence "You …".
    """

    name: str
    answer: str
    kind: str
    difficulty: str
    minutes: int
    goal: str
    function: bool = True  # whether the answer is a function, else a value
    needs: str = ""  # packages without which the check cannot run
    launches: bool = False  # whether the check starts processes, which have time limits

    @property
    def notebook(self) -> str:
        """Return the number of its notebook: "ex03"."""
        return self.name[:4]

    @property
    def check(self) -> Callable[[Any], str]:
        """Return the function that checks an answer: `checks/ex03.py:shard` for "ex03.shard"."""
        module = importlib.import_module(f"workshop.checks.{self.notebook}")
        function: Callable[[Any], str] = getattr(module, self.name[5:])
        return function

    @property
    def lacks(self) -> str:
        """Return the name of a package that it needs and that is missing here, or nothing."""
        missing = [package for package in self.needs.split() if not installed.has(package)]
        return PACKAGES[missing[0]] if missing else ""

    @property
    def hints(self) -> list[str]:
        """Return three hints, from a nudge to nearly the answer."""
        return read_hints()[self.name]


@cache
def read_hints() -> dict[str, list[str]]:
    """Return the hints of every exercise by its name, from `hints.md`."""
    text = (Path(__file__).parent / "checks" / "hints.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.M)[1:]  # name, numbered hints, name …
    return {
        name: [" ".join(hint.split()) for hint in re.split(r"^\d\. ", numbered, flags=re.M)[1:]]
        for name, numbered in zip(parts[::2], parts[1::2], strict=True)
    }


EXERCISES = (
    Exercise("ex01.frame", "frame", FILL, "medium", 12,
             "write the bytes of a RecordIO record, including one whose content contains the magic"
             " number"),
    Exercise("ex01.order", "slowdown", FILL, "medium", 12,
             "measure how much slower records are in random order, robustly"),
    Exercise("ex01.leak", "test_split", TEST, "medium", 12,
             "write a test that detects a leaky split"),
    Exercise("ex02.stride", "strides", FILL, "easy", 8,
             "turn ResNet v1 into v1.5 by moving the stride of a bottleneck"),
    Exercise("ex02.work", "extra_percent", PREDICT, "medium", 6,
             "predict the cost of moving the stride, then count it", function=False),
    Exercise("ex02.schedule", "schedule", FILL, "medium", 12,
             "write a learning-rate schedule with linear scaling, warm-up and decay"),
    Exercise("ex02.profile", "loader_ms", FILL, "medium", 12,
             "find the slow part of a data set with a profiler"),
    Exercise("ex02.tune", "settings", TUNE, "medium", 10,
             "tune learning rate and momentum to cross a valley in 60 steps", function=False),
    Exercise("ex03.shard", "shard", FILL, "medium", 10,
             "read different images on every rank, with the same number of steps"),
    Exercise("ex03.sums", "metric_sums", HUNT, "medium", 10,
             "find out why the validation accuracy of two ranks is wrong, and fix it",
             needs="torch", launches=True),
    Exercise("ex03.exposed", "exposed", FILL, "medium", 12,
             "read a trace and find how long a step waits for its gradients"),
    Exercise("ex03.recipe", "train", FILL, "hard", 20,
             "turn a script for one GPU into one for many, by recipe 1", needs="torch",
             launches=True),
    Exercise("ex04.index", "index", FILL, "easy", 8,
             "find where each record of a TFRecord shard starts, for DALI's index"),
    Exercise("ex04.hunt", "wrong_lines", HUNT, "hard", 15,
             "find eight bugs in a hastily parallelised script", function=False),
    Exercise("ex04.recipe", "read", FILL, "hard", 20,
             "read TFRecord files on many ranks with TensorFlow, by recipe 2",
             needs="tensorflow"),
    Exercise("ex05.headroom", "headroom", FILL, "medium", 12,
             "time the loader alone, the device alone and both, and find what limits training"),
    Exercise("ex05.exact", "valid", FILL, "medium", 10,
             "count every image once in a validation with padded batches"),
    Exercise("ex06.memory", "megabytes", PREDICT, "medium", 8,
             "predict the memory of a batch in float32 and in float16, then count it",
             function=False),
    Exercise("ex06.casts", "casts", FILL, "medium", 10,
             "count the conversions to 16 bits with the profiler, and avoid some", needs="torch"),
    Exercise("ex06.step", "train_step", HUNT, "hard", 14,
             "find out why a training step is too large, too small and infinite", needs="torch"),
    Exercise("ex06.layout", "strides", FILL, "medium", 8,
             "compute the strides of NCHW and NHWC, with channels padded"),
    Exercise("ex07.percentile", "percentile", FILL, "easy", 8,
             "compute the percentiles that response-time guarantees use"),
    Exercise("ex07.temperature", "temperature", FILL, "medium", 12,
             "fit the temperature that makes probabilities trustworthy", needs="torch"),
    Exercise("ex07.likeliest", "likeliest", HUNT, "medium", 12,
             "find out why a server's answer depends on the other requests, and fix it",
             needs="torch"),
    Exercise("ex08.rate", "rate", HUNT, "easy", 5,
             "find out why a benchmark reports too high a speed, and fix it"),
    Exercise("ex08.ring", "milliseconds", PREDICT, "medium", 10,
             "predict how long a ring all-reduce takes", function=False),
    Exercise("ex08.overlap", "efficiency", FILL, "medium", 15,
             "compute how large the buckets of an exchange should be"),
    Exercise("ex08.capstone", "train", TUNE, "hard", 60,
             "make a slow, wrong training script correct and at least 4 times as fast",
             needs="torch", launches=True),
)  # fmt: skip


def find(name: str) -> Exercise:
    """Return the exercise of a name such as "ex03.shard". Raises UserError for an unknown one."""
    found = {item.name: item for item in EXERCISES}
    if name not in found:
        near = difflib.get_close_matches(str(name), found, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(found)}"
        raise UserError(f"no exercise is called {name!r}: {hint}")
    return found[name]


def of_notebook(notebook: str) -> tuple[Exercise, ...]:
    """Return the exercises of "ex03", in order."""
    return tuple(item for item in EXERCISES if item.notebook == notebook)

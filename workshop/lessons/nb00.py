"""Notebook 00: the diagram of a training step, and what a training run costs."""

from __future__ import annotations

from pathlib import Path

from workshop import output
from workshop.checks.compare import Mistake
from workshop.lessons.choice import lesson_check

RUNS = ((50_000, 10, 300.0), (1000, 3, 7.0), (2400, 5, 500.0))  # images, epochs, images/s
READS = ((250.0, 80.0), (4000.0, 30.0), (7.0, 115.0))  # images/s, KB
STEP = Path(output.__file__).parent / "templates" / "step.svg"


def show_step() -> None:
    """Show the diagram of a training step; its text version is the drawing's `desc`."""
    svg = STEP.read_text(encoding="utf-8")
    output.show(svg, svg.partition('<desc id="step">')[2].partition("</desc>")[0])


def training_hours(images: float, epochs: float, rate: float) -> float:
    """Return the hours of `epochs` passes over `images` images at `rate` images per second."""
    return images * epochs / rate / 3600


HOURS_MISTAKES: tuple[Mistake, ...] = (
    (lambda images, epochs, rate: images * epochs / rate,
     "These are seconds.", "Divide by 3,600."),
    (lambda images, epochs, rate: images * epochs / rate / 60,
     "These are minutes.", "Divide by 60 again."),
    (lambda images, epochs, rate: images * 90 / rate / 3600,
     "It has 90 epochs, whatever `epochs` is.", "Use the argument."),
    (lambda images, epochs, rate: images / rate / 3600,
     "The epochs are missing.", "Each epoch uses all images once."),
    (lambda images, epochs, rate: images * epochs * rate / 3600,
     "A faster device would take longer.", "Divide by `rate`."),
    (lambda images, epochs, rate: images * epochs / rate // 3600,
     "The result is rounded.", "Return a fraction: no //, int or round."),
)  # fmt: skip


def megabytes_per_second(rate: float, kilobytes: float) -> float:
    """Return the MB/s of `rate` images per second of `kilobytes` KB each; 1 MB is 1,000 KB."""
    return rate * kilobytes / 1000


READING_MISTAKES: tuple[Mistake, ...] = (
    (lambda rate, kilobytes: rate * kilobytes, "These are KB/s.", "Divide by 1,000."),
    (lambda rate, kilobytes: rate * kilobytes / 1024,
     "Its MB have 1,024 KB.", "Here, 1 MB is 1,000 KB."),
    (lambda rate, kilobytes: 8 * rate * kilobytes / 1000,
     "These are megabits.", "Return bytes: leave out the 8."),
)  # fmt: skip


check = lesson_check(
    (training_hours, RUNS, HOURS_MISTAKES), (megabytes_per_second, READS, READING_MISTAKES)
)

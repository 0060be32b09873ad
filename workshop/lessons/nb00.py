"""Notebook 00: the hours of a training run."""

from __future__ import annotations

from workshop.checks.compare import Mistake
from workshop.lessons.choice import Function, choose_by_cases

RUNS = ((1_281_167, 90, 400.2), (2400, 5, 500.0))  # images, epochs, images/s


def training_hours(images: float, epochs: float, rate: float) -> float:
    """Return the hours of `epochs` passes over `images` images at `rate` images per second."""
    return images * epochs / rate / 3600


HOURS_MISTAKES: tuple[Mistake, ...] = (
    (lambda images, epochs, rate: images * epochs / rate,
     "These are seconds.", "Divide by 3,600."),
    (lambda images, epochs, rate: images / rate / 3600,
     "The epochs are missing.", "Each epoch uses all images once."),
    (lambda images, epochs, rate: images * epochs * rate / 3600,
     "A faster device would take longer.", "Divide by `rate`."),
)  # fmt: skip


def check_hours(yours: Function) -> Function:
    """Return a learner's `training_hours` if it is right, else the finished one."""
    return choose_by_cases("training_hours", yours, training_hours, RUNS, HOURS_MISTAKES, show=True)

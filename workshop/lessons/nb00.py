"""Notebook 00: the hours of a training run, and a fleet of cars as one more use of them."""

from __future__ import annotations

from collections.abc import Mapping

from workshop.checks.compare import Mistake
from workshop.expected import Expected
from workshop.lessons.choice import Function, choose_by_cases

IMAGENET = 1_281_167  # training images
FLEET = 365 * 100 * 8 * 30 * (2 * 60 * 60) / 1000  # images that the fleet keeps in a year
RUNS = ((IMAGENET, 90, 400.2), (2400, 5, 500.0))  # images, epochs, images/s


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


FLEET_HINTS = {  # what a wrong number of days is, by its factor to the right one
    24: "these are hours", 1 / 90: "the 90 epochs are missing",
    1000: "only one image in 1,000 is kept",
}  # fmt: skip


def check_fleet(days: float | None, results: Mapping[str, Expected]) -> None:
    """Print whether a learner's number of days on one V100 is right, and those of other GPUs."""
    keys = "published.v100.1gpu.fp16.ips", "published.v100.8gpu.fp16.ips", "h100.float16.ips"
    right, more, h100 = (training_hours(FLEET, 90, results[key].value) / 24 for key in keys)
    if days is None:
        print("Nothing entered yet. Replace `None` above, then run the cell again.")
    elif abs(days / right - 1) > 0.01:
        factor = days / right
        close = [hint for size, hint in FLEET_HINTS.items() if abs(factor / size - 1) < 0.01]
        print(f"{days:.4g} is {factor:.4g} times the right answer", *close, sep=": ")
    else:
        print(f"Right: a year of data is {FLEET / IMAGENET:.0f} times ImageNet. It takes")
        print(f"{days:.1f} days on a V100, {more:.1f} on eight (published),", end=" ")
        print(f"{h100:.1f} on one H100 (recorded).")

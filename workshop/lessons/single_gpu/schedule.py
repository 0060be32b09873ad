"""The learning rate's schedule with its controls, from `rn50lib.recipe`, for notebook 02."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50 import plot
from rn50lib.recipe import RECIPES, REFERENCE, Recipe, learning_rate
from workshop.lessons.figures import BLUE, GREY, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DATA = {"reference": ("ImageNet", 1_281_167), "roadsigns": ("the road signs", 2_400)}
DECAYS = {
    "as the recipe: at 1/3, 2/3 and 8/9": (1 / 3, 2 / 3, 8 / 9),
    "once, half-way": (1 / 2,),
    "never": (),
}


def schedule(
    preset: str, epochs: int, workers: int, batch: int, warm_up: float, decay: str, progress: float
) -> tuple[Figure, str]:
    """The learning rate over a run; `progress` is the epoch at which the function is asked."""
    from matplotlib.figure import Figure

    base = RECIPES[preset]
    steps = tuple(epochs * part for part in DECAYS[decay])
    recipe = replace(base, epochs=epochs, warmup_epochs=warm_up, lr_step_epochs=steps)
    total, progress = workers * batch, min(progress, epochs)
    peak = recipe.lr * total / recipe.lr_batch
    with plot.style():
        figure = Figure(figsize=(10.5, 3.7))
        whole, zoom = figure.subplots(1, 2)
        draw_schedule(whole, recipe, total, base, epochs)
        draw_schedule(zoom, recipe, total, base, min(epochs, max(1.0, 1.6 * warm_up)))
        asked = learning_rate(progress, total, recipe)
        whole.plot(
            progress, asked, marker="X", color=ORANGE, ms=10, ls="", zorder=5,
            label=f"asked: lr({progress:g}) = {asked:.4g}",
        )  # fmt: skip
        whole.set_title("The learning rate over the whole run")
        zoom.set_title("Its beginning: the warm-up")
        for axes in (whole, zoom):
            axes.set(xlabel="progress, epochs", ylabel="learning rate")
            top = max(line.get_ydata().max() for line in axes.lines)  # also of the dashed one
            axes.set_ylim(-0.04 * top, 1.36 * top)
        whole.legend(loc="upper right", fontsize=9)
    return figure, schedule_sentence(preset, recipe, total, workers, batch, peak)


def draw_schedule(axes: Axes, recipe: Recipe, total: int, base: Recipe, end: float) -> None:
    """The recipe's curve, and under it the preset as it stands in the library."""
    at = np.linspace(0, end * (1 - 1e-9), 1200)
    own = base.batch_size * (8 if base is REFERENCE else 1)
    there = [learning_rate(x, own, base) for x in at[at < base.epochs]]
    axes.plot(at[: len(there)], there, color=GREY, ls="--", lw=1.2, marker="",
              label=f"{base.name}, global batch {own:,}")  # fmt: skip
    here = [learning_rate(x, total, recipe) for x in at]
    axes.plot(at, here, color=BLUE, lw=2.2, marker="", label=f"yours, global batch {total:,}")


def schedule_sentence(
    preset: str, recipe: Recipe, total: int, workers: int, batch: int, peak: float
) -> str:
    name, images = DATA[preset]
    per_epoch = images // total
    if not per_epoch:
        return f"A global batch of {total:,} is more than the {images:,} images of {name}."
    warm = round(recipe.warmup_epochs * per_epoch)
    return (
        f"{workers} × {batch} = {total:,} images a step, so the peak is {recipe.lr:g} × {total:,} /"
        f" {recipe.lr_batch} = {peak:.4g}. On {name} an epoch has {per_epoch:,} steps, the warm-up"
        f" {warm:,} and the whole run {per_epoch * recipe.epochs:,}."
    )


def preset_values(preset: str) -> dict[str, Any]:
    """The settings of a preset, by the names of the controls."""
    base = RECIPES[preset]
    return {
        "epochs": base.epochs,
        "workers": 8 if base is REFERENCE else 1,
        "batch": base.batch_size,
        "warm_up": float(base.warmup_epochs),
        "decay": next(iter(DECAYS)),
        "progress": base.epochs / 3,
    }


def explore_schedule() -> None:
    """The schedule with its controls; choosing a preset moves the others to the preset's values."""
    import ipywidgets

    from workshop import output

    start = preset_values("reference")
    workers = [1, 2, 4, 8, 16, 32, 64]
    controls: dict[str, Any] = {
        "preset": ipywidgets.Dropdown(options=list(DATA)),
        "epochs": ipywidgets.IntSlider(start["epochs"], 3, 120),
        "workers": ipywidgets.SelectionSlider(options=workers, value=start["workers"]),
        "batch": ipywidgets.IntSlider(start["batch"], 8, 256, 8),
        "warm_up": ipywidgets.FloatSlider(start["warm_up"], min=0, max=10, step=0.5),
        "decay": ipywidgets.Dropdown(options=list(DECAYS)),
        "progress": ipywidgets.FloatSlider(start["progress"], min=0, max=120, step=0.5),
    }

    def alt(**values: Any) -> str:
        return "The learning rate over the epochs of a run: " + schedule(**values)[1]

    widgets = output.explore(schedule, alt, **controls)

    def follow(change: Any) -> None:
        for name, value in preset_values(change["new"]).items():
            widgets[name].value = value

    widgets["preset"].observe(follow, names="value")

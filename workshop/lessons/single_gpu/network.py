"""What notebook 02 says of the network and of the schedule, from `rn50lib.network` and
`rn50lib.recipe` alone: rows for tables, and two figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.network import Block, Conv, Layer, Network
from rn50lib.recipe import RECIPES, REFERENCE, Recipe, learning_rate
from rn50lib.tools import plot
from workshop.lessons.figures import BLUE, GREY, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# layers outside the stages, by the part that they belong to
STEM_AND_END = {"conv1": "stem", "bn1": "stem", "relu": "stem", "maxpool": "stem", "avgpool": "fc"}


def part_rows(net: Network, image_size: int) -> list[list[Any]]:
    """(part, blocks, pixels, channels, M multiply-adds, parameters) of stem, stages, classifier."""
    parts: dict[str, list[Layer]] = {}
    for layer in net.layers(image_size):
        name = layer.name.split(".")[0]
        parts.setdefault(STEM_AND_END.get(name, name), []).append(layer)
    return [
        [
            name.replace("layer", "stage "), sum(layer.kind == "add" for layer in layers),
            layers[-1].size, layers[-1].channels, sum(layer.macs for layer in layers) / 1e6,
            sum(layer.parameters for layer in layers),
        ]
        for name, layers in parts.items()
    ]  # fmt: skip


# --- the stride -----------------------------------------------------------------------------------


def first_downsampling(net: Network) -> Block:
    """The first block with a stride of 2."""
    return next(block for block in net.blocks() if any(conv.stride == 2 for conv in block.convs))


def stride_rows(net: Network, image_size: int) -> list[list[Any]]:
    """(version, convolution, stride, pixels in, pixels out, M multiply-adds, per cent of the
    positions of its input that it reads) of the first block that down-samples."""
    size = (net.stem.out_size(image_size) + 1) // 2  # stem, then the pool
    wanted = first_downsampling(net)
    for block in net.blocks():
        if block.name == wanted.name:
            break
        for conv in block.convs:
            size = conv.out_size(size)
    rows: list[list[Any]] = []
    for conv in wanted.convs:
        out = conv.out_size(size)
        macs = out**2 * conv.in_channels * conv.out_channels * conv.kernel**2
        read = 100 * float((pixels_read(conv, size) > 0).mean())
        name = f"{conv.name}, {conv.kernel}×{conv.kernel}"
        rows.append([net.version, name, conv.stride, size, out, macs / 1e6, read])
        size = out
    return rows


def pixels_read(conv: Conv, size: int) -> np.ndarray:
    """How many outputs of `conv` read each pixel of a (size, size) input, along both axes."""
    counts = np.zeros(size + 2 * conv.padding, int)
    for out in range(conv.out_size(size)):
        counts[out * conv.stride : out * conv.stride + conv.kernel] += 1
    line = counts[conv.padding : conv.padding + size]
    return np.outer(line, line)


def strides(networks: list[Network], size: int = 8) -> tuple[Figure, str]:
    """The corner of a feature map: what the convolution with the stride reads of it."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    told = []
    with plot.style():
        figure = Figure(figsize=(7.5, 3.3))
        for axes, net in zip(figure.subplots(1, len(networks)), networks, strict=True):
            conv = next(conv for conv in first_downsampling(net).convs if conv.stride == 2)
            read = pixels_read(conv, size) > 0
            shown = ListedColormap(("white", ORANGE))
            axes.pcolormesh(read[::-1], cmap=shown, vmin=0, vmax=1, edgecolor=GREY, lw=0.6)
            for row, column in np.argwhere(~read[::-1]):
                axes.plot(column + 0.5, row + 0.5, marker="x", color=GREY, ms=4)
            axes.set(aspect="equal", xticks=[], yticks=[])
            what = f"the {conv.kernel}×{conv.kernel} convolution with the stride"
            axes.set_title(f"{net.version}: read by its {conv.kernel}×{conv.kernel}", fontsize=11)
            told.append(f"in {net.version} {what} reads {100 * read.mean():.0f} % of its input")
    text = "; ".join(told) + "."
    return figure, text[0].upper() + text[1:]


# --- the schedule ---------------------------------------------------------------------------------

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
            axes.set_ylim(-0.04 * peak, 1.36 * peak)
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

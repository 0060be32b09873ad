"""Figures of notebook 02 that are computed from `rn50lib.network` and `rn50lib.recipe` alone.

Each function returns a matplotlib figure; where a figure has a finding, the sentence comes with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.network import Block, Conv, Layer, Network
from rn50lib.recipe import RECIPES, REFERENCE, Recipe, learning_rate
from rn50lib.tools import plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = plot.COLOURS[:3]
GREY, LIGHT = "#5b6b7a", "#e3e8ee"


@dataclass(frozen=True)
class Part:
    """A part of a network: stem, stage or classifier. `size` in pixels, `macs` per image."""

    name: str
    blocks: int
    size: int
    channels: int
    macs: int
    parameters: int

    @property
    def title(self) -> str:
        return self.name.replace("layer", "stage ")


def parts(net: Network, image_size: int) -> list[Part]:
    """Stem, stages and classifier, in order."""
    grouped: dict[str, list[Layer]] = {}
    names = {"conv1": "stem", "bn1": "stem", "relu": "stem", "maxpool": "stem", "avgpool": "fc"}
    for layer in net.layers(image_size):
        name = layer.name.split(".")[0]
        grouped.setdefault(names.get(name, name), []).append(layer)
    return [
        Part(
            name,
            sum(layer.kind == "add" for layer in layers),
            layers[-1].size,
            layers[-1].channels,
            sum(layer.macs for layer in layers),
            sum(layer.parameters for layer in layers),
        )
        for name, layers in grouped.items()
    ]


def outline(net: Network, image_size: int) -> tuple[Figure, str]:
    """The network from left to right: size of its feature maps, and where work and weights are."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    found = parts(net, image_size)
    with plot.style():
        figure = Figure(figsize=(10.5, 5.2))
        above, below = figure.subplots(2, 1, height_ratios=(3, 2))
        x, centres = 0.0, []
        for part, colour in zip(found, plot.COLOURS, strict=False):
            start = x
            for _ in range(max(1, part.blocks)):
                corner = (x, -part.size / 2)
                above.add_patch(Rectangle(corner, 0.8, part.size, color=colour, alpha=0.85))
                x += 1.0
            centres.append((start + x - 0.2) / 2)
            text = part_text(part)
            above.text(centres[-1], -image_size * 0.15, text, ha="center", va="top", fontsize=9)
            x += 1.4
        above.set(xlim=(-0.8, x - 0.6), ylim=(-image_size * 0.33, image_size * 0.14))
        above.axis("off")
        name = net.name.replace("resnet", "ResNet-")
        above.set_title(f"{name} {net.version} at {image_size} px: maps shrink, channels grow")
        shares(below, found, centres)
        below.set_xlim(above.get_xlim())
    work = max(found, key=lambda part: part.macs)
    weights = max(found, key=lambda part: part.parameters)
    return figure, (
        f"Most of the work is in {work.title}"
        f" ({100 * work.macs / net.macs(image_size):.0f} % of the multiply-adds),"
        f" most of the parameters in {weights.title}"
        f" ({100 * weights.parameters / net.num_parameters:.0f} %)."
    )


def part_text(part: Part) -> str:
    if part.name == "fc":
        return f"fc\n{part.channels:,} classes"
    what = f"{part.blocks} blocks" if part.blocks else "7×7 conv, pool"
    return f"{part.title}\n{what}\n{part.size} × {part.size} px\n{part.channels:,} channels"


def shares(axes: Axes, found: list[Part], centres: list[float]) -> None:
    """Bars with each part's share of multiply-adds and of parameters, in per cent."""
    counts = {
        "multiply-adds": ([part.macs for part in found], BLUE, ""),
        "parameters": ([part.parameters for part in found], ORANGE, "//"),
    }
    for k, (label, (values, colour, hatch)) in enumerate(counts.items()):
        percent = [100 * value / sum(values) for value in values]
        places = [centre + (k - 0.5) * 0.8 for centre in centres]
        bars = axes.bar(places, percent, 0.75, label=label, color=colour, hatch=hatch, ec="w")
        axes.bar_label(bars, [f"{value:.0f}" for value in percent], fontsize=8.5)
    axes.set(title="Where the work and the weights are", ylabel="share, per cent")
    axes.set_xticks(centres, [part.title for part in found])
    axes.grid(False)
    axes.margins(y=0.18)
    axes.legend(loc="upper left", ncols=2)


# -- the stride ----------------------------------------------------------------------------------


def first_downsampling(net: Network) -> tuple[Block, int]:
    """The first block with a stride of 2, and its number among the blocks."""
    for i, block in enumerate(net.blocks()):
        if any(conv.stride == 2 for conv in block.convs):
            return block, i
    raise ValueError(f"{net.name} has no block with a stride of 2")


def size_before(net: Network, wanted: Block, image_size: int) -> int:
    """Pixels of the feature map that goes into a block."""
    size = (net.stem.out_size(image_size) + 1) // 2  # stem, then the pool
    for block in net.blocks():
        if block.name == wanted.name:
            return size
        for conv in block.convs:
            size = conv.out_size(size)
    raise ValueError(f"{net.name} has no block {wanted.name}")


def pixels_read(conv: Conv, size: int) -> np.ndarray:
    """How many outputs of `conv` read each pixel of a (size, size) input, along both axes."""
    counts = np.zeros(size + 2 * conv.padding, int)
    for out in range(conv.out_size(size)):
        counts[out * conv.stride : out * conv.stride + conv.kernel] += 1
    line = counts[conv.padding : conv.padding + size]
    return np.outer(line, line)


def conv_macs(conv: Conv, size: int) -> int:
    """Multiply-adds of a convolution on an input of `size` pixels, per image."""
    return conv.out_size(size) ** 2 * conv.in_channels * conv.out_channels * conv.kernel**2


def bottlenecks(networks: list[Network], image_size: int) -> tuple[Figure, str]:
    """The first down-sampling block of each network: where the stride is, and what it reads."""
    from matplotlib.figure import Figure

    found, sentences = [], []
    for net in networks:
        block, _ = first_downsampling(net)
        size = size_before(net, block, image_size)
        found.append((net, block, size))
    with plot.style():
        figure = Figure(figsize=(10.5, 6.4))
        axes = figure.subplots(1, 2 * len(found), width_ratios=(2.1, 1.2) * len(found))
        for i, (net, block, size) in enumerate(found):
            left, right = axes[2 * i : 2 * i + 2]
            draw_block(left, block, size)
            left.set_title(f"{net.version}: block {block.name}")
            strided = next(conv for conv in block.convs if conv.stride == 2)
            read = pixels_read(strided, 8)
            draw_pixels(right, read, strided)
            sentences.append(
                f"in {net.version} the {strided.kernel}×{strided.kernel} convolution with the"
                f" stride reads {100 * (read > 0).mean():.0f} % of the positions of its input"
            )
    text = "; ".join(sentences) + "."
    return figure, text[0].upper() + text[1:]


PATH, SIDE = 3.4, 8.4  # where the two ways through a block run, left and right
GAP = 0.5


def draw_block(axes: Axes, block: Block, size: int) -> None:
    """A residual block from top to bottom; the convolution with the stride stands out."""
    axes.set(xlim=(0, 10), ylim=(0, 11))
    axes.axis("off")
    out = block.convs[-1]
    after = size
    texts = [(f"{size} × {size} px, {block.convs[0].in_channels} channels", 0.8, False)]
    for conv in block.convs:
        texts.append((conv_text(conv, after), 1.6, conv.stride > 1))
        after = conv.out_size(after)
    texts.append(("add the shortcut, ReLU", 0.8, False))
    texts.append((f"{after} × {after} px, {out.out_channels} channels", 0.8, False))
    top, middles = 10.9, []
    for i, (text, height, strided) in enumerate(texts):
        middles.append(top - height / 2)
        plain = "#cfe3f1" if 0 < i <= len(block.convs) else LIGHT
        box(axes, PATH, middles[-1], text, ORANGE if strided else plain, 6.4, height, strided)
        if i < len(texts) - 1:
            arrow(axes, (PATH, top - height), (PATH, top - height - GAP))
        top -= height + GAP
    if block.downsample:
        middle = (middles[0] + middles[-2]) / 2
        text = conv_text(block.downsample, size).replace(": ", ":\n").replace("px, ", "px\n")
        text = text.replace(" multiply", "\nmultiply")
        line: dict[str, Any] = {"color": GREY, "lw": 1.3, "marker": ""}
        axes.plot([PATH + 3.2, SIDE, SIDE], [middles[0], middles[0], middle + 1.6], **line)
        box(axes, SIDE, middle, text, "#cfe3f1", 3.1, 3.2)
        axes.plot([SIDE, SIDE], [middle - 1.6, middles[-2]], **line)
        arrow(axes, (SIDE, middles[-2]), (PATH + 3.2, middles[-2]))


def conv_text(conv: Conv, size: int) -> str:
    name = conv.name.rsplit(".", 1)[1]
    stride = f", stride {conv.stride}" if conv.stride > 1 else ""
    return (
        f"{name}: {conv.kernel}×{conv.kernel}{stride}\n"
        f"{size} → {conv.out_size(size)} px, {conv.in_channels} → {conv.out_channels}\n"
        f"{conv_macs(conv, size) / 1e6:.0f} M multiply-adds"
    )


def box(
    axes: Axes, x: float, y: float, text: str, colour: str, width: float, height: float,
    strong: bool = False,
) -> None:  # fmt: skip
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.2",
        facecolor=colour, edgecolor=GREY, lw=0.8,
    )  # fmt: skip
    axes.add_patch(shape)
    axes.text(
        x, y, text, ha="center", va="center", fontsize=8.5, linespacing=1.35,
        color="white" if strong else "black", fontweight="bold" if strong else "normal",
    )  # fmt: skip


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": GREY, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)


def draw_pixels(axes: Axes, read: np.ndarray, conv: Conv) -> None:
    """The corner of a feature map: pixels that are read are dark, the others crossed out."""
    from matplotlib.patches import Rectangle

    size = len(read)
    for row in range(size):
        for column in range(size):
            used = read[row, column] > 0
            axes.add_patch(
                Rectangle(
                    (column, size - 1 - row),
                    0.9,
                    0.9,
                    facecolor=ORANGE if used else "white",
                    edgecolor=GREY,
                    lw=0.6,
                )  # fmt: skip
            )
            if not used:
                axes.plot(column + 0.45, size - 0.55 - row, marker="x", color=GREY, ms=4)
    axes.set(xlim=(-0.3, size + 0.2), ylim=(-0.3, size + 0.2), aspect="equal")
    axes.axis("off")
    text = (
        f"what {conv.name.rsplit('.', 1)[1]} reads\nof its input:\n{100 * (read > 0).mean():.0f} %"
    )
    axes.text(size / 2, size + 0.5, text, ha="center", va="bottom", fontsize=9)


# -- the schedule --------------------------------------------------------------------------------

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
    total = workers * batch
    progress = min(progress, epochs)
    peak = recipe.lr * total / recipe.lr_batch
    with plot.style():
        figure = Figure(figsize=(10.5, 3.7))
        whole, zoom = figure.subplots(1, 2)
        draw_schedule(whole, recipe, total, base, epochs)
        whole.set(title="The learning rate over the whole run", xlabel="progress, epochs")
        end = min(epochs, max(1.0, 1.6 * warm_up))
        draw_schedule(zoom, recipe, total, base, end)
        zoom.set(title="Its beginning: the warm-up", xlabel="progress, epochs")
        asked = learning_rate(progress, total, recipe)
        whole.plot(
            progress, asked, marker="X", color=ORANGE, ms=10, ls="", zorder=5,
            label=f"asked: lr({progress:g}) = {asked:.4g}",
        )  # fmt: skip
        for axes in (whole, zoom):
            axes.set(ylabel="learning rate", ylim=(-0.04 * peak, 1.36 * peak))
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

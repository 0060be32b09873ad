"""Immediate checks of notebook 02: the learner's crops, training step, and train.py."""

from __future__ import annotations

import ast
import random
import re
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from workshop import ladder
from workshop.checks.alone import undefined
from workshop.checks.compare import NO_RETURN, Mistake, Wrong, refuse, returned, whole, wrong
from workshop.checks.engine import message
from workshop.checks.ramps import boxes, ramps
from workshop.lessons.choice import choose, lesson_check, sentence

WIDTH, HEIGHT, SIZE, BLUE = 240, 160, 32, 200  # of the known images, and of the crops
CROPS = 40  # so many that sides of right ones are close to 0.7 and to 1.0, too
FILES = ("left/a", "left/b", "right/a", "stop/a", "stop/b")  # of known images
GREY, SQUARE = 3, 4  # some photos are grey, and some have no room to the right
STRIPE = 16  # pixels
STEP_LR = 0.1
PARTS = re.compile(r"record_function\('(forward|backward|update)'")  # blocks of train.py
MODES = re.compile(r"\.(zero_grad|eval|train)\(")  # calls that may be outside of those blocks
CALLS = {".backward(": "backward", "optimizer.step(": "update"}  # that belong in those blocks
PLACE = "Draw left up to the width minus the side, and top up to the height minus the side."
UNKNOWN = "It does not know your notebook's names: write the lines, or import the name."
INDENT = "Indent `def __getitem__` by 4 spaces, its lines by 8, and those of your step by 16."


def photo(self: Any, i: int) -> tuple[torch.Tensor, int]:
    """Return a random square of image `i`, 3 x size x size from -1 to 1, and its label."""
    image = Image.open(self.files[i]).convert("RGB")
    side = random.uniform(0.7, 1.0) * min(image.size)
    left, top = (random.uniform(0, length - side) for length in image.size)
    box = (left, top, left + side, top + side)
    image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return pixels / 127.5 - 1, self.classes.index(self.files[i].parent.name)


def training_step(model: Any, optimizer: Any, images: Any, labels: Any) -> torch.Tensor:
    """Train on one batch; return the loss, without its graph."""
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def check_photo(photos: Any) -> Callable[..., Any]:
    own = photos.__getitem__
    return choose("__getitem__", own, photo, lambda: judge_photos(photos))


def at_most(part: float, whole: float) -> float:
    """Return the speed-up of a step of `whole` ms if `part` ms of it took no time."""
    return whole / (whole - part)


AT_MOST_MISTAKES: tuple[Mistake, ...] = (
    (lambda part, whole: whole / part,
     "This compares the step with the part.", "The rest remains: whole - part."),
    (lambda part, whole: part / whole,
     "This is the share of the part.", "Divide the whole by what remains without it."),
    (lambda part, whole: (whole - part) / whole,
     "This is the share that remains.", "Divide the whole by it."),
    (lambda part, whole: 100 * whole / (whole - part),
     "This is in percent.", "Twice as fast is 2: leave out the 100."),
    (lambda part, whole: part / (whole - part),
     "This is how much faster it gets.", "Twice as fast is 2, not 1: add 1."),
)  # fmt: skip


def scaled_lr(n_gpus: int, batch: int) -> float:
    """Return the recipe's learning rate, after the warm-up, for `batch` images on each GPU."""
    return 0.1 * n_gpus * batch / 256


LR_MISTAKES: tuple[Mistake, ...] = (
    (lambda n_gpus, batch: 0.1 * batch / 256,
     "The number of GPUs has no effect.", "The global batch is that of all GPUs."),
    (lambda n_gpus, batch: 0.1 * batch / n_gpus / 256,
     "More GPUs lower the rate.", "Each has `batch` images: multiply."),
    (lambda n_gpus, batch: 0.1 * 256 / (n_gpus * batch),
     "A larger batch lowers the rate.", "Turn the fraction over: twice the batch, twice the rate."),
    (lambda n_gpus, batch: 0.1 * n_gpus * batch,
     "This is 0.1 for each image.", "0.1 belongs to a global batch of 256: divide by it."),
    (lambda n_gpus, batch: 0.1 * n_gpus * batch / (8 * 208),
     "This is 0.1 for the published run.", "0.1 belongs to a global batch of 256: see `--lr`."),
    (lambda n_gpus, batch: 0.1 * n_gpus * batch / (8 * 256),
     "This is 0.1 for 256 images on each of 8 GPUs.", "256 is the global batch: leave out the 8."),
    (lambda n_gpus, batch: 0.1 * (n_gpus * batch / 256) ** 0.5,
     "This is a square root.", "Linear: twice the batch, twice the rate."),
    (lambda n_gpus, batch: 0.1,
     "This does not scale.", "0.1 belongs to a global batch of 256: see `--lr`."),
)  # fmt: skip


# --- one image ------------------------------------------------------------------------------------


def judge_photos(photos: Any) -> str:
    """Judge a class of images by its crops of known ones."""
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(FILES):
            file = Path(folder, f"{name}.jpg")
            file.parent.mkdir(exist_ok=True)
            width = HEIGHT if i == SQUARE else WIDTH
            image = Image.fromarray(ramps(width, HEIGHT, BLUE)) if i else striped()
            image.convert("L" if i == GREY else "RGB").save(file, quality=100, subsampling=0)
        made = photos(Path(folder), SIZE)
        items = [returned(made[2]), *(made[0] for _ in range(CROPS))]
        try:
            items.insert(1, made[GREY])
        except Exception as error:
            wrong(f"A grey image ends with {message(error)}.", 'Open it with .convert("RGB").')
        try:
            for _ in range(CROPS):
                made[SQUARE]
        except ValueError as error:  # Pillow's
            wrong(f"A crop of a square image ends with {message(error)}.", PLACE)
    refuse(
        (not isinstance(items[0], tuple | list) or len(items[0]) != 2,
         "An item must be two values.", "Return the pixels and the label."),
        (isinstance(items[0][0], int), "The label comes first.",
         "Return the pixels, then the label."),
    )  # fmt: skip
    labels = [whole(item[1], "the label") for item in items[:3]]
    pixels = [torch.as_tensor(item[0]) for item in items]
    for one in pixels[:2]:
        shape = tuple(one.shape)
        refuse(
            (shape != (3, SIZE, SIZE), f"The shape is {shape}; it must be (3, {SIZE}, {SIZE}).",
             "Resize to (self.size, self.size), convert to RGB, and put the channels first:"
             " permute(2, 0, 1)."),
            (not one.is_floating_point(), "The values are integers, as in the file.",
             "Scale them: divide by 127.5 and subtract 1."),
            (one.dtype != torch.float32, f"The values are {one.dtype}, and the weights float32.",
             "Divide the tensor, not NumPy's array, or call .float()."),
        )  # fmt: skip
    check_values(pixels[0])
    refuse((labels != [1, 2, 0], f"Images of the classes 1, 2 and 0 have the labels {labels}.",
            "The label is the position of the folder's name, self.files[i].parent.name, in"
            " self.classes."))  # fmt: skip
    levels = (torch.stack(pixels[2:]).numpy() + 1) * 127.5
    found = boxes(levels)
    check_boxes(found)
    image, wanted = striped(), []
    for left, top, width, height in found:
        box = (max(0, left), max(0, top), min(WIDTH, left + width), min(HEIGHT, top + height))
        wanted.append(np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box)))
    off = np.abs(levels - np.transpose(wanted, (0, 3, 1, 2)))
    refuse(
        (off[:, :2].max() > 2.5, f"A pixel differs from Pillow's by {off[:, :2].max():.0f} of 255.",
         "Resize the box with Image.Resampling.BILINEAR."),
        (np.median(off[:, 2].mean((1, 2))) > 1.5, "This is a different filter.",
         "Resize with Image.Resampling.BILINEAR; without it, Pillow takes BICUBIC."),
    )  # fmt: skip
    return f"{len(items)} crops of known images: pixels as Pillow's, squares, labels right."


def striped() -> Image.Image:
    """Return ramps with blue stripes, which each of Pillow's filters blurs differently."""
    image = ramps(WIDTH, HEIGHT)
    image[..., 2] = 127 + 60 * np.sin(2 * np.pi * image[..., 0] / STRIPE)
    return Image.fromarray(image)


def check_values(pixels: torch.Tensor) -> None:
    """Raise Wrong for a wrong order of axes or range of values."""
    blue, spread = float(pixels[2].mean()), float(pixels[2].std())
    down, right = (abs(float(pixels[0].diff(dim=axis).mean())) for axis in (0, 1))
    refuse(
        (down > right or spread > 0.1 * max(1, abs(blue)), "The axes are mixed up.",
         "Use permute(2, 0, 1): it keeps rows before columns; reshape and view do not move axes."),
        (abs(blue - (BLUE / 127.5 - 1)) > 0.004,
         f"A byte of {BLUE} became {blue:.3g}; it should be {BLUE / 127.5 - 1:.3f}.",
         "Divide by 127.5 and subtract 1."),
    )  # fmt: skip


def check_boxes(found: np.ndarray) -> None:
    """Raise Wrong unless crops are random squares with 0.7 to 1 times the shorter side."""
    sides = found[:, 2:] / HEIGHT
    low, high = sides.min(), sides.max()
    refuse(
        (low < 0, "Some crops are mirrored.", "The task has no mirroring: leave it out."),
        (np.abs(sides[:, 0] - sides[:, 1]).max() > 0.1,
         "The crops are not squares, so the images are distorted.",
         "Use the same side for width and height: (left, top, left + side, top + side)."),
        (not (0.66 < low < 0.8 and 0.9 < high < 1.04),
         f"The sides are {low:.2f} to {high:.2f} of the shorter side.",
         "Draw the side: random.uniform(0.7, 1.0) times min(image.size)."),
    )  # fmt: skip
    found = found[sides[:, 1] < 0.97]  # the others have no room up and down
    across, down = (found[:, :2] / ((WIDTH, HEIGHT) - found[:, 2:])).T  # 0 to 1 of the room
    reached = [(min(place), max(place)) for place in (across, down)]
    refuse(
        (any(least > 0.25 or most < 0.75 for least, most in reached),
         "The crops do not reach every part of the image.", PLACE),
        (min(np.ptp(across - down), np.ptp(across + down)) < 0.5,
         "The crops do not move freely in both directions.",
         f"{PLACE} Draw two random numbers."),
    )  # fmt: skip


# --- one step -------------------------------------------------------------------------------------


def without_zero_grad(model: Any, optimizer: Any, images: Any, labels: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss


STEP_MISTAKES: tuple[Mistake, ...] = (
    (without_zero_grad, "Every step adds its gradients to those of the steps before.",
     "Call optimizer.zero_grad() before loss.backward()."),
    (lambda model, optimizer, images, labels: F.cross_entropy(model(images), labels),
     "The loss is right, but the weights never change.",
     "Call loss.backward() and then optimizer.step(), with no zero_grad() between the two."),
    (lambda model, optimizer, images, labels: [training_step(model, optimizer, images, labels),
                                               F.cross_entropy(model(images), labels)][1],
     "This is the loss after the update.", "Return the one that you called backward() of."),
    (lambda model, *rest: training_step(nn.Sequential(model, nn.Softmax(1)), *rest),
     "The softmax is applied twice.", "F.cross_entropy expects the network's outputs as they are."),
)  # fmt: skip


def three_steps(function: Callable[..., Any]) -> tuple[list[Any], list[float], bool]:
    """Return three losses of a small network, then as numbers with the weights after them.

    The last value is False if the steps left the network in evaluation mode.
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model, images, labels = nn.Linear(6, 4), torch.randn(3, 5, 6), torch.randint(4, (3, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP_LR, momentum=0.9)
    losses = [function(model, optimizer, *batch) for batch in zip(images, labels, strict=True)]
    values = [*map(returned, losses), *model.weight.flatten(), *model.bias]
    return losses, [float(torch.as_tensor(value).detach()) for value in values], model.training


def judge_step(own: Callable[..., Any]) -> str:
    losses, got, training = three_steps(own)
    refuse((not training, "The model is in evaluation mode.",
            "Remove model.eval(): batch norm then uses the statistics of the batch."))  # fmt: skip
    right = three_steps(training_step)[1]
    if not close(got, right):
        refuse((np.allclose(got[:3], right[:3], rtol=1e-4),
                "Three losses are right, but the weights after them are not.",
                "Call optimizer.step() after loss.backward()."))  # fmt: skip
        for mistake, diagnosis, remedy in STEP_MISTAKES:
            refuse((close(got, three_steps(mistake)[1]), diagnosis, remedy))
        losses_are = f"Three losses are {shown(got)}; the reference has {shown(right)}."
        refuse((not np.isclose(got[0], right[0], rtol=1e-4),
                f"The first loss is wrong already. {losses_are}",
                "Before the step, take F.cross_entropy of the raw outputs, a mean."))  # fmt: skip
        wrong(f"The first loss is right, so the update is wrong. {losses_are}",
              "Zero the gradients, go backward, step, each once.")  # fmt: skip
    refuse(
        (not isinstance(losses[0], torch.Tensor),
         f"The loss is a {type(losses[0]).__name__}: .item() or float() makes Python wait for the"
         " GPU in every step.", "Use loss.detach(), a tensor that stays on the device."),
        (getattr(losses[0], "requires_grad", False),
         "The loss still holds its graph, and with it the activations.", "Return loss.detach()."),
    )  # fmt: skip
    return "Three steps of a small network: the losses and the weights of a reference."


def close(got: list[float], other: list[float]) -> bool:
    """Return True for the same losses and weights, up to rounding."""
    return np.allclose(got, other, rtol=1e-4, atol=1e-6)


def shown(numbers: list[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in numbers[:3])


check = lesson_check(
    (at_most, ((30.0, 100.0), (17.0, 53.0)), AT_MOST_MISTAKES),  # no part is half of the whole
    # not 8 first: an 8 in a formula could cancel it
    (scaled_lr, ((4, 96), (1, 32), (8, 208)), LR_MISTAKES),
    (training_step, judge_step),
    __getitem__=check_photo,
)


# --- the script -----------------------------------------------------------------------------------


def check_script(script: Path) -> str:
    """Check the parts that a learner has pasted into train.py; print what is wrong.

    Return "" if they are wrong, so that the finished script runs, else "1_single". A script that
    still has gaps, or is past rung 1, is left to `ladder.script`.
    """
    try:
        if ladder.has_gaps(script):
            print(f"○ train.py still has lines `{ladder.GAP}`: fill all four, and save the file.")
        elif not ladder.is_rung_1(script):
            print("○ train.py is past this notebook, so it is not checked here.")
        else:
            print(judge_script(script))
        return "1_single"
    except Wrong as error:
        print(f"✗ train.py: {error.diagnosis} {error.remedy}")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(script)]
        place = f" (line {lines[-1]})" if lines else ""
        hint = f" {UNKNOWN}" if type(error) is NameError else ""
        print(f"✗ train.py{place} ended with {sentence(message(error))}{hint}")
    print("Until it is right, the finished script is used.")
    return ""


def judge_script(script: Path) -> str:
    """Return a line about a script that is right, or that cannot be checked."""
    try:
        tree = ast.parse(script.read_bytes())
    except SyntaxError as error:
        wrong(f"Line {error.lineno}: {error.msg}.", INDENT)
    names: dict[str, Any] = {"__name__": "train", "device": torch.device("cpu")}
    try:
        exec(compile(tree, str(script), "exec"), names)  # `main` runs only as a script
    except SystemExit:  # argparse's, which reads the notebook's own arguments
        return "○ train.py: it exits outside of `main`, so it is not checked here."
    photos = [it for it in names.values() if isinstance(it, type) and issubclass(it, Dataset)
              and it.__module__ == "train"]  # fmt: skip
    if len(photos) != 1 or "main" not in names:
        return "○ train.py: it has no `main`, or not exactly one data set: not checked here."
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    pasted = [node.name for outer in functions for node in ast.walk(outer)
              if node in functions and node is not outer and (
                  node.name == outer.name == "__getitem__" or node.name == "training_step")
              ]  # fmt: skip
    refuse((pasted, f"`def {''.join(pasted[:1])}` is inside another function.",
            "Replace the gap with the lines below your `def`."))  # fmt: skip
    try:
        judge_photos(photos[0])
    except Wrong as error:
        refuse((error.diagnosis == NO_RETURN, "`__getitem__` returns nothing.",
                f"Its last line must be a `return`. {INDENT}"))  # fmt: skip
        raise
    unknown = undefined(script.read_text())
    refuse(
        (unknown == "loss", "No line sets `loss`, which `main` prints at the end.",
         "Call your loss `loss`."),
        (unknown, f"`main` uses `{unknown}`, which is not in train.py.", UNKNOWN),
    )  # fmt: skip
    try:
        judge_step(step_of(tree, names, script))
    except Wrong as error:
        refuse((error.diagnosis == NO_RETURN, "`loss` is None after your step.",
                "backward() and step() return nothing."))  # fmt: skip
        raise
    except NameError as error:
        name = str(error).split("'")[1]
        if name not in names["main"].__code__.co_varnames:
            raise
        return f"○ train.py: your crops are right. Your step uses `{name}` of `main`: not checked."
    return "✓ train.py: your crops and your step compute what the reference does."


def step_of(tree: ast.Module, names: dict[str, Any], script: Path) -> Callable[..., Any]:
    """Return the lines of the blocks forward, backward and update as one function.

    Lines such as `optimizer.zero_grad()` outside of the blocks, but in the body of the innermost
    loop around them, belong to the step, too.
    """
    nodes = list(ast.walk(tree))
    blocks = [node for node in nodes if isinstance(node, ast.With) and PARTS.search(head(node))]
    lines = [line for block in sorted(blocks, key=lambda it: it.lineno) for line in block.body]
    inside = {node for line in lines for node in ast.walk(line)}
    loops = [node for node in nodes if isinstance(node, ast.For | ast.While)
             and not set(blocks).isdisjoint(ast.walk(node))]  # fmt: skip
    loop = max(loops, key=lambda it: it.lineno, default=tree)
    modes = [node for node in ast.walk(loop) if isinstance(node, ast.Expr) and node not in inside
             and MODES.search(ast.unparse(node))]  # fmt: skip
    own, all_lines = "\n".join(map(ast.unparse, lines)), ast.unparse(tree)
    backward = re.search(r"(\w*)\.backward\(", own)
    outside = [call for call in CALLS if call in all_lines and call not in own]
    misplaced = [
        f"`{call})` is not in the block `{part}`." for call, part in CALLS.items() if call in own
        and not any(call in ast.unparse(it) for it in blocks if part in PARTS.findall(head(it)))
    ]  # fmt: skip
    refuse(
        (not lines, "The blocks forward, backward and update are missing.",
         "Keep `with record_function(...)`, and put your lines inside."),
        (any(isinstance(node, ast.Return) for node in inside),
         "A `return` ends `main` after one step.", "Leave it out: `main` reads `loss`."),
        (outside, f"`{''.join(outside[:1])})` is outside of `with record_function(...)`.", INDENT),
        (not backward, "Nothing computes gradients.", "Call backward() of your loss."),
        (misplaced, "".join(misplaced[:1]), "The trace times each block: move the line there."),
    )  # fmt: skip
    loss = (backward and backward[1]) or "loss"
    code = ast.parse("def step(model, optimizer, images, labels):\n"
                     f"    return getattr({loss}, 'detach', lambda: {loss})()")  # fmt: skip
    code.body[0].body[:0] = [*modes, *lines]  # type: ignore[attr-defined]
    exec(compile(code, str(script), "exec"), names)
    return names["step"]


def head(node: ast.With) -> str:
    return ", ".join(map(ast.unparse, node.items))

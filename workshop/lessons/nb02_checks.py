"""Immediate checks of notebook 02: the learner's crops, training step, and train.py."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from rn50 import launch
from workshop import ladder
from workshop.checks import recipes
from workshop.checks.compare import ENDLESS, Mistake, Wrong, refuse, returned, whole, wrong
from workshop.checks.engine import message
from workshop.checks.ramps import boxes, ramps
from workshop.lessons.choice import choose, in_folder, lesson_check, sentence

WIDTH, HEIGHT, SIZE, BLUE = 240, 160, 32, 200  # of the known images, and of the crops
CROPS = 40  # so many that sides of right ones are close to 0.7 and to 1.0, too
FILES = ("left/a", "left/b", "right/a", "stop/a", "stop/b")  # of known images
GREY, UPRIGHT = 3, 4  # some photos are grey, and some are taller than wide
STRIPE = 16  # pixels
STEP_LR = 0.1
PLACE = "Draw left up to the width minus the side, and top up to the height minus the side."
LIMIT_S = 120  # of train.py and the finished script
# ResNet-50 turns rounding into differences of up to 80% in its gradients, this network does not
RUN = """
import json, os, runpy, sys
import torch
from torch import nn
from rn50lib.torch import model

model.ResNet = lambda _: nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(192, 3))
_, folder, *scripts = sys.argv
flags = "--image-size 8 --batch-size 4 --steps 3 --warm-up 0 --workers 1 --lr 1".split()
results = []
for name, script in zip(("finished", "own"), scripts):
    weights, report = f"{folder}/{name}.pt", f"{folder}/{name}.json"
    sys.argv = [script, *flags, "--data", folder, "--save", weights, "--report", report]
    runpy.run_path(script, run_name="__main__")
    if not (os.path.exists(weights) and os.path.exists(report)):
        sys.exit("it ended without report and weights")
    loss = torch.tensor(json.load(open(report))["loss"])
    results.append(torch.load(weights) | {"loss": loss})
if results[0].keys() != results[1].keys():
    sys.exit("it trains a different network")
torch.save(results, f"{folder}/results")
"""
HINTS = {  # for errors of train.py
    "Indent|Syntax|Tab": "Indent `def __getitem__` by 4 spaces, its lines by 8, your step by 16.",
    "NameError|Unbound": "Define or import each name in train.py, too, and call your loss `loss`.",
    "NoneType": "Paste the lines below `def`, in `__getitem__` with `return`; step() returns None.",
    "mat1|mean should|4D|Byte|tuple": "`__getitem__` returns 3 x size x size floats and a number.",
    "it (ended|failed)|'loss'": "Leave the end of `main` as it was, and write no `return` there.",
}


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
            width = HEIGHT * 3 // 4 if i == UPRIGHT else WIDTH
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
                made[UPRIGHT]
        except ValueError as error:  # Pillow's
            wrong(f"A crop of an upright image ends with {message(error)}.",
                  f"{PLACE} The side depends on min(image.size).")  # fmt: skip
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
    return f"{len(items)} crops of known images: squares with Pillow's pixels and the right labels."


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
     "This is the loss after the update.", "Return the loss that you called backward() on."),
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
              "Call zero_grad(), backward() and step() once each.")  # fmt: skip
    refuse(
        (not isinstance(losses[0], torch.Tensor),
         f"The loss is a {type(losses[0]).__name__}: .item() or float() makes Python wait for the"
         " GPU in every step.", "Use loss.detach(), a tensor that stays on the device."),
        (getattr(losses[0], "requires_grad", False),
         "The loss still holds its graph, and with it the activations.", "Return loss.detach()."),
    )  # fmt: skip
    return "Three steps of a small network give the same losses and weights as the reference."


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
    __getitem__=lambda photos: choose(
        "__getitem__", photos.__getitem__, photo, lambda: judge_photos(photos)
    ),
)


# --- the script -----------------------------------------------------------------------------------


def check_script(script: Path) -> str:
    """Compare three steps of the learner's train.py with the finished script's; print the result.

    Return "" if they differ, so that the finished script runs, else "1_single". A script that
    still has gaps, or is past rung 1, is left to `ladder.script`.
    """
    if ladder.has_gaps(script):
        print(f"○ train.py still has lines `{ladder.GAP}`: fill all four, and save the file.")
    elif not ladder.is_rung_1(script):
        print("○ train.py is past this notebook, so it is not checked here.")
    else:
        try:
            judge_script(script)
        except Wrong as error:
            print(f"✗ train.py: {error.diagnosis} {error.remedy}".rstrip())
            print("Until it is right, the finished script is used.")
            return ""
        print("✓ train.py: three steps of a small network end like the finished script's.")
    return "1_single"


@in_folder
def judge_script(script: Path, folder: Path) -> None:
    """Raise Wrong unless three steps on plain images end as those of the finished script.

    All crops of a plain image are the same, so it does not matter how they are drawn.
    """
    for i, colour in enumerate(np.random.default_rng(0).integers(256, size=(12, 3)).tolist()):
        file = folder / "train" / "abc"[i % 3] / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (40 + i, 46), tuple(colour))
        image.convert("L" if i == GREY else "RGB").save(file, quality=100)
    words = map(str, [folder, ladder.finished("1_single"), script.resolve()])
    env = launch.with_library(dict(os.environ)) | {"CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [sys.executable, "-c", RUN, *words], cwd=script.parent, env=env, timeout=LIMIT_S,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        wrong(f"it was stopped after {LIMIT_S} s.", ENDLESS)
    if not (folder / "results").exists():
        error, place = recipes.script_error(done.stderr, script)
        hints = [hint for names, hint in HINTS.items() if re.search(names, error)]
        wrong(sentence(error), " ".join(filter(None, [place, *hints])))
    right, own = torch.load(folder / "results")
    seen = int(own["0.num_batches_tracked"])
    differ = [name for name in right
              if not torch.allclose(own[name], right[name], rtol=1e-4, atol=1e-6)]  # fmt: skip
    refuse(
        (seen != 3, f"three steps update batch norm's averages {seen} times.",
         "Call model(images) once in each step, without model.eval()."),
        ("0.running_mean" in differ, "its pixels differ from the finished script's.",
         "Paste the lines of your `__getitem__` again, and keep torch.manual_seed(0)."),
        (not own["0.bias"].any(), "its weights never change.",
         "Call backward() and then optimizer.step(), with no zero_grad() between the two."),
        (differ, f"after three steps, its loss or weights differ: the loss is {own['loss']:.4f},"
         f" the finished script's {right['loss']:.4f}.", "Call zero_grad(),"
         " backward() and step() once in each step, and paste the label's line again."),
    )  # fmt: skip

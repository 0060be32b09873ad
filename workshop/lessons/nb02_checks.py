"""Immediate checks of notebook 02: the learner's crops, training step, and train.py."""

from __future__ import annotations

import ast
import random
import re
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from workshop import ladder
from workshop.checks.compare import NO_RETURN, RETURN, Mistake, Wrong, known, refuse, wrong
from workshop.checks.engine import message
from workshop.checks.ramps import boxes, ramps
from workshop.lessons.choice import choose, choose_by_cases, sentence

WIDTH, HEIGHT, SIZE, BLUE = 240, 160, 32, 200  # of the known images, and of the crops
CROPS = 12
FILES, GREY = ("left/a", "left/b", "right/a", "stop/a"), 3  # of known images; some photos are grey
STEP_LR = 0.1
STEP_PARTS = ("forward", "backward", "update")  # blocks of train.py
MODES = re.compile(r"\.(zero_grad|eval|train)\(")  # calls that may be outside of those blocks
GIVEN = {"model", "optimizer", "images", "labels", "device"}  # to the step of the test
LOSS = re.compile(r"[\w.]*Loss\(\)(\.to\(device\))?")  # made in `main`, the same in every step
INDENT = "Indent `def __getitem__` by 4 spaces, its lines by 8, and those of your step by 16."
UNSCALED = {  # wrong ranges, and what BLUE becomes
    "0 to 255": BLUE, "0 to 510": 2 * BLUE, "0 to 1": BLUE / 255, "0 to 2": BLUE / 127.5,
    "-2 to 2": 2 * (BLUE / 127.5 - 1),
}  # fmt: skip


def photo(self: Any, i: int) -> tuple[torch.Tensor, int]:
    """Return a random square of image `i`, 3 x size x size from -1 to 1, and its label."""
    image = Image.open(self.files[i]).convert("RGB")
    side = random.uniform(0.7, 1.0) * min(image.size)
    left, top = (random.uniform(0, length - side) for length in image.size)
    box = (left, top, left + side, top + side)
    image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return pixels / 127.5 - 1, self.classes.index(self.files[i].parent.name)


def step(model: Any, optimizer: Any, images: Any, labels: Any) -> torch.Tensor:
    """Train on one batch; return the loss, without its graph."""
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def check_photo(photos: Any) -> Callable[..., Any]:
    own = photos.__getitem__
    return choose("__getitem__", own, photo, lambda: judge_photos(photos), show=True)


def check_step(own: Callable[..., Any]) -> Callable[..., Any]:
    """Check a training step on a small network, against steps of the finished one."""
    return choose("training_step", own, step, lambda: judge_step(own), show=True)


def most_gain(ms: Mapping[str, float], kind: str) -> float:
    """Return how many times as fast a step is if `kind` takes no time; `ms` has all kinds."""
    whole = sum(ms.values())
    return whole / (whole - ms[kind])


KINDS = {"convolution": 60.0, "pointwise": 30.0, "waiting": 10.0}  # ms of a step
GAIN_MISTAKES: tuple[Mistake, ...] = (
    (lambda ms, kind: sum(ms.values()) / ms[kind], "This is the whole step over the part.",
     "Divide by what remains."),
    (lambda ms, kind: 1 - ms[kind] / sum(ms.values()), "This is the share that remains.",
     "The speed-up is the old time over the new."),
    (lambda ms, kind: 1 + ms[kind] / sum(ms.values()), "This adds the share to 1.",
     "The speed-up is the old time over the new."),
    (lambda ms, kind: ms[kind] / sum(ms.values()), "This is the share of the kind.",
     "The speed-up is the old time over the new."),
    (lambda ms, kind: sum(ms.values()) - ms[kind], "These are the milliseconds that remain.",
     "Divide the old time by them."),
)  # fmt: skip


def check_gain(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a learner's `most_gain` if it is right, else the finished one."""
    cases = [(KINDS, "convolution"), (KINDS, "waiting")]
    right = "This is Amdahl's law: the rest of the step limits the gain."
    return choose_by_cases("most_gain", own, most_gain, cases, GAIN_MISTAKES, right, show=True)


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
            checked, said = judge_script(script)
            print(f"{'✓' if checked else '○'} train.py: {said}")
        return "1_single"
    except Wrong as error:
        print(f"✗ train.py: {error.diagnosis} {error.remedy}")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(script)]
        place = f" (line {lines[-1]})" if lines else ""
        print(f"✗ train.py{place} ended with {sentence(message(error))}")
    print("Until it is right, the finished script is used.")
    return ""


# --- one image ------------------------------------------------------------------------------------


def judge_photos(photos: Any) -> str:
    """Judge a class of images by its crops of known ones."""
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(FILES):
            file = Path(folder, f"{name}.jpg")
            file.parent.mkdir(exist_ok=True)
            image = Image.fromarray(ramps(WIDTH, HEIGHT, BLUE))
            if i == GREY:
                image = image.convert("L")
            image.save(file, quality=100, subsampling=0)
        return judge_photo(photos(Path(folder), SIZE))


def judge_photo(made: Any) -> str:
    items = [crop_of(made, i) for i in [2, GREY, *[0] * CROPS]]
    if items[0] is None:
        raise NotImplementedError
    refuse(
        (not isinstance(items[0], tuple | list) or len(items[0]) != 2,
         "An item must be two values.", "Return the pixels and the label."),
        (isinstance(items[0][0], int), "The label comes first.",
         "Return the pixels, then the label."),
    )  # fmt: skip
    pixels = [torch.as_tensor(item[0]) for item in items]
    check_pixels(pixels[0])
    label = items[0][1]
    refuse((isinstance(label, str), f"The label is {label!r}: a loss needs a number.",
            "Return the name's position in self.classes."))  # fmt: skip
    refuse(
        ([int(item[1]) for item in items[:3]] != [1, 2, 0],
         f"Images of the classes 1, 2 and 0 have the labels {[int(i[1]) for i in items[:3]]}.",
         "The label is the position of the folder's name, self.files[i].parent.name, in"
         " self.classes."),
    )  # fmt: skip
    levels = (torch.stack(pixels[2:]).float().numpy() + 1) * 127.5
    found = boxes(levels)
    check_boxes(found)
    image = Image.fromarray(ramps(WIDTH, HEIGHT, BLUE))
    for crop, (left, top, width, height) in zip(levels, found, strict=True):
        box = (max(0, left), max(0, top), min(WIDTH, left + width), min(HEIGHT, top + height))
        wanted = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box))
        off = np.abs(crop.transpose(1, 2, 0) - wanted).max()
        refuse((off > 6, f"A pixel differs from Pillow's by {off:.0f} of 255.",
                "Resize the box with Image.Resampling.BILINEAR."))  # fmt: skip
    return f"{len(items)} crops of known images: pixels as Pillow's, squares, labels right."


def crop_of(made: Any, i: int) -> Any:
    """Return an item. Raise Wrong if it fails for the grey image, or for its box."""
    try:
        item = made[i]
        shape = np.shape(item[0]) if isinstance(item, tuple) and i == GREY else (3, SIZE, SIZE)
    except NotImplementedError:
        raise
    except Exception as error:
        refuse(
            (isinstance(error, ValueError) and "box" in str(error),
             f"Pillow says: {error}.", "The side is at most the *shorter* side of the image; left"
             " goes up to its width minus the side, and top up to its height minus the side."),
            (i == GREY, f"A grey image ends with {type(error).__name__}: {error}.",
             'Open it with .convert("RGB").'),
        )  # fmt: skip
        raise
    refuse((len(shape) == 2 or 1 in shape, f"A grey image has the shape {tuple(shape)}.",
            'Open it with .convert("RGB").'))  # fmt: skip
    return item


def check_pixels(pixels: torch.Tensor) -> None:
    """Raise Wrong for a wrong shape, order of axes or range of values."""
    shape = tuple(pixels.shape)
    refuse(
        (shape == (SIZE, SIZE, 3), f"The shape is {shape}: PyTorch expects channels first.",
         "Move the last axis to the front: permute(2, 0, 1)."),
        (shape != (3, SIZE, SIZE), f"The shape is {shape}; it must be (3, {SIZE}, {SIZE}).",
         "Resize to (self.size, self.size), and put the channels first."),
        (not pixels.is_floating_point(), f"The values are {pixels.dtype}, not floating point.",
         "Divide them by 127.5 and subtract 1."),
        (pixels.dtype != torch.float32, f"The values are {pixels.dtype}, and the network's weights"
         " float32.", "Divide the tensor, not NumPy's array, or call .float()."),
    )  # fmt: skip
    blue, spread = float(pixels[2].mean()), float(pixels[2].std())
    refuse(
        *((abs(blue - value) < 0.02 * value and spread < 0.1 * value,
           f"The values go from {range_}, not from -1 to 1.",
           "Divide the bytes, 0 to 255, by 127.5 and subtract 1.")
          for range_, value in UNSCALED.items()),
        (spread > 0.1, "The axes are mixed up: a channel holds parts of all three.",
         "reshape and view do not move axes; permute(2, 0, 1) does."),
        (abs(blue - (BLUE / 127.5 - 1)) > 0.02,
         f"A byte of {BLUE} became {blue:.3g}; it should be {BLUE / 127.5 - 1:.3f}.",
         "Divide by 127.5 and subtract 1."),
    )  # fmt: skip
    down, right = (float(pixels[0].diff(dim=axis).mean()) for axis in (0, 1))
    refuse((abs(down) > abs(right), "Rows and columns have changed places.",
            "Use permute(2, 0, 1), which keeps rows before columns."))  # fmt: skip


def check_boxes(boxes: np.ndarray) -> None:
    """Raise Wrong unless crops are random squares with 0.7 to 1 times the shorter side."""
    sides, short = boxes[:, 2:], min(WIDTH, HEIGHT)
    refuse(
        (sides.max() < 4, "The side of a crop is 1 pixel or less.",
         "Multiply the factor by min(image.size)."),
        (np.any(np.abs(sides[:, 0] / sides[:, 1] - 1) > 0.1),
         "The crops are not squares, so the images are distorted.",
         "Use the same side for width and height: (left, top, left + side, top + side)."),
        (np.ptp(boxes, axis=0).max() < 2, "Every crop of an image is the same.",
         "Draw the side, left and top with random.uniform."),
        (sides.max() > 1.04 * short or sides.min() < 0.66 * short,
         f"The sides are {sides.min() / short:.2f} to {sides.max() / short:.2f} of the shorter"
         " side.", "Draw a factor from 0.7 to 1.0."),
        (np.ptp(sides[:, 0]) < 0.05 * short, "All crops have the same size.",
         "Draw the side too: 0.7 to 1.0 of the shorter side."),
        (np.ptp(boxes[:, :2] + sides / 2, axis=0).min() < 1,
         "The centre of the crops does not move in both directions.",
         "Draw left and top, each from 0 to the length minus the side."),
        (np.abs(boxes[:, 0] - boxes[:, 1]).max() < 2, "Left and top are always equal.",
         "Draw them one by one: left up to the width minus the side, top up to the height."),
    )  # fmt: skip


# --- one step -------------------------------------------------------------------------------------


def variant(
    calls: str = "zero_grad backward step", reduction: str = "mean", softmax: bool = False
) -> Callable[..., torch.Tensor]:
    """Return a step with different calls or a different loss."""

    def changed(model: Any, optimizer: Any, images: Any, labels: Any) -> torch.Tensor:
        outputs = model(images).softmax(1) if softmax else model(images)
        loss = F.cross_entropy(outputs, labels, reduction=reduction)
        for call in calls.split():
            getattr(loss if call == "backward" else optimizer, call)()
        return loss

    return changed


STEP_MISTAKES: tuple[Mistake, ...] = (
    (variant("backward step"), "Every step adds its gradients to those of the steps before.",
     "Call optimizer.zero_grad() before loss.backward()."),
    (variant(""), "The loss is right, but the weights never change.",
     "Call loss.backward() and then optimizer.step(), with no zero_grad() between the two."),
    (variant("step zero_grad backward"), "Every update uses the gradients of the batch before.",
     "Call optimizer.step() after loss.backward()."),
    (variant(reduction="sum"),
     "The loss is a sum over the batch: the update would grow with the batch.",
     "Use the mean, F.cross_entropy's default."),
    (variant(softmax=True), "The softmax is applied twice.",
     "F.cross_entropy expects the network's outputs as they are."),
)  # fmt: skip


def three_steps(function: Callable[..., Any]) -> tuple[list[Any], list[list[float]], bool, bool]:
    """Return three losses as a step returns them; as numbers with the weights; and if those moved.

    The network is small. The last value is False if the steps left it in evaluation mode.
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model, images, labels = nn.Linear(6, 4), torch.randn(3, 5, 6), torch.randint(4, (3, 5))
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP_LR, momentum=0.9)
    losses = [function(model, optimizer, *batch) for batch in zip(images, labels, strict=True)]
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    numbers = [] if losses[0] is None else [float(torch.as_tensor(x).detach()) for x in losses]
    moved = not torch.equal(before, model.weight)
    return losses, [numbers, weights.tolist()], moved, model.training


def judge_step(own: Callable[..., Any]) -> str:
    returned, got, moved, training = three_steps(own)
    if returned[0] is None and not moved:
        raise NotImplementedError
    refuse(
        (returned[0] is None, "Your function returns nothing.", "Return the loss."),
        (not training, "The model is in evaluation mode.",
         "Remove model.eval(): in training, batch norm uses the statistics of the batch."),
    )  # fmt: skip
    right = three_steps(step)[1]
    if not close(got, right):
        known(got, [(three_steps(it)[1], a, b) for it, a, b in STEP_MISTAKES], close)
        wrong(f"Three losses are {shown(got[0])}; the reference has {shown(right[0])}.",
              "Compute the loss, zero the gradients, go backward, step.")  # fmt: skip
    refuse(
        (not isinstance(returned[0], torch.Tensor),
         f"The loss is a {type(returned[0]).__name__}: .item() or float() makes Python wait for the"
         " GPU in every step.", "Return loss.detach(), a tensor that stays on the device."),
        (isinstance(returned[0], torch.Tensor) and returned[0].requires_grad,
         "The loss still holds its graph, and with it the activations.", "Return loss.detach()."),
    )  # fmt: skip
    return "Three steps of a small network: the losses and the weights of a reference."


def close(got: list[list[float]], other: list[list[float]]) -> bool:
    """Return True for the same losses and weights, up to rounding."""
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(got, other, strict=True))


def shown(losses: list[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)


# --- the script -----------------------------------------------------------------------------------


def judge_script(script: Path) -> tuple[bool, str]:
    """Return whether a script is right, or False if it cannot be checked; and a sentence."""
    try:
        tree = ast.parse(script.read_bytes())
    except SyntaxError as error:
        wrong(f"Line {error.lineno}: {error.msg}.", INDENT)
    names: dict[str, Any] = {"__name__": "train"}
    try:
        exec(compile(tree, str(script), "exec"), names)  # `main` runs only as a script
    except SystemExit:  # argparse's, which reads the notebook's own arguments
        return False, "it exits outside of `main`, so it is not checked here."
    own = [it for it in names.values() if isinstance(it, type) and issubclass(it, Dataset)]
    made = [it for it in own if it.__module__ == "train"]
    photos = names.get("Photos", made[0] if len(made) == 1 else None)
    if photos is None:
        return False, "it has no class `Photos`, so it is not checked here."
    refuse(
        ("__getitem__" not in vars(photos), f"`{photos.__name__}` has no `__getitem__`.", INDENT),
        (is_pasted_twice(tree), "One `def __getitem__` is inside another.", "Paste its lines."),
    )
    try:
        judge_photos(photos)
    except NotImplementedError:
        wrong(f"`__getitem__`: {NO_RETURN}", RETURN)
    lines = lines_of_step(tree)
    taken, unknown = taken_from_main(tree, lines)
    if unknown:
        said = f"Your step uses `{unknown[0]}` of `main`: it is not checked here."
        return False, f"your crops are right. {said}"
    try:
        judge_step(step_of(tree, [*taken, *lines], names, script))
    except NotImplementedError:
        wrong("The weights never change.", "Call loss.backward() and then optimizer.step().")
    return True, "your crops and your step compute what the reference does."


def is_pasted_twice(tree: ast.Module) -> bool:
    """Return True if a `def __getitem__` directly contains another."""
    defined = [node for node in ast.walk(tree) if is_getitem(node)]
    return any(is_getitem(inner) for node in defined for inner in ast.iter_child_nodes(node))


def is_getitem(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__getitem__"


def names_in(lines: Iterable[ast.AST], context: type) -> list[str]:
    """Return the names that lines read (ast.Load) or set (ast.Store), each as often as it is."""
    nodes = [node for line in lines for node in ast.walk(line)]
    return [it.id for it in nodes if isinstance(it, ast.Name) and isinstance(it.ctx, context)]


def lines_of_step(tree: ast.Module) -> list[ast.stmt]:
    """Return the lines of a script's blocks forward, backward and update.

    Lines such as `optimizer.zero_grad()` elsewhere in the body of the loop belong to the step, too.
    """
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.While):
            lines = [line for node in loop.body for line in block_of(node)]
            if not all(is_mode(line) for line in lines):
                return lines
    withs = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
    return [line for node in withs if is_part(node) for line in node.body]


def block_of(node: ast.stmt) -> list[ast.stmt]:
    """Return the lines that a statement of the loop adds to the step."""
    if isinstance(node, ast.With):
        inner = [line for it in node.body for line in block_of(it)]
        return node.body if is_part(node) else inner
    return [node] if is_mode(node) else []


def is_part(node: ast.With) -> bool:
    calls = [it.context_expr for it in node.items if isinstance(it.context_expr, ast.Call)]
    named = [call for call in calls if call.args and "record_function" in ast.unparse(call.func)]
    return any(ast.unparse(call.args[0]).strip("'") in STEP_PARTS for call in named)


def is_mode(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and bool(MODES.search(ast.unparse(node)))


def taken_from_main(
    tree: ast.Module, lines: Sequence[ast.stmt]
) -> tuple[list[ast.Assign], list[str]]:
    """Return the lines of `main` that make the loss of a step, and other names that it uses.

    Only a line such as `criterion = torch.nn.CrossEntropyLoss()` can run again in every step.
    """
    inside = {node for line in lines for node in ast.walk(line)}
    mains = [it for it in tree.body if isinstance(it, ast.FunctionDef) and it.name == "main"]
    outside = [node for main in mains for node in ast.walk(main) if node not in inside]
    scopes = [it.target for it in outside if isinstance(it, ast.comprehension)]
    hidden = {node for target in scopes for node in ast.walk(target)}
    stored = [it.id for it in outside if isinstance(it, ast.Name)
              and isinstance(it.ctx, ast.Store) and it not in hidden]  # fmt: skip
    stored += [it.name for it in outside if isinstance(it, ast.FunctionDef | ast.ClassDef)]
    stored += [(it.asname or it.name) for it in outside if isinstance(it, ast.alias)]
    needed = {it.id for it in inside if isinstance(it, ast.Name)} - GIVEN - {"loss"}
    made = {
        ast.unparse(it.targets[0]): it for it in outside
        if isinstance(it, ast.Assign) and LOSS.fullmatch(ast.unparse(it.value))
        and (set(names_in([it.value], ast.Load)) - GIVEN).isdisjoint(stored)
    }  # fmt: skip
    taken = {name: made[name] for name in needed.intersection(made) if stored.count(name) == 1}
    return list(taken.values()), sorted(needed.intersection(stored) - taken.keys())


def step_of(
    tree: ast.Module, lines: Sequence[ast.stmt], names: dict[str, Any], script: Path
) -> Callable[..., Any]:
    """Return the lines of a step, after those taken from `main`, as one function."""
    inside = [node for line in lines for node in ast.walk(line)]
    stored = names_in(lines, ast.Store)
    backward = [
        node.func.value.id for node in inside
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward" and isinstance(node.func.value, ast.Name)
    ]  # fmt: skip
    attributes = [node.attr for node in inside if isinstance(node, ast.Attribute)]
    loss = "loss" if "loss" in [*names_in([tree], ast.Load), *stored] else [*backward, "loss"][0]
    refuse(
        (not lines, "The blocks forward, backward and update are missing.",
         "Keep `with record_function(...)`, and put your lines inside."),
        (any(isinstance(node, ast.Return) for node in inside),
         "A `return` ends `main` after one step.", "Leave it out: `main` reads `loss`."),
        ("training_step" in names_in(lines, ast.Load) and "training_step" not in names,
         "The script does not know the notebook's functions.", "Paste the lines of your step."),
        (loss not in stored and "backward" not in attributes, "Nothing computes gradients.",
         "Call backward() of your loss in the block backward."),
        (loss not in stored, "No line sets `loss`, which `main` prints at the end.",
         "Call your loss `loss`."),
    )  # fmt: skip
    code = ast.parse(f"def step(model, optimizer, images, labels):\n    return {loss}.detach()")
    code.body[0].body[:0] = lines  # type: ignore[attr-defined]
    names["device"] = torch.device("cpu")
    exec(compile(code, str(script), "exec"), names)
    return names["step"]

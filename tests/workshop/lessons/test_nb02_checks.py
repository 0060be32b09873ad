"""The immediate checks of notebook 02: right answers pass, each wrong one gets its diagnosis."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from tests.conftest import ROOT  # noqa: E402
from tests.workshop.checks.answers import defined  # noqa: E402
from workshop import ladder  # noqa: E402
from workshop.lessons import nb02_checks as nb02  # noqa: E402

pytestmark = pytest.mark.needs("torch")


def photos(getitem: Callable[..., Any]) -> type:
    class Photos(torch.utils.data.Dataset):
        def __init__(self, folder: Path, size: int) -> None:
            self.files, self.size = sorted(folder.glob("*/*.jpg")), size
            self.classes = sorted({file.parent.name for file in self.files})

        __getitem__ = getitem

    return Photos


def item(
    pixels: Callable[..., Any] = lambda array: torch.from_numpy(array).permute(2, 0, 1) / 127.5 - 1,
    label: Callable[..., Any] = lambda self, i: self.classes.index(self.files[i].parent.name),
    low: float = 0.7,
    square: bool = True,
) -> Callable[..., Any]:
    """Return a `__getitem__` in a different style: crop, then resize."""

    def getitem(self: Any, i: int) -> Any:
        image = Image.open(self.files[i]).convert("RGB")
        width, height = image.size
        side = random.uniform(low, max(low, 1.0)) * min(width, height)
        left, top = random.random() * (width - side), random.random() * (height - side)
        box = (left, top, left + side, top + side) if square else (0, 0, width, height)
        image = image.resize((self.size,) * 2, Image.Resampling.BILINEAR, box)
        return pixels(np.array(image)), label(self, i)

    return getitem


def tensor(array: Any) -> Any:
    return torch.from_numpy(array)


def test_right_photos_pass(capsys: pytest.CaptureFixture[str]) -> None:
    for seed, own in enumerate((nb02.photo, item(), lambda *its: [*item()(*its)]) * 3):
        random.seed(seed)
        assert nb02.check("__getitem__", photos(own)) is own
        assert capsys.readouterr().out.startswith("✓")


def edited(function: Callable[..., Any], old: str, new: str) -> Any:
    """Return a finished version with a change."""
    source = inspect.getsource(function)
    assert old in source
    return defined(source.replace(old, new), function.__name__, **vars(nb02))


PLACES = "left, top = (random.uniform(0, length - side) for length in image.size)"
SIDE = "random.uniform(0.7, 1.0) * min(image.size)"
WRONG_PHOTOS = {
    "The side depends on min(image.size)": edited(nb02.photo, "min(image.size)", "image.height"),
    "A grey image ends with": edited(nb02.photo, '.convert("RGB")', ""),
    "every part of the image. Draw left up to": edited(
        nb02.photo, PLACES, "left, top = (random.uniform(0, min(image.size) - side) for _ in '12')"
    ),
    "not reach every part": edited(
        nb02.photo, "box = (left", "left, top = left / 2, top / 2; box = (left"
    ),
    "do not move freely": edited(
        nb02.photo, PLACES, "u = random.random(); left, top = (u * (n - side) for n in image.size)"
    ),
    "mirrored": item(lambda a: tensor(a).permute(2, 0, 1).flip(2) / 127.5 - 1),
    "different filter": edited(nb02.photo, "Image.Resampling.BILINEAR, box", "box=box"),
    "upright image ends with": edited(
        nb02.photo,
        PLACES,
        "left, top = random.uniform(0, 0.3 * image.width), random.uniform(0, image.height - side)",
    ),
    "sides are 0.75 to 0.75": edited(nb02.photo, SIDE, "120"),
    " to 1.00 of the shorter side": item(low=0.7**0.5),  # 0.7 of the area, not of the side
    "The shape is (32, 32, 3)": item(lambda a: tensor(a) / 127.5 - 1),
    "(3, 32, 32). Resize to (self.size, self.size)": edited(
        nb02.photo, "resize((self.size, self.size), Image.Resampling.BILINEAR, box)", "crop(box)"
    ),
    "axes are mixed up": item(lambda a: tensor(a).reshape(3, *a.shape[:2]) / 127.5 - 1),
    "mixed up. Use permute(2, 0, 1)": item(lambda a: tensor(a).permute(2, 1, 0) / 127.5 - 1),
    "values are torch.float64": item(lambda a: tensor(a / 127.5 - 1).permute(2, 0, 1)),
    "The values are integers": item(lambda a: tensor(a).permute(2, 0, 1)),
    "became 0.56": item(lambda a: tensor(a).permute(2, 0, 1) / 128 - 1),
    "became 200": item(lambda a: tensor(a).permute(2, 0, 1).float()),
    "of type str, not a number": item(label=lambda self, i: self.files[i].parent.name),
    "have the labels [1, 1, 1]": item(label=lambda self, i: 1),
    "label comes first": lambda self, i: item()(self, i)[::-1],
    "two values": lambda self, i: torch.zeros(3, self.size, self.size),
    "differs from Pillow's by": edited(nb02.photo, "BILINEAR", "NEAREST"),
    "not squares": item(square=False),
    "ended with KeyError": lambda self, i: {}["x"],
    "not written yet": lambda self, i: None,
}


@pytest.mark.parametrize("problem", WRONG_PHOTOS)
def test_wrong_photos_are_diagnosed(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = WRONG_PHOTOS[problem]
    random.seed(1)
    assert nb02.check("__getitem__", photos(own)) is nb02.photo
    first, *rest = capsys.readouterr().out.splitlines()
    assert problem in first and first[0] == ("○" if "not written" in problem else "✗")
    # an answer is shown only to those who have not begun
    assert any("Image.open" in line for line in rest) == ("not written" in problem)


def in_another_order(model: Any, optimizer: Any, images: Any, labels: Any) -> Any:
    optimizer.zero_grad(set_to_none=False)
    loss = F.nll_loss(F.log_softmax(model(images), 1), labels)
    loss.backward()
    optimizer.step()
    return loss.detach().clone()


@pytest.mark.parametrize("own", [nb02.training_step, in_another_order])
def test_right_steps_pass(own: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert nb02.check("training_step", own) is own
    assert capsys.readouterr().out.startswith("✓")


def step_of_the_batch_before(model: Any, optimizer: Any, images: Any, labels: Any) -> Any:
    optimizer.step()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    return loss.detach()


def loss_after_the_step(model: Any, optimizer: Any, images: Any, labels: Any) -> Any:
    nb02.training_step(model, optimizer, images, labels)
    return F.cross_entropy(model(images), labels).detach()


def number_too_early(model: Any, optimizer: Any, images: Any, labels: Any) -> float:
    loss = F.cross_entropy(model(images), labels).item()
    loss.backward()
    return loss


TOO_EARLY = number_too_early.__code__.co_firstlineno + 2  # the line of `loss.backward()`
WRONG_STEPS = [
    *[(mistake, diagnosis) for mistake, diagnosis, _ in nb02.STEP_MISTAKES],
    (step_of_the_batch_before, "Three losses are right, but the weights after them are not."),
    (edited(nb02.training_step, "return loss", "loss"), "returns nothing"),
    (edited(nb02.training_step, "loss.detach()", "loss"), "still holds its graph"),
    (edited(nb02.training_step, "loss.detach()", "float(loss.detach())"), "The loss is a float"),
    (number_too_early, f"In number_too_early, line {TOO_EARLY}: `loss.backward()`."),
    (
        edited(nb02.training_step, "labels)\n", "labels, label_smoothing=0.1)\n"),
        "first loss is wrong already",
    ),
    (
        edited(nb02.training_step, "labels)\n", "labels, reduction='sum')\n"),
        "first loss is wrong already",
    ),
    (edited(nb02.training_step, "cross_entropy", "nll_loss"), "first loss is wrong already"),
    (loss_after_the_step, "the loss after the update"),
    (
        edited(nb02.training_step, "optimizer.step()", "optimizer.step(); optimizer.step()"),
        "first loss is right, so the update is wrong",
    ),
    (edited(nb02.training_step, "loss = ", "model.eval(); loss = "), "evaluation mode"),
    (lambda *_: None, "not written yet"),
    (lambda model: model, "ended with TypeError"),
]


@pytest.mark.parametrize(("own", "problem"), WRONG_STEPS)
def test_wrong_steps_are_diagnosed(
    own: Any, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nb02.check("training_step", own) is nb02.training_step
    out = capsys.readouterr().out
    assert problem in out.splitlines()[0]
    with_remedy = ("not written yet", "still holds its graph", "The loss is a float")
    assert ("loss.detach()" in out) == (problem in with_remedy)


@pytest.mark.parametrize(
    "own",
    [
        nb02.scaled_lr,
        lambda n_gpus, batch: 0.1 / 256 * (batch * n_gpus),
        lambda n_gpus, batch: np.float32(0.1) * sum([batch] * n_gpus) / 256,
    ],
)
def test_right_rates_pass(own: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert nb02.check("scaled_lr", own) is own
    assert capsys.readouterr().out.startswith("✓")


@pytest.mark.parametrize("mistake", nb02.LR_MISTAKES, ids=lambda mistake: mistake[1])
def test_wrong_rates_are_diagnosed(mistake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, diagnosis, remedy = mistake
    assert nb02.check("scaled_lr", wrong) is nb02.scaled_lr
    assert f"✗ `scaled_lr`: {diagnosis} {remedy}" in capsys.readouterr().out


@pytest.mark.parametrize("mistake", nb02.AT_MOST_MISTAKES, ids=lambda mistake: mistake[1])
def test_wrong_limits_are_diagnosed(mistake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, diagnosis, remedy = mistake
    assert nb02.check("at_most", wrong) is nb02.at_most
    assert f"✗ `at_most`: {diagnosis} {remedy}" in capsys.readouterr().out
    for right in (nb02.at_most, lambda part, whole: 1 / (1 - part / whole)):
        assert nb02.check("at_most", right) is right


FINISHED = (ROOT / "exercises" / "ladder" / "1_single.py").read_text()
OTHER_STYLE = {  # lines of the finished script, and what is right, too
    "random.uniform(0, width - side), random.uniform(0, height - side)": (
        "torch.rand(2).numpy() * (width - side, height - side)"
    ),
    "pixels / 127.5 - 1, self": "pixels.float() / 255 * 2 - 1, self",
    "                optimizer.zero_grad()\n": "",
    "                optimizer.step()\n": """                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                loss = loss.detach()
""",
    "F.cross_entropy(model(images), labels)": "F.nll_loss(model(images).log_softmax(1), labels)",
}
SCRIPTS = {  # what is said about a script with such edits
    "✓ train.py: three steps of a small network": {},
    "✓ train.py: three steps of a small network end like": OTHER_STYLE,
    "unexpected indent. See line 43: `width = 1`. Indent `def __getitem__` by 4": {
        "width, height = image.size": "   width = 1"
    },
    "it ended without report and weights. Leave": {"optimizer.step()\n": "return loss\n"},
    "its pixels differ": {"127.5": "128"},
    "its weights never change": {"optimizer.step()": "pass"},
    "batch norm's averages 0 times": {"loss = F": "model.eval(); loss = F"},
    "its loss or weights differ: the loss is": {"optimizer.zero_grad()\n": "pass\n"},
}


@pytest.mark.parametrize("said", SCRIPTS)
def test_script_is_judged_by_running_it(said: str, tmp_path: Path, capsys) -> None:
    script, text, right = tmp_path / "train.py", FINISHED, "✓" in said
    for finished, own in SCRIPTS[said].items():
        assert finished in text
        text = text.replace(finished, own)
    script.write_text(text)
    assert nb02.check_script(script) == ("1_single" if right else "")
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("✓" if right else "✗ train.py: ") and said in first
    assert rest == ([] if right else ["Until it is right, the finished script is used."])


def test_endless_script_and_other_rungs(tmp_path: Path, capsys, monkeypatch) -> None:
    script = tmp_path / "train.py"
    for text in (
        ladder.with_gaps(FINISHED),  # nothing pasted yet
        (ROOT / "exercises" / "ladder" / "2_ddp.py").read_text().replace("zero_grad", "pass_"),
    ):
        script.write_text(text)
        assert nb02.check_script(script) == "1_single"
        assert capsys.readouterr().out.startswith("○ train.py")
    script.write_text(FINISHED)
    monkeypatch.setattr(nb02, "LIMIT_S", 0.01)
    assert nb02.check_script(script) == ""
    assert capsys.readouterr().out.startswith("✗ train.py: it was stopped after 0.01 s.")

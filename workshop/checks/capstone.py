"""The capstone's measurement: a training script run under observation.

    with images() as case:                # a small part of the road signs
        seen = observe(case, script)
    seen.ips, seen.trained, seen.report

The measurement ignores what a script prints: it recognises the images that went into the network by
their pixels, and measures the seconds of the process that ran the script.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workshop import paths
from workshop.checks import alone, recipes
from workshop.checks.compare import wrong
from workshop.observe import progress_line

SIZE, BATCH, EPOCHS, PEAK = 64, 16, 3, 0.1
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
PER_CLASS = {"train": 19, "val": 9}  # 228 training images, which 16 does not divide
CELLS = 8  # as in `workshop.checks.watch`
LIMIT_S = 240.0
FAR = 0.15  # in units of STD, root mean square: more than any decoder changes an image
# a waiting thread sleeps: spinning, it would take a core from other programs
ENV = {"OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Case:
    """The images of a run: `folder` holds train/CLASS/*.jpg and val/CLASS/*.jpg.

    The first `train` of `pixels` (N, 3, SIZE, SIZE) are those of train, the others those of val,
    each in alphabetical order, as they should go into the network. `labels` has the shape (N,).
    """

    folder: Path
    labels: np.ndarray
    train: int
    pixels: np.ndarray

    @property
    def val(self) -> int:
        return len(self.labels) - self.train


@dataclass(frozen=True)
class Seen:
    """The observation of a run: its seconds, the rate of each step, and its report.

    The other arrays have a row for each image in a forward pass: `number` is the place of the image
    in the Case, or -1 if it is none of its images; `of` is the number of the pass, and `step` how
    many steps were taken before it.
    """

    seconds: float
    rates: np.ndarray
    report: Any
    number: np.ndarray
    prints: np.ndarray
    logits: np.ndarray
    of: np.ndarray
    step: np.ndarray
    trained: np.ndarray
    evaluating: np.ndarray
    parameters: np.ndarray
    size: np.ndarray

    @property
    def ips(self) -> float:
        """Return the images trained on per second of the whole run, validation included."""
        return int(self.trained.sum()) / self.seconds


@contextlib.contextmanager
def images(per_class: dict[str, int] | None = None) -> Iterator[Case]:
    """Copy a part of the built-in data to a temporary folder; draw it if it is missing."""
    from PIL import Image

    per_class = per_class or PER_CLASS
    root = paths.data_home() / "roadsigns"
    if not (root / ".complete").exists():
        from data_prep import roadsigns

        root = paths.runs_home() / "capstone-images"
        roadsigns.ensure(root, train=240, val=108, quiet=True)
    with tempfile.TemporaryDirectory(prefix="capstone-") as folder:
        files = []
        for part, count in per_class.items():
            for place in sorted((root / part).iterdir()):
                target = Path(folder, part, place.name)
                target.mkdir(parents=True)
                for file in sorted(place.iterdir())[:count]:
                    files.append(Path(shutil.copyfile(file, target / file.name)))
        classes = sorted({file.parent.name for file in files})
        arrays = [
            np.asarray(Image.open(file).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX))
            for file in files
        ]
        pixels = (np.stack(arrays) - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
        labels = np.array([classes.index(file.parent.name) for file in files])
        train = per_class["train"] * len(classes)
        yield Case(Path(folder), labels, train, pixels.transpose(0, 3, 1, 2))


def prints(pixels: np.ndarray) -> np.ndarray:
    """Return the mean of each cell of each image: (N, 3, SIZE, SIZE) -> (N, 3 * CELLS**2)."""
    side = SIZE // CELLS
    cells = pixels.reshape(len(pixels), 3, CELLS, side, CELLS, side)
    return cells.mean((3, 5)).reshape(len(pixels), -1)


def recognised(found: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the place of the nearest known print for each one, -1 if all are far."""
    square = (found**2).sum(1)[:, None] + (known**2).sum(1) - 2 * found @ known.T
    difference = np.sqrt(np.maximum(square, 0) / known.shape[1])
    return np.where(difference.min(1) < FAR, difference.argmin(1), -1)


def observe(case: Case, script: Path, doing: str = "") -> Seen:
    """Run a script on a copy of the data and return what was seen; a notebook shows `doing`.

    Raises compare.Wrong if the script fails or takes longer than LIMIT_S.
    """
    progress_line()(doing)
    with tempfile.TemporaryDirectory(prefix="capstone-out-") as top:
        data, out = Path(top, "data"), Path(top, "out")
        shutil.copytree(case.folder, data)
        out.mkdir()
        words = [str(data), str(script), str(out)]
        if problem := alone.run_module("workshop.checks.watch", words, "the script", LIMIT_S, ENV):
            wrong(f"the script ended its process: {problem}.", "It should return instead.")
        return recorded(case, out, script)


def run_answer(answer: Callable[..., Any], case: Case, doing: str = "") -> Seen:
    """Return what is seen of the learner's script."""
    with tempfile.TemporaryDirectory(prefix="capstone-") as place:
        script = Path(place, "your_script.py")
        script.write_text(alone.cell_of(answer), encoding="utf-8")
        return observe(case, script, doing)


def recorded(case: Case, out: Path, script: Path) -> Seen:
    """Return what `workshop.checks.watch` has left in a folder, with all images recognised.

    Raises compare.Wrong for a script that failed.
    """
    if (out / "failed.txt").exists():
        text = (out / "failed.txt").read_text(encoding="utf-8")
        error, place = recipes.script_error(text, script)
        wrong(f"the script stopped with {error}.",
              place or "Call train(…) in a cell to see the whole error.")  # fmt: skip
    with np.load(out / "seen.npz") as arrays:
        seen: dict[str, Any] = dict(arrays) | {"seconds": float(arrays["seconds"])}
    try:
        report = json.loads((out / "report.json").read_text())
    except (OSError, ValueError):
        report = None
    return Seen(number=recognised(seen["prints"], prints(case.pixels)), report=report, **seen)


def baseline() -> Path:
    """Return the slow script."""
    return paths.need_checkout() / "exercises/capstone/train_slow.py"

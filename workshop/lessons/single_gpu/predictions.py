"""What a checkpoint says about every picture of a split, computed in a process of its own.

So the memory of a GPU comes back to the next run, and the kernel stays free of frameworks.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rn50lib import launch
from rn50lib.errors import UserError
from rn50lib.records.source import Source, open_source
from rn50lib.tools.predict import prepare, trained_as
from workshop import output
from workshop.session import progress_html


@dataclass(frozen=True)
class Predictions:
    """`probabilities` float32 (pictures, classes), `labels` int32 (pictures,), and the pictures."""

    probabilities: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    source: Source
    prefix: str
    epoch: int

    @property
    def said(self) -> np.ndarray:
        """The likeliest class of each picture."""
        return self.probabilities.argmax(axis=1)

    @property
    def right(self) -> np.ndarray:
        return self.said == self.labels

    @property
    def confidence(self) -> np.ndarray:
        """The probability of the class that was said."""
        return self.probabilities.max(axis=1)

    def top1(self, first: int | None = None) -> float:
        """Per cent of right answers, of all pictures or of the first ones."""
        right = self.right[:first]
        return 100 * int(right.sum()) / len(right)

    def picture(self, i: int, size: int | None = None) -> np.ndarray:
        """Picture i in the crop that the network sees, `size` pixels wide (default: as it does)."""
        from dataclasses import replace

        seen = trained_as(self.prefix, self.epoch)
        if size is not None:
            resize = round(seen.val_resize * size / seen.image_shape)
            seen = replace(seen, image_shape=size, val_resize=resize)
        return prepare(self.source, i, seen)


def predict_split(prefix: str | Path, epoch: int, split: str = "val") -> Predictions:
    """Predict every picture of a split of the data that a checkpoint was trained on, with a bar.

    Raises UserError when the checkpoint or the data cannot be used.
    """
    done = trained_as(prefix, epoch)
    file = Path(f"{prefix}-{epoch:04d}-{split}.npz")
    command = [sys.executable, "-m", "rn50lib.tools.predict", str(prefix), str(epoch)]
    process = subprocess.Popen(
        [*command, "--split", split, "--output", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=launch.rank_environment(done),
    )
    assert process.stderr
    slot, line = output.Slot(), "the model is being loaded"
    slot.html(progress_html(line, 0), line)
    try:
        for text in process.stderr:
            line = text.strip()
            words = line.split()
            if len(words) == 4 and words[1] == "of":
                slot.html(progress_html(line, int(words[0]) / int(words[2])), line)
        if process.wait() != 0:
            raise UserError(line.removeprefix("error: "))
    finally:
        process.kill()
        process.wait()
    with np.load(file) as arrays:
        probabilities, labels = arrays["probabilities"], arrays["labels"]
        classes = tuple(str(name) for name in arrays["classes"])
    source = open_source(done.data_root, split)
    return Predictions(probabilities, labels, classes, source, str(prefix), epoch)

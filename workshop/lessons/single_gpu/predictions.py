"""What a checkpoint says about every picture of a split, computed in a process of its own.

So the memory of a GPU comes back to the next run, and the kernel stays free of frameworks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rn50 import launch
from rn50.predict import predict, prepare, trained_as
from rn50lib.data.source import Source, open_source
from workshop.worker import ask, tell


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
    def answers(self) -> np.ndarray:
        """The likeliest class of each picture."""
        return self.probabilities.argmax(axis=1)

    @property
    def right(self) -> np.ndarray:
        return self.answers == self.labels

    @property
    def confidence(self) -> np.ndarray:
        """The probability of the likeliest class."""
        return self.probabilities.max(axis=1)

    def top1(self, first: int | None = None) -> float:
        """Per cent of right answers, of all pictures or of the first ones."""
        right = self.right[:first]
        return 100 * int(right.sum()) / len(right)

    def picture(self, i: int, size: int | None = None) -> np.ndarray:
        """Picture i in the crop that the network sees, `size` pixels wide (default: as it does)."""
        seen = trained_as(self.prefix, self.epoch)
        if size is not None:
            resize = round(seen.val_resize * size / seen.image_shape)
            seen = replace(seen, image_shape=size, val_resize=resize)
        return prepare(self.source, i, seen)


def predict_split(prefix: str | Path, epoch: int, split: str = "val") -> Predictions:
    """Predict every picture of a split of the data that a checkpoint was trained on.

    Raises UserError when the checkpoint or the data cannot be used.
    """
    config = trained_as(prefix, epoch)
    source = open_source(config.data_root, split)
    found = ask(
        "workshop.lessons.single_gpu.predictions:probabilities",
        launch.rank_environment(config),
        "the model is being loaded",
        prefix=str(prefix), epoch=epoch, split=split,
    )  # fmt: skip
    labels = np.asarray(source.labels, np.int32)
    return Predictions(
        np.array(found, np.float32), labels, source.classes, source, str(prefix), epoch
    )


# --- in the process -------------------------------------------------------------------------------


def probabilities(prefix: str, epoch: int, split: str) -> list[list[float]]:
    """Those of every picture."""
    source = open_source(trained_as(prefix, epoch).data_root, split)
    found = predict(prefix, epoch, source, lambda done: tell(f"{done} of {len(source)} pictures"))
    rows: list[list[float]] = found.tolist()
    return rows

"""The training at the start of `make run`: the built-in recipe in full, shown in the index."""

from __future__ import annotations

import base64
import io
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib.recipe import ROADSIGNS

SHOWN = 4  # images shown of the right answers, and of the wrong ones
SIDE = 160  # pixels of an image in the index
# The recipe's accuracy was recorded with one worker, so several GPUs are not used.
TRAIN = ("run", "-n", "1")


@dataclass(frozen=True)
class Sample:
    """A validation image as the index shows it; `chances` has the two likeliest classes."""

    image: str  # a data URI
    label: str
    chances: tuple[tuple[str, float], ...]

    @property
    def right(self) -> bool:
        """True if the likeliest class is the label."""
        return self.chances[0][0] == self.label


@dataclass(frozen=True)
class Training:
    """A training as the index shows it. `error` is what ended it early, or ''."""

    command: str
    resume: str
    error: str = ""
    report: dict[str, Any] | None = None
    scored: float = 0.0  # top-1 in per cent of the checkpoint, predicted in a separate process
    expected: str = ROADSIGNS.expected
    curve: str = ""  # a data URI
    samples: tuple[Sample, ...] = ()


def train(folder: Path) -> Training:
    """Train into `folder` or continue an earlier training there; show progress on the terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix, report, answers = folder / "model", folder / "report.json", folder / "val.npz"
    arguments = [*TRAIN, "--run-dir", str(folder), "--model-prefix", str(prefix)]
    command, resume = (shlex.join(["rn50", *arguments, *more]) for more in ((), ("--resume",)))
    if not report.exists():
        print("training: the built-in recipe in full", flush=True)
        more = ["--resume"] if any(folder.glob("model-*.safetensors")) else []
        if error := rn50(*arguments, *more):
            return Training(command, resume, error)
    done = json.loads(report.read_text(encoding="utf-8"))
    epoch = str(len(done["metrics"]["val.top1"]))
    if error := rn50("predict", str(prefix), epoch, "--split", "val", "-o", str(answers)):
        return Training(command, resume, error, done)
    scored, samples = read_answers(answers, done["env"]["axes"]["data_root"]["value"])
    return Training(command, resume, "", done, scored, curve=curve(done), samples=samples)


def rn50(*arguments: str) -> str:
    """Run `rn50 ARGUMENTS` on this terminal; return how it failed, or ''."""
    status = subprocess.run([sys.executable, "-m", "rn50", *arguments]).returncode
    return f"rn50 {arguments[0]} ended with status {status}" if status else ""


def curve(report: dict[str, Any]) -> str:
    """Return loss and accuracy over the epochs as an image."""
    from rn50.plot import curves

    file = io.BytesIO()
    curves({"this run": report}).savefig(file, format="png", dpi=130)
    return data_uri(file.getvalue(), "png")


def read_answers(answers: Path, data_root: str) -> tuple[float, tuple[Sample, ...]]:
    """Return the accuracy of predictions, and some right answers and the surest wrong ones."""
    import numpy as np

    from rn50lib.data.source import open_source

    with np.load(answers) as file:
        chances, labels, classes = file["probabilities"], file["labels"], file["classes"]
    right = chances.argmax(1) == labels
    surest = np.argsort(-chances.max(1), kind="stable")
    firsts = np.unique(np.where(right, labels, -1), return_index=True)[1]  # one of each class
    firsts = firsts[right[firsts]]
    chosen = [*firsts[:: max(1, len(firsts) // SHOWN)][:SHOWN], *surest[~right[surest]][:SHOWN]]
    source = open_source(data_root, "val")
    samples = []
    for i in chosen:
        likeliest = np.argsort(-chances[i], kind="stable")[:2]
        pairs = tuple((str(classes[j]), float(chances[i, j])) for j in likeliest)
        samples.append(Sample(thumbnail(source.read(int(i))), str(classes[labels[i]]), pairs))
    return 100 * float(right.mean()), tuple(samples)


def thumbnail(encoded: bytes) -> str:
    """Return a small copy of an image as a data URI."""
    from PIL import Image

    image, file = Image.open(io.BytesIO(encoded)).convert("RGB"), io.BytesIO()
    image.thumbnail((SIDE, SIDE))
    image.save(file, "JPEG", quality=88)
    return data_uri(file.getvalue(), "jpeg")


def data_uri(content: bytes, kind: str) -> str:
    """Return an image as a data URI."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

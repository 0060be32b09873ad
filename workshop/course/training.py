"""The training that `make run` begins with: the built-in recipe in full, validated, scored again
from its checkpoint, and asked about single pictures. The index shows what came out.
"""

from __future__ import annotations

import base64
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib.recipe import ROADSIGNS

SHOWN = 4  # pictures shown of those that it got right, and of those that it got wrong
SIDE = 160  # pixels of a picture in the index

# The recipe's accuracy was recorded with one worker: on a machine with several GPUs, too.
TRAIN = ("run", "-n", "1")


@dataclass(frozen=True)
class Picture:
    """A validation picture as the index shows it; `chances` are the likeliest classes, in order."""

    image: str  # a data URI
    name: str
    label: str
    chances: tuple[tuple[str, float], ...]

    @property
    def right(self) -> bool:
        return self.chances[0][0] == self.label


@dataclass(frozen=True)
class Training:
    """A training as the index shows it. `error` is what ended it early, or ''."""

    command: str
    resume: str
    folder: str
    error: str = ""
    report: dict[str, Any] | None = None
    scored: float = 0.0  # top-1 of the checkpoint in a process of its own, per cent
    expected: str = ""
    curve: str = ""  # a data URI
    pictures: tuple[Picture, ...] = ()

    @property
    def waiting(self) -> float:
        """The share of the training's time that went by waiting for pictures."""
        seconds = self.report["env"]["seconds"] if self.report else {}
        return seconds["data"] / sum(seconds.values()) if seconds else 0.0


def train(folder: Path, say: Callable[[str], None]) -> Training:
    """Train into `folder`, going on from what an earlier call left there.

    The run's own bar and lines go to the terminal.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prefix, report = folder / "model", folder / "report.json"
    arguments = [*TRAIN, "--run-dir", str(folder), "--model-prefix", str(prefix)]
    command, resume = (shlex.join(["rn50", *arguments, *more]) for more in ((), ("--resume",)))
    if not report.exists():
        say("training: the built-in recipe in full")
        earlier = ["--resume"] if any(folder.glob("model-*.safetensors")) else []
        error = call(*arguments, *earlier)
        if error:
            return Training(command, resume, str(folder), error)
    done = json.loads(report.read_text(encoding="utf-8"))
    epoch = str(len(done["metrics"]["val.top1"]))
    say("training: scoring its last checkpoint, and asking it about every validation picture")
    scored, answers = folder / "score.json", folder / "val.npz"
    error = call("score", str(prefix), epoch, "--report", str(scored)) or call(
        "predict", str(prefix), epoch, "--split", "val", "-o", str(answers)
    )
    if error:
        return Training(command, resume, str(folder), error, done)
    top1 = json.loads(scored.read_text(encoding="utf-8"))["metrics"]["val.top1"][-1]
    return Training(
        command, resume, str(folder), "", done, top1, ROADSIGNS.expected, curve(done),
        pictures(answers, done["env"]["axes"]["data_root"]["value"]),
    )  # fmt: skip


def call(*arguments: str) -> str:
    """Run `rn50 ARGUMENTS`; how it ended if that was not well, else ''. Only `run` has the
    terminal: the others' lines are shown where they failed."""
    kept = None if arguments[0] == "run" else subprocess.PIPE
    done = subprocess.run(
        [sys.executable, "-m", "rn50", *arguments], stdout=kept, stderr=kept, text=True
    )
    if not done.returncode:
        return ""
    print(done.stdout or "", done.stderr or "", file=sys.stderr)
    return f"rn50 {arguments[0]} ended with status {done.returncode}"


def curve(report: dict[str, Any]) -> str:
    """Loss and accuracy over the epochs."""
    from rn50.plot import curves

    file = io.BytesIO()
    curves({"this run": report}).savefig(file, format="png", dpi=130)
    return data_uri(file.getvalue(), "png")


def pictures(answers: Path, data_root: str) -> tuple[Picture, ...]:
    """Some that the network got right, one of a class, and the wrong ones it was surest of."""
    import numpy as np

    from rn50lib.data.source import open_source

    with np.load(answers) as file:
        chances, labels, classes = file["probabilities"], file["labels"], file["classes"]
    answer, sure = chances.argmax(1), chances.max(1)
    right, wrong = np.flatnonzero(answer == labels), np.flatnonzero(answer != labels)
    firsts = right[np.unique(labels[right], return_index=True)[1]]
    chosen = [*firsts[:: max(1, len(firsts) // SHOWN)][:SHOWN]]
    chosen += list(wrong[np.argsort(-sure[wrong], kind="stable")][:SHOWN])
    source = open_source(data_root, "val")
    shown = []
    for i in chosen:
        likeliest = np.argsort(-chances[i], kind="stable")[:2]
        pairs = tuple((str(classes[j]), float(chances[i, j])) for j in likeliest)
        image = thumbnail(source.read(int(i)))
        shown.append(Picture(image, source.name(int(i)), str(classes[labels[i]]), pairs))
    return tuple(shown)


def thumbnail(encoded: bytes) -> str:
    from PIL import Image

    picture, file = Image.open(io.BytesIO(encoded)).convert("RGB"), io.BytesIO()
    picture.thumbnail((SIDE, SIDE))
    picture.save(file, "JPEG", quality=88)
    return data_uri(file.getvalue(), "jpeg")


def data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

"""The capstone's measurement: training scripts run under observation, and what was seen of them.

    case = pictures(folder)               # a small part of the road signs
    seen = observe(case, [script])[0]     # in a process of its own; `workshop.checks.watch` looks
    seen.ips, seen.trained, seen.report

Nothing that a script prints is believed: the pictures that went into the network are known again by
their pixels, and the seconds are those of the process that ran it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rn50 import launch
from rn50lib import hardware
from rn50lib.errors import UserError
from workshop import paths
from workshop.checks import alone, compare
from workshop.checks.compare import wrong
from workshop.observe import progress_line

SIZE, BATCH, EPOCHS, PEAK = 64, 16, 3, 0.1
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
PER_CLASS = {"train": 19, "val": 9}  # 228 pictures, which 16 does not divide
CELLS = 8  # as `workshop.checks.watch` has them
LIMIT_S = 240.0
SAY_S = 2.0
FAR = 0.15  # in units of STD, root mean square: further than any decoder takes a picture


@dataclass(frozen=True)
class Case:
    """The pictures of a run: `folder` holds train/CLASS/*.jpg and val/CLASS/*.jpg.

    `files` has those of train, then those of val, each in alphabetical order; `pixels` what should
    go into the network, (len(files), 3, SIZE, SIZE).
    """

    folder: Path
    files: tuple[Path, ...]
    labels: np.ndarray
    train: int
    pixels: np.ndarray

    @property
    def val(self) -> int:
        return len(self.files) - self.train

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-self.train // BATCH)


@dataclass(frozen=True)
class Seen:
    """What was seen of a run. Each row is a picture in a pass: `number` is its place in
    Case.files, -1 where it is none of them; `of` is the pass that it belongs to."""

    seconds: float
    passes: list[dict[str, Any]]
    rates: list[float]
    prints: np.ndarray
    details: np.ndarray
    logits: np.ndarray
    number: np.ndarray
    of: np.ndarray
    report: Any

    def column(self, key: str) -> np.ndarray:
        """A property of the pass, for every row."""
        return np.array([entry[key] for entry in self.passes])[self.of]

    @property
    def trained(self) -> np.ndarray:
        """Which rows were trained on."""
        return self.column("trained").astype(bool)

    @property
    def ips(self) -> float:
        """Pictures trained on in a second of the whole run, start and validation included."""
        return int(self.trained.sum()) / self.seconds


@contextlib.contextmanager
def pictures(per_class: dict[str, int] | None = None) -> Iterator[Case]:
    """A part of the built-in data in a new folder; drawn where the data is not there."""
    from PIL import Image

    per_class = per_class or PER_CLASS
    root = paths.data_home() / "roadsigns"
    if not (root / ".complete").exists():
        from data_prep import roadsigns

        root = paths.runs_home() / "capstone-pictures"
        roadsigns.ensure(root, train=240, val=108, quiet=True)
    with tempfile.TemporaryDirectory(prefix="capstone-") as folder:
        files = []
        for part, count in per_class.items():
            for place in sorted((root / part).iterdir()):
                target = Path(folder, part, place.name)
                target.mkdir(parents=True)
                for picture in sorted(place.iterdir())[:count]:
                    files.append(target / picture.name)
                    shutil.copyfile(picture, files[-1])
        classes = sorted({file.parent.name for file in files})
        images = [
            np.asarray(Image.open(file).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX))
            for file in files
        ]
        mean, std = (np.array(three, np.float32) for three in (MEAN, STD))
        pixels = (np.stack(images) - mean) / std
        labels = np.array([classes.index(file.parent.name) for file in files])
        train = per_class["train"] * len(classes)
        yield Case(Path(folder), tuple(files), labels, train, pixels.transpose(0, 3, 1, 2))


def prints(pixels: np.ndarray) -> np.ndarray:
    """The mean of every cell of each picture: (N, 3, SIZE, SIZE) -> (N, 3 * CELLS**2)."""
    side = SIZE // CELLS
    cells = pixels.reshape(len(pixels), 3, CELLS, side, CELLS, side)
    return cells.mean((3, 5)).reshape(len(pixels), -1)


def recognised(found: np.ndarray, known: np.ndarray) -> np.ndarray:
    """For each print the place of the nearest known one, -1 where all are far."""
    if found.shape[1] != known.shape[1]:
        return np.full(len(found), -1)
    square = (found**2).sum(1)[:, None] + (known**2).sum(1) - 2 * found @ known.T
    difference = np.sqrt(np.maximum(square, 0) / found.shape[1])
    return np.where(difference.min(1) < FAR, difference.argmin(1), -1)


def observe(case: Case, scripts: Sequence[Path], doing: str = "") -> list[Seen | dict[str, str]]:
    """Run the scripts one after the other in a process; a Seen for each, or a dict with its
    `error`. In a notebook a line tells how long it takes, and what is `doing`. Raises compare.Wrong
    when they take longer than LIMIT_S each."""
    with tempfile.TemporaryDirectory(prefix="capstone-out-") as out:
        found = watched(scripts, str(case.folder), Path(out), doing)
        return [understood(case, raw) for raw in found]


@compare.beside
def run_answer(answer: Callable[..., Any], folder: str, doing: str = "") -> dict[str, Any]:
    """What is seen of a run of the learner's script, in the process in which it lives."""
    with tempfile.TemporaryDirectory(prefix="capstone-out-") as out:
        script = Path(out, "your_script.py")
        script.write_text(alone.cell_of(answer), encoding="utf-8")
        return watched([script], folder, Path(out), doing)[0]


def watched(scripts: Sequence[Path], data: str, out: Path, doing: str) -> list[dict[str, Any]]:
    """Run the scripts under observation; for each what was seen, as plain data."""
    folders = [out / str(i) for i in range(len(scripts))]
    words = [data]
    for script, folder in zip(scripts, folders, strict=True):
        folder.mkdir()
        words += [str(script), str(folder)]
    env = launch.with_library(dict(os.environ))
    env |= {"OMP_NUM_THREADS": str(hardware.machine().cores), "CUDA_VISIBLE_DEVICES": ""}
    # a thread that waits for the others sleeps: spinning, it would take the core from whatever else
    # runs here, and the measurement would depend on that all the more
    env |= {"OMP_WAIT_POLICY": "PASSIVE"}
    with open(out / "printed.txt", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "workshop.checks.watch", *words],
            env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    began, say = time.monotonic(), progress_line()
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SAY_S)
            seconds = time.monotonic() - began
            say(f"{doing}: {seconds:.0f} s")
            if seconds > LIMIT_S * len(scripts):
                wrong(
                    f"the script was stopped after {seconds:.0f} seconds.",
                    "Look for a loop that does not end.",
                )
    finally:  # its workers too, and also when the cell is interrupted
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        last = (out / "printed.txt").read_text(errors="replace").strip().splitlines()[-1:]
        how = f"status {process.returncode}" + "".join(f": {line}" for line in last)
        return [{"error": f"the end of its process, {how}"} for _ in scripts]
    return [found_in(folder) for folder in folders]


def found_in(out: Path) -> dict[str, Any]:
    """What `workshop.checks.watch` has left in a folder, and the script's report."""
    if (out / "failed.json").exists():
        failed: dict[str, Any] = json.loads((out / "failed.json").read_text())
        return failed
    told: dict[str, Any] = json.loads((out / "seen.json").read_text())
    with np.load(out / "seen.npz", allow_pickle=False) as arrays:
        told |= {name: arrays[name] for name in ("prints", "details", "logits")}
    try:
        told["report"] = json.loads((out / "report.json").read_text())
    except (OSError, ValueError):
        told["report"] = None
    return told


def understood(case: Case, raw: dict[str, Any]) -> Seen | dict[str, str]:
    """The same with every picture known again."""
    if "error" in raw:
        return raw
    rows = [entry["rows"] for entry in raw["passes"]]
    of = np.repeat(np.arange(len(rows)), rows).astype(int)
    return Seen(number=recognised(raw["prints"], prints(case.pixels)), of=of, **raw)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of every file in it, by path."""
    stats = {str(path): path.stat() for path in folder.rglob("*") if path.is_file()}
    return {name: (found.st_size, found.st_mtime_ns) for name, found in stats.items()}


def baseline() -> Path:
    """The slow script. Raises UserError where it is missing."""
    root = paths.checkout()
    path = root / "exercises/capstone/train_slow.py" if root else Path("train_slow.py")
    if not path.exists():
        raise UserError(f"{path} is missing: it belongs to the exercises of the course")
    return path

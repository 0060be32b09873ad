"""The capstone's measurement: a parallel training script run under observation, on two ranks.

    with images() as case:                # a small part of the road signs
        seen = observe(case, text_of_script)
    seen.seconds, seen.trained, seen.report

The measurement ignores what a script prints. `workshop.observe` records its steps, as for `try`;
`watch` adds the images that went into the network, which are recognised by their pixels, the
seconds of the ranks, and a trace of a few steps of rank 0. The script may use
DistributedDataParallel or Horovod.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from workshop import paths
from workshop.checks import compare, process_ranks, recipes
from workshop.checks.compare import wrong
from workshop.errors import RunFailed
from workshop.observe import progress_line, run, verdict

RANKS = 2
SIZE, BATCH, EPOCHS, PEAK = 64, 16, 3, 0.1  # as in the slow script
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
PER_CLASS = {"train": 17, "val": 6}  # 204 training images, which 16 does not divide
CELLS = 8  # as in `workshop.checks.watch`
ALL_STEPS = 10**6  # more than any script takes
LIMIT_S = 240.0  # of a run: less than a cell gets when it is graded, 300 s
WATCH = """\
if __name__ == "__main__":  # not in a process that the script spawns
    from workshop.checks import watch

    watch.run()
"""
FAR = 0.15  # in units of STD, root mean square: more than any decoder changes an image
ENV = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": process_ranks.LOOPBACK}


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
    """The observation of a run: its seconds, what every rank did in each step, and its report.

    The arrays have a row for each image in a forward pass on any rank, in the order of the steps:
    `number` is the place of the image in the Case, or -1 if it is none of its images; `of` is the
    number of the pass, and `step` how many steps its rank had taken before it.
    """

    seconds: float
    ranks: list[verdict.Rank]
    rates: np.ndarray  # of the steps
    report: Any
    trace: Path | None
    rank: np.ndarray
    number: np.ndarray
    prints: np.ndarray
    logits: np.ndarray
    of: np.ndarray
    step: np.ndarray
    trained: np.ndarray
    evaluating: np.ndarray
    parameters: np.ndarray
    size: np.ndarray


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
    difference = cdist(found, known) / np.sqrt(known.shape[1])
    return np.where(difference.min(1) < FAR, difference.argmin(1), -1)


def observe(case: Case, text: str, doing: str = "", trace: Path | None = None) -> Seen:
    """Run a script, given as its text, on RANKS ranks; return what was seen.

    A notebook shows `doing`. With `trace`, rank 0 writes a trace of a few steps to that file.
    Raises compare.Wrong if the script fails or takes too long.
    """
    progress_line()(doing)
    with tempfile.TemporaryDirectory(prefix="capstone-") as top:
        names = ("out", "notes", "main.py", "your_script.py")
        out, notes, main, script = (Path(top, name) for name in names)
        out.mkdir()
        notes.mkdir()
        script.write_text(text, encoding="utf-8")
        main.write_text(WATCH, encoding="utf-8")
        words = [*map(str, (script, case.folder, out, notes)), *[str(trace)] * bool(trace)]
        launcher = run.choose_launcher(script)
        try:
            events, ended = run.run_ranks(
                main, words, case.folder, launcher, RANKS, ALL_STEPS, LIMIT_S, ENV, limit=LIMIT_S
            )
        except RunFailed as problem:
            error, place = recipes.script_error(problem.log, script)
            last = " / ".join(problem.log.splitlines()[-3:])
            wrong(f"the script stopped with {error}.", place or f"Its last lines: {last}")
        if not ended:
            more = "Or a rank waits for a collective that the other never calls."
            wrong(f"the script was stopped after {LIMIT_S:g} s.", f"{compare.ENDLESS} {more}")
        return recorded(case, verdict.by_rank(events), out, notes, trace)


def recorded(
    case: Case, ranks: list[verdict.Rank], out: Path, notes: Path, trace: Path | None
) -> Seen:
    """Return what was recorded of the ranks and left in a folder, with all images recognised.

    Raises compare.Wrong if the ranks do not fit together.
    """
    seen = []
    for file in sorted(notes.glob("seen-*.npz")):
        with np.load(file) as arrays:
            seen.append(dict(arrays))
    if len(seen) != RANKS:
        wrong(f"only {len(seen)} of {RANKS} ranks finished.", "Return from train on each.")
    for number, one in enumerate(seen):
        one["rank"] = np.full(len(one["of"]), number)
    steps = {len(rank.updates) for rank in ranks}
    if len(steps) > 1:
        counts = " and ".join(map(str, sorted(steps)))
        wrong(f"the ranks take different numbers of steps: {counts}.",
              "Give each rank the same number of batches.")  # fmt: skip
    seconds = max(float(one.pop("seconds")) for one in seen)
    rows = {name: np.concatenate([one[name] for one in seen]) for name in seen[0]}
    order = np.lexsort((rows["of"], rows["rank"], rows["step"]))
    rows = {name: values[order] for name, values in rows.items()}
    try:
        report = json.loads((out / "report.json").read_text())
    except (OSError, ValueError):
        report = None
    return Seen(
        seconds=seconds, ranks=ranks, rates=np.array(ranks[0].all("rate")), report=report,
        trace=trace,
        number=recognised(rows["prints"], prints(case.pixels)), **rows,
    )  # fmt: skip


def baseline() -> str:
    """Return the text of the slow script."""
    return (paths.need_checkout() / "exercises/capstone/train_slow.py").read_text(encoding="utf-8")

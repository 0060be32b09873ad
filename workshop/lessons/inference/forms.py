"""The forms in which one network predicts: as it trains, folded, in 16 bits, by ONNX Runtime.

    said = answers(prefix, epoch, file, "bfloat16")           # their logits for the same pictures
    timed = compare(experiment, (TRAINING, FOLDED), rounds=10) # their seconds a batch, in turns

A form is its kind and its precision: "folded, bfloat16". PyTorch and ONNX Runtime have a process
each.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rn50lib import launch
from rn50lib.config import Experiment, resolve, to_json
from rn50lib.hardware import machine
from rn50lib.tools.predict import trained_as
from workshop import measuring, output, session
from workshop.pairs import Pairs
from workshop.turns import Worker

TRAINING, FOLDED, ONNX = "training form, float32", "folded, float32", "ONNX Runtime, float32"
IN_TORCH, IN_ONNX = (
    "workshop.lessons.inference.forms_worker",
    "workshop.lessons.inference.onnx_turns",
)
LIMIT_S = 40.0  # no round begins later, so that a cell ends in time on a slow machine too
WARM_UP = 2


def folded(dtype: str) -> str:
    return f"folded, {dtype}"


def has(package: str) -> bool:
    """Whether a package is installed here."""
    return importlib.util.find_spec(package) is not None


@dataclass(frozen=True)
class Answers:
    """What the forms say about the same pictures: `images` uint8 (N, size, size, 3), `labels`
    int (N,), `logits` float32 (N, classes) by form."""

    images: np.ndarray
    labels: np.ndarray
    logits: dict[str, np.ndarray]

    def probabilities(self, form: str) -> np.ndarray:
        powers = np.exp(self.logits[form] - self.logits[form].max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def top1(self, form: str) -> float:
        """Per cent of right answers."""
        return 100 * float(np.mean(self.logits[form].argmax(axis=1) == self.labels))

    def apart(self, form: str, other: str) -> float:
        """The largest difference between two logits."""
        return float(np.abs(self.logits[form] - self.logits[other]).max())

    def same(self, form: str, other: str) -> float:
        """Per cent of the pictures for which both say the same class."""
        a, b = (self.logits[name].argmax(axis=1) for name in (form, other))
        return 100 * float(np.mean(a == b))


def answers(prefix: str | Path, epoch: int, file: Path, dtype: str) -> Answers:
    """The logits of every form of a checkpoint for its validation pictures, also kept in `file`
    (.npz). Raises UserError when the checkpoint or its data cannot be used."""
    done = trained_as(prefix, epoch)
    doing = "every form answers"
    words = ["answers", str(prefix), str(epoch), str(file), TRAINING, FOLDED]
    words += [folded(dtype)] if folded(dtype) != FOLDED else []
    names = measuring.ask(IN_TORCH, words, launch.rank_environment(done), doing)
    with np.load(file) as arrays:
        logits = {name: arrays[f"logits{place}"] for place, name in enumerate(names)}
        return Answers(arrays["images"], arrays["labels"], logits)


@dataclass(frozen=True)
class Turns:
    """Seconds per batch by form; entry i of every list was measured in round i."""

    seconds: dict[str, list[float]]
    experiment: Experiment

    def pair(self, first: str, second: str) -> Pairs:
        """Two of the forms as pairs: the ratio is the second's time over the first's."""
        chosen = {name: self.seconds[name] for name in (first, second)}
        return Pairs(first, second, chosen, self.experiment)


def compare(experiment: Experiment, forms: Sequence[str], rounds: int = 10) -> Turns:
    """Time a batch of random images in each form, in turns, on random weights; a line per round.

    Profile and precision of the session hold where none is given. Raises UserError when a process
    that measures fails.
    """
    here = session.current()
    asked = replace(experiment, loader="synthetic", dtype="float32", no_metrics=True, n=1)
    if here is not None and asked.profile == "auto":
        asked = replace(asked, profile=here.profile)
    done = resolve(asked, machine(), asked.num_classes or 1000).experiment
    slot, begin = output.Slot(), time.monotonic()

    def tell(line: str) -> None:
        slot.html(f'<div class="dim">{line}</div>', line)

    found: dict[str, list[float]] = {form: [] for form in forms}
    env = launch.rank_environment(done)
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for module in (IN_TORCH, IN_ONNX):
            own = [form for form in forms if (form == ONNX) == (module == IN_ONNX)]
            if own:
                head = ["speed", *own, "--"] if module == IN_TORCH else []
                worker = stack.enter_context(Worker(module, [*head, to_json(done)], env))
                workers |= dict.fromkeys(own, worker)
        for worker in dict.fromkeys(workers.values()):
            worker.hear(lambda _: tell(f"starting, {time.monotonic() - begin:.0f} s"))
        for round_ in range(-WARM_UP, rounds):
            if round_ > 0 and time.monotonic() - begin > LIMIT_S:
                break
            doing = f"round {round_ + 1} of {rounds}" if round_ >= 0 else "warming up"
            tell(doing)
            for form in forms:
                workers[form].say(form)
                value = workers[form].hear(lambda s, doing=doing: tell(f"{doing}, {s:.0f} s"))  # type: ignore[misc]
                if round_ >= 0:
                    found[form].append(value)
    count = len(found[forms[0]])
    tell(f"{count} rounds in {time.monotonic() - begin:.0f} s")
    return Turns(found, done)

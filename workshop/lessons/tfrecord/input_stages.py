"""One input pipeline in front of one device, with another stage switched on in each turn.

    measured = compare(experiment)

The variants take turns in one process of its own, which TensorFlow leaves with it: a slow moment of
the machine then hits all of them, and the ratio of two variants is taken turn by turn.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rn50lib import launch
from rn50lib.config import Experiment, from_json, resolve, to_json
from rn50lib.hardware import machine
from workshop import output, session
from workshop.turns import Worker

BY_HAND = "a Python loop"
MODULE = "workshop.lessons.tfrecord.input_stages"
LIMIT_S = 40.0  # no round begins later, so that a cell ends in time on a slow machine too


@dataclass(frozen=True)
class Measured:
    """Images per second and the share of the loop in which the device worked, by variant; entry i
    of every list was measured in round i."""

    rates: dict[str, list[float]]
    busy: dict[str, list[float]]
    experiment: Experiment

    @property
    def variants(self) -> list[str]:
        return list(self.rates)

    @property
    def rounds(self) -> int:
        return min(map(len, self.rates.values()))

    def rate(self, variant: str) -> float:
        """Images per second, the median of the rounds."""
        return median(self.rates[variant])

    def share(self, variant: str) -> float:
        """Per cent of the time in which the device worked, the median of the rounds."""
        return 100 * median(self.busy[variant])

    def ratios(self, variant: str, before: str) -> list[float]:
        """How many times as fast as another variant, a value per round."""
        pairs = zip(self.rates[variant], self.rates[before], strict=False)
        return [a / b for a, b in pairs]

    def rows(self) -> list[list[Any]]:
        """(variant, img/s, device at work in per cent, times the one before, from, to)."""
        rows: list[list[Any]] = []
        for i, variant in enumerate(self.variants):
            row = [variant, self.rate(variant), self.share(variant), None, None, None]
            if i:
                ratios = self.ratios(variant, self.variants[i - 1])
                row[3:] = [median(ratios), min(ratios), max(ratios)]
            rows.append(row)
        return rows


def compare(
    experiment: Experiment,
    rounds: int = 5,
    steps: int = 12,
    warm_up: int = 3,
    limit_s: float = LIMIT_S,
) -> Measured:
    """Time `steps` training steps with each variant of the input, in turns, with a line per turn.

    A turn begins with `warm_up` steps that are not counted: the first one fills the shuffle buffer.
    Profile and data come from the session where they are not given. After `limit_s` seconds no
    second or later round begins. Raises UserError when the process that measures fails.
    """
    done = resolved(replace(experiment, backend="tensorflow", no_metrics=True))
    slot = output.Slot()

    def tell(line: str) -> None:
        slot.html(f'<div class="dim">{line}</div>', line)

    tell("the process that measures is starting")
    begin = time.monotonic()
    words = [str(steps), str(warm_up), to_json(done)]
    with Worker(MODULE, words, launch.rank_environment(done)) as worker:
        names: list[str] = worker.hear(lambda s: tell(f"TensorFlow is starting: {s:.0f} s"))
        rates: dict[str, list[float]] = {name: [] for name in names}
        busy: dict[str, list[float]] = {name: [] for name in names}
        for round_ in range(rounds):
            if round_ and time.monotonic() - begin > limit_s:
                break
            for name in names:
                worker.say(name)
                doing = f"round {round_ + 1} of {rounds}: {name}"
                found = worker.hear(lambda s, doing=doing: tell(f"{doing}, {s:.0f} s"))  # type: ignore[misc]
                rates[name].append(found["ips"])
                busy[name].append(found["busy"])
                tell(f"{doing}, {found['ips']:,.0f} img/s")
    tell(f"{min(map(len, rates.values()))} rounds in {time.monotonic() - begin:.0f} s")
    return Measured(rates, busy, done)


def resolved(experiment: Experiment) -> Experiment:
    """An experiment with every axis filled in, as a run from this notebook would have it."""
    from rn50lib.records.source import open_source

    asked = replace(experiment, **session.session_fields(experiment.given()))
    root = Path(str(asked.data_root))
    classes = len(open_source(root, "train", asked.data_format or "auto").classes)
    return resolve(asked, machine(), experiment.num_classes or classes).experiment


# --- in the process that measures -----------------------------------------------------------------


def main(argv: list[str]) -> int:
    """Says the variants' names, then times one for every name on stdin."""
    from rn50lib import comm
    from rn50lib.backends import build_step
    from rn50lib.records.source import open_source
    from workshop.lessons.tfrecord.feeding import Feeding

    launch.die_with_parent()
    steps, warm_up = map(int, argv[:2])
    done = from_json(argv[2])
    source = open_source(Path(done.data_root), "train", done.data_format)
    examples = min(len(source), done.num_examples or len(source))
    rest = (done, source, "train", examples, 0, 1)
    feeding = Feeding(*rest)
    if len(feeding) < warm_up + steps:
        sys.exit(
            f"an epoch has {len(feeding)} steps of {done.batch_size} images, and a turn takes"
            f" {warm_up + steps}: use a smaller batch"
        )
    step = build_step(done, done.to_network(), comm.connect())
    from rn50lib.pipelines.tf_data import TfData, stages  # TensorFlow comes after its settings

    step.train_step(next(feeding.epoch(0)), 0.0)  # the graph is traced here
    step.read_sums()
    pipelines: dict[str, Any] = {BY_HAND: feeding}
    pipelines |= {name: TfData(*rest, found) for name, found in stages().items()}
    print(json.dumps(list(pipelines)), flush=True)
    for epoch, name in enumerate(sys.stdin):
        found = turn(pipelines[name.strip()], step, epoch, steps, warm_up)
        if done.step is not None:  # what the device needs for these images, without oversleeping
            found["busy"] = found["ips"] / done.step
        print(json.dumps(found), flush=True)
    return 0


def turn(pipeline: Any, step: Any, epoch: int, steps: int, warm_up: int) -> dict[str, float]:
    """Train `steps` steps: images per second, and the share of the time not spent waiting for a
    batch. Each step is waited for, as in the slides' loop: nothing overlaps but by the pipeline."""
    batches = pipeline.epoch(epoch)
    for _ in range(warm_up):
        step.train_step(next(batches), 0.0)
    step.read_sums()
    waited, images = 0.0, 0
    begin = time.perf_counter()
    for _ in range(steps):
        before = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - before
        step.train_step(batch, 0.0)  # the same work, and the weights stay where they are
        step.read_sums()  # waits for the device
        images += batch.valid
    seconds = time.perf_counter() - begin
    batches.close()
    return {"ips": images / seconds, "busy": 1 - waited / seconds}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

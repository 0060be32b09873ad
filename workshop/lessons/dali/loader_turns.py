"""Loaders measured by turns: alone, and in front of a device of a given speed.

    measured = compare(experiment, LOADERS, device=1442.6)

Each has a process of its own with its framework; only one of them works at a time. A slow moment
of the machine then hits all of them, and ratios are taken round by round.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rn50lib import launch
from rn50lib.config import Experiment, from_json, has_dali, resolve, to_json
from rn50lib.hardware import machine
from workshop import output, session
from workshop.lessons.tfrecord.input_stages import resolved
from workshop.turns import Worker

PYTORCH, TF_DATA, DALI, ON_CPU = "PyTorch", "tf.data", "DALI", "DALI on the CPU"
MODEL = "the model"
MODULE = "workshop.lessons.dali.loader_turns"
LIMIT_S = 40.0  # no round begins later, so that a cell ends in time on a slow machine too


@dataclass(frozen=True)
class Turns:
    """Images per second; entry i of every list was measured in round i. `alone` and `paced` are by
    loader, `model` is the network's training step on images that cost nothing."""

    alone: dict[str, list[float]]
    paced: dict[str, list[float]]
    model: list[float]
    experiment: Experiment

    @property
    def rounds(self) -> int:
        return min(map(len, self.alone.values()))

    def rate(self, loader: str) -> float:
        """Images per second of a loader alone, the median of the rounds."""
        return median(self.alone[loader])

    def in_front(self, loader: str) -> float:
        """The same in front of the paced device."""
        return median(self.paced[loader])

    def ratios(self, loader: str, other: str) -> list[float]:
        """How many times as fast as another loader, a value per round."""
        pairs = zip(self.alone[loader], self.alone[other], strict=False)
        return [a / b for a, b in pairs]


def loaders() -> dict[str, dict[str, Any]]:
    """The loaders that this machine has, as fields of an experiment, by name.

    With a GPU, DALI is there twice: decoding on it, and on the CPU.
    """
    found: dict[str, dict[str, Any]] = {PYTORCH: {"backend": "torch", "loader": "native"}}
    if importlib.util.find_spec("tensorflow") is not None:
        found[TF_DATA] = {"backend": "tensorflow", "loader": "native"}
    if has_dali():
        found[DALI] = {"backend": "torch", "loader": "dali"}
        if machine().gpus:
            found[ON_CPU] = found[DALI]
    return found


def compare(
    experiment: Experiment,
    chosen: Mapping[str, Mapping[str, Any]],
    device: float,
    rounds: int = 5,
    steps: int = 12,
    warm_up: int = 4,
    model: Experiment | None = None,
    limit_s: float = LIMIT_S,
) -> Turns:
    """Time `steps` batches of each loader alone and in front of a device paced at `device` images
    per second, and a step of `model` where it is given; a line per turn.

    Profile and data come from the session where they are not given. Raises UserError when a process
    that measures fails.
    """
    slot, begin = output.Slot(), time.monotonic()

    def tell(line: str) -> None:
        slot.html(f'<div class="dim">{line}</div>', line)

    found: dict[str, dict[str, list[float]]] = {"alone": {}, "paced": {}, "model": {MODEL: []}}
    words = [str(steps), str(warm_up), str(device)]
    with contextlib.ExitStack() as stack:
        asked: list[tuple[str, str, Worker]] = []
        for name, fields in chosen.items():
            done = resolved(replace(experiment, **fields))
            worker = stack.enter_context(_worker(done, words, name == ON_CPU))
            for mode in ("alone", "paced"):
                found[mode][name] = []
                asked.append((mode, name, worker))
        if model is not None:
            bare = replace(model, loader="synthetic", no_metrics=True, n=1)
            bare = replace(bare, **session.session_fields(bare.given()))
            net = resolve(bare, machine(), bare.num_classes or 1000).experiment
            worker = stack.enter_context(_worker(net, ["1", "1", "1"], False))
            asked.append(("model", MODEL, worker))
        for worker in dict.fromkeys(worker for _, _, worker in asked):  # they start side by side
            worker.hear(lambda _: tell(f"starting, {time.monotonic() - begin:.0f} s"))
        for round_ in range(rounds):
            if round_ and time.monotonic() - begin > limit_s:
                break
            for mode, name, worker in asked:
                what = f"{name}, {mode}" if mode != "model" else name
                doing = f"round {round_ + 1} of {rounds}: {what}"
                worker.say(mode)
                ips = worker.hear(lambda s, doing=doing: tell(f"{doing}, {s:.0f} s"))  # type: ignore[misc]
                found[mode][name].append(ips)
                tell(f"{doing}, {ips:,.0f} img/s")
    first = next(iter(chosen.values()))
    measured = Turns(
        found["alone"],
        found["paced"],
        found["model"][MODEL],
        resolved(replace(experiment, **first)),
    )
    tell(f"{measured.rounds} rounds in {time.monotonic() - begin:.0f} s")
    return measured


def _worker(done: Experiment, words: list[str], on_cpu: bool) -> Worker:
    env = launch.rank_environment(done)
    if on_cpu:
        env["CUDA_VISIBLE_DEVICES"] = ""
        done = replace(done, profile="cpu", dtype="float32", loss_scale=None)
    return Worker(MODULE, [*words, to_json(done)], env)


# --- in the process that measures -----------------------------------------------------------------


def main(argv: list[str]) -> int:
    """Says "ready", then times a turn for every line on stdin: alone, paced or model."""
    from rn50lib import comm
    from rn50lib.backends import build_step
    from rn50lib.backends.paced import PacedStep
    from rn50lib.pipelines import open_pipeline
    from rn50lib.records.source import open_source

    launch.die_with_parent()
    steps, warm_up, device = int(argv[0]), int(argv[1]), float(argv[2])
    done = from_json(argv[3])
    source = None
    if done.loader != "synthetic":
        source = open_source(Path(done.data_root), "train", done.data_format)
    here = comm.connect()
    pipeline = open_pipeline(done, source, "train", 0, 1)
    model = build_step(done, done.to_network(), here) if source is None else None
    print(json.dumps("ready"), flush=True)
    for epoch, line in enumerate(sys.stdin):
        mode = line.strip()
        step = {"alone": None, "paced": PacedStep(device, here), "model": model}[mode]
        print(json.dumps(turn(pipeline, step, epoch, steps, warm_up)), flush=True)
    pipeline.close()
    return 0


def turn(pipeline: Any, step: Any, epoch: int, steps: int, warm_up: int) -> float:
    """Images per second of `steps` batches, each given to the step where there is one."""
    batches = forever(pipeline, epoch)
    images = 0
    for count in range(-warm_up, steps):
        if count == 0:
            if step is not None:
                step.read_sums()  # waits for the device
            begin, images = time.perf_counter(), 0
        batch = next(batches)
        if step is not None:
            step.train_step(batch, 0.0)  # the same work, and the weights stay where they are
        images += batch.valid
    if step is not None:
        step.read_sums()
    seconds = time.perf_counter() - begin
    batches.close()
    return images / seconds


def forever(pipeline: Any, epoch: int) -> Any:
    """The batches of an epoch and those that follow it."""
    while True:
        yield from pipeline.epoch(epoch)
        epoch += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

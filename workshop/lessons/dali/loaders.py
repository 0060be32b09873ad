"""Loaders measured by turns: alone, and in front of a device of a given speed.

    measured = compare(experiment, loaders(), device=1442.6)

Each has a process of its own with its framework; only one of them works at a time. A slow moment
of the machine then hits all of them, and ratios are taken round by round.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rn50 import launch
from rn50.checks import has_dali
from rn50lib.config import TrainConfig
from rn50lib.hardware import machine
from workshop import output, session
from workshop.lessons import figures
from workshop.lessons.figures import short
from workshop.worker import Worker, in_turns, pack, unpack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PYTORCH, TF_DATA, DALI, ON_CPU = "PyTorch", "tf.data", "DALI", "DALI on the CPU"
MODEL = "the model"


@dataclass(frozen=True)
class LoaderRates:
    """Images per second; entry i of every list was measured in round i. `alone` and `paced` are by
    loader, `model` is the network's training step on images that cost nothing."""

    alone: dict[str, list[float]]
    paced: dict[str, list[float]]
    model: list[float]
    experiment: TrainConfig

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
    given: Mapping[str, Any],
    chosen: Mapping[str, Mapping[str, Any]],
    device: float,
    rounds: int = 5,
    steps: int = 12,
    warm_up: int = 4,
    model: Mapping[str, Any] | None = None,
) -> LoaderRates:
    """Time `steps` batches of each loader alone and in front of a device paced at `device` images
    per second, and a step of `model` where it is given; a line per turn.

    Profile and data come from the session where they are not given. Raises UserError when a process
    that measures fails.
    """
    slot = output.Slot()
    configs = {n: session.resolve(given, **f) for n, f in chosen.items()}
    with contextlib.ExitStack() as stack:

        def start(config: TrainConfig, name: str, steps: int, warm_up: int) -> Worker:
            env = launch.rank_environment(config)
            if name == ON_CPU:
                env["CUDA_VISIBLE_DEVICES"] = ""
                config = replace(config, profile="cpu", dtype="float32", loss_scale=None)
            arguments = {"config": pack(config), "steps": steps, "warm_up": warm_up}
            function = "workshop.lessons.dali.loaders:timer"
            return stack.enter_context(Worker(function, env, slot, device=device, **arguments))

        turns: dict[str, Callable[..., float]] = {}
        workers = []
        for name, config in configs.items():  # they start side by side
            workers.append(start(config, name, steps, warm_up))
            for mode in ("alone", "paced"):
                turns[f"{name}, {mode}"] = partial(workers[-1].ask, mode)
        if model is not None:
            bare = session.resolve(model, loader="synthetic", no_metrics=True, n=1)
            workers.append(start(bare, MODEL, 1, 1))
            turns[MODEL] = partial(workers[-1].ask, "model")
        for worker in workers:
            worker.wait("the loaders are starting")
        found = in_turns(turns, rounds, slot)
    alone, paced = (
        {name: found[f"{name}, {mode}"] for name in configs} for mode in ("alone", "paced")
    )
    return LoaderRates(alone, paced, found.get(MODEL, []), next(iter(configs.values())))


def figure(measured: LoaderRates, device: float) -> tuple[Figure, str]:
    """Bars of the loaders and of the model, with the device's speed as a line; and how busy each
    loader keeps a device of that speed."""
    rates = dict(measured.alone)
    if measured.model:
        rates = {f"{MODEL}, alone": measured.model, **rates}
    at_work = {name: 100 * measured.in_front(name) / device for name in measured.alone}
    best = max(measured.alone, key=measured.rate)
    text = (
        f"{best} is the fastest here, with {short(measured.rate(best))} images per second alone; a"
        f" device paced at {device:,.1f} works {at_work[best]:.0f} % of the time behind it."
    )
    if measured.model:
        model = median(measured.model)
        text += (
            f" This machine's own model takes {short(model)} images per second,"
            f" {measured.rate(best) / model:.1f} times fewer than this loader gives."
        )
    return figures.rates(rates, at_work, f"paced at {device:,.1f} img/s", device), text


# --- in the process -------------------------------------------------------------------------------


def timer(
    config: dict[str, Any], steps: int, warm_up: int, device: float
) -> Callable[[str], float]:
    """Each call times a turn: alone, paced or model."""
    from rn50lib import distributed as comm
    from rn50lib.data import open_pipeline
    from rn50lib.data.source import open_source
    from rn50lib.train_step import PacedStep, build_step

    done = unpack(config)
    source = None
    if done.loader != "synthetic":
        source = open_source(Path(done.data_root), "train", done.data_format)
    here = comm.connect()
    pipeline = open_pipeline(done, source, "train", 0, 1)
    behind = {
        "alone": None,
        "paced": PacedStep(device, here),
        "model": build_step(done, done.to_network(), here) if source is None else None,
    }
    epochs = itertools.count()
    return lambda mode: turn(pipeline, behind[mode], next(epochs), steps, warm_up)


def turn(pipeline: Any, step: Any, epoch: int, steps: int, warm_up: int) -> float:
    """Images per second of `steps` batches, each given to the step where there is one."""
    batches = forever(pipeline, epoch)
    images = 0
    for count in range(-warm_up, steps):
        if count == 0:
            if step is not None:
                step.pop_metrics()  # waits for the device
            begin, images = time.perf_counter(), 0
        batch = next(batches)
        if step is not None:
            step.train_step(batch, 0.0)  # the same work, and the weights stay where they are
        images += batch.valid
    if step is not None:
        step.pop_metrics()
    seconds = time.perf_counter() - begin
    batches.close()
    return images / seconds


def forever(pipeline: Any, epoch: int) -> Any:
    """The batches of an epoch and those that follow it."""
    while True:
        yield from pipeline.epoch(epoch)
        epoch += 1

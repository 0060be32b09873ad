"""The forms in which one network predicts: as it trains, folded, in 16 bits, by ONNX Runtime.

    found = answers(prefix, epoch, file, "bfloat16")          # their logits for the same pictures
    timed = compare(given, (TRAINING, FOLDED), rounds=10) # their seconds a batch, in turns

A form is its kind and its precision: "folded, bfloat16". PyTorch and ONNX Runtime have a process
each.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rn50 import launch
from rn50.predict import trained_as
from rn50lib.config import TrainConfig
from workshop import output, session
from workshop.pairs import Pairs
from workshop.worker import Worker, ask, in_turns, pack, unpack

TRAINING, FOLDED, ONNX = "training form, float32", "folded, float32", "ONNX Runtime, float32"
WARM_UP = 2
TURN_S = 0.05  # a turn repeats the batch for about so long


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

    def max_difference(self, form: str, other: str) -> float:
        """The largest difference between two logits."""
        return float(np.abs(self.logits[form] - self.logits[other]).max())

    def same(self, form: str, other: str) -> float:
        """Per cent of the pictures for which both say the same class."""
        a, b = (self.logits[name].argmax(axis=1) for name in (form, other))
        return 100 * float(np.mean(a == b))


def answers(prefix: str | Path, epoch: int, file: Path, dtype: str, every: int = 1) -> Answers:
    """The logits of every form of a checkpoint for one in `every` of its validation pictures, also
    kept in `file` (.npz). Raises UserError when the checkpoint or its data cannot be used."""
    names = list(dict.fromkeys((TRAINING, FOLDED, folded(dtype))))
    ask(
        "workshop.lessons.inference.worker:answers",
        launch.rank_environment(trained_as(prefix, epoch)), "every form answers",
        prefix=str(prefix), epoch=epoch, file=str(file), forms=names, every=every,
    )  # fmt: skip
    with np.load(file) as arrays:
        logits = {name: arrays[f"logits{place}"] for place, name in enumerate(names)}
        return Answers(arrays["images"], arrays["labels"], logits)


@dataclass(frozen=True)
class Timed:
    """Seconds per batch by form; entry i of every list was measured in round i."""

    seconds: dict[str, list[float]]
    experiment: TrainConfig

    def pair(self, first: str, second: str) -> Pairs:
        """Two of the forms as pairs: the ratio is the second's time over the first's."""
        chosen = {name: self.seconds[name] for name in (first, second)}
        return Pairs(first, second, chosen, self.experiment)


def compare(given: Mapping[str, Any], forms: Sequence[str], rounds: int = 10) -> Timed:
    """Time a batch of random images in each form, in turns, on random weights; a line per round.

    Profile and precision of the session hold where none is given. Raises UserError when a process
    that measures fails.
    """
    config = session.resolve(given, loader="synthetic", dtype="float32", no_metrics=True, n=1)
    slot = output.Slot()
    env = launch.rank_environment(config)
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for function in ("inference.worker:timer", "inference.forms:onnx_timer"):
            own = [form for form in forms if (form == ONNX) == ("onnx" in function)]
            if own:
                arguments = {"config": pack(config), "forms": own}
                worker = Worker(f"workshop.lessons.{function}", env, slot, **arguments)
                workers |= dict.fromkeys(own, stack.enter_context(worker))
        for worker in dict.fromkeys(workers.values()):
            worker.wait("the forms are being made")
        asks = {form: partial(workers[form].ask, form) for form in forms}
        found = in_turns(asks, rounds, slot, WARM_UP)
    return Timed(found, config)


# --- in the process -------------------------------------------------------------------------------


def repeated(work: Callable[[int], float]) -> int:
    """How often a turn of about TURN_S repeats what `work(times)` times, seconds of one."""
    work(2)
    return max(1, min(200, round(TURN_S / work(1))))


def random_images(config: TrainConfig) -> np.ndarray:
    """A batch, uint8 (batch, pixels, pixels, 3)."""
    shape = (config.batch_size, config.image_shape, config.image_shape, 3)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def onnx_timer(config: dict[str, Any], forms: list[str]) -> Callable[[str], float]:
    """ONNX Runtime with the same network and batch, exported: each call gives seconds a batch."""
    import onnxruntime

    from rn50 import export

    done = unpack(config)
    net = done.to_network()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = done.threads
    made = export.to_onnx(export.folded(net, net.initial_arrays(done.seed), done.image_shape))
    there = onnxruntime.get_available_providers()
    providers = [f"{p}ExecutionProvider" for p in ("CUDA", "CPU")]
    chosen = [name for name in providers if name in there]
    session = onnxruntime.InferenceSession(made, options, providers=chosen)
    images = random_images(done)

    def repeat(times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            session.run(["logits"], {"images": images})
        return (time.perf_counter() - begin) / times

    times = repeated(repeat)
    return lambda form: repeat(times)

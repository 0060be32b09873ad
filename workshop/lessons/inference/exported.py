"""Exported checkpoints run by programs that know nothing of this library."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from workshop import output
from workshop.errors import RunFailed

ONNX_RUNTIME = """
import numpy, onnxruntime
images = numpy.load("images.npy")
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
(logits,) = session.run(["logits"], {"images": images})
numpy.save("onnx.npy", logits)
"""

TENSORFLOW = """
import numpy, tensorflow
images = numpy.load("images.npy")
model = tensorflow.saved_model.load("model").signatures["serving_default"]
logits = model(images=tensorflow.constant(images))["logits"]
numpy.save("tensorflow.npy", logits.numpy())
"""

SAY_S = 3.0


def run(program: str, result: str, folder: Path) -> np.ndarray:
    """The array that a program in Python leaves as `result` in `folder`.

    It runs isolated (`python -I`): from the environment it has nothing but the installed packages.
    Raises RunFailed with what it said when it fails.
    """
    slot, begin = output.Slot(), time.monotonic()

    def show(text: str) -> None:
        slot.html(f'<div class="dim">{text}</div>', text)

    place = folder / result
    place.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", program],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = _wait(process, lambda: show(f"working, {time.monotonic() - begin:.0f} s"))
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise RunFailed(f"the program ended with status {process.returncode}:", said[-1500:])
    show(f"done in {time.monotonic() - begin:.0f} s")
    return np.asarray(np.load(place))


def _wait(process: subprocess.Popen[str], waiting: Callable[[], None]) -> str:
    """What it said on stderr, when it has ended."""
    while True:
        waiting()
        try:
            return process.communicate(timeout=SAY_S)[1]
        except subprocess.TimeoutExpired:
            continue

"""In a process of its own, with a run's settings: `python -m rn50lib.diagnose.probe SECONDS FLAGS`.

Prints, after about twice so many seconds, what the device reaches at its best and what each stage
of the input takes for an image on one core, as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rn50lib.experiment import FullExperiment
from rn50lib.pipelines.pictures import Pictures
from rn50lib.records import order
from rn50lib.records.source import Source, open_source

FEWEST_IMAGES, MOST_IMAGES = 16, 512
SHRINKS = (8, 4, 2)  # how much smaller libjpeg decodes where the crop allows it


def stages(done: FullExperiment, limit_s: float) -> dict[str, float]:
    """Seconds per image of reading, decoding, augmenting and copying, one image after another.

    Images are read in the order of a run. Decoding is what is left of the time from bytes to pixels
    without the resizing and mirroring of a crop, which are timed on pixels that are there already.
    """
    split = "val" if done.only_inference else "train"
    source: Source = open_source(Path(done.data_root), split, done.data_format)
    pictures = Pictures(source, split == "train", done)
    taken = {"read": 0.0, "decode": 0.0, "augment": 0.0}
    made: list[np.ndarray] = []
    begin = time.perf_counter()
    for number in order.epoch_order(len(source), done.seed, 0)[:MOST_IMAGES]:
        index = int(number)
        start = time.perf_counter()
        data = source.read(index)
        read = time.perf_counter()
        pixels = pictures.from_bytes(data, 0, index)
        ready = time.perf_counter()
        augment = resize_seconds(pictures, data, index)
        taken["read"] += read - start
        taken["augment"] += augment
        taken["decode"] += max(0.0, ready - read - augment)
        made.append(pixels)
        if ready - begin > limit_s and len(made) >= FEWEST_IMAGES:
            break
    taken = {name: value / len(made) for name, value in taken.items()}
    batch = [made[row % len(made)] for row in range(done.batch_size)]
    start = time.perf_counter()
    together = np.stack(batch)
    taken["copy"] = (time.perf_counter() - start) / len(batch)
    if done.backend == "torch":
        from rn50lib.backends.torch import peak

        taken["copy"] += peak.copy_seconds(together) / len(batch)
    return taken


def resize_seconds(pictures: Pictures, data: bytes, index: int) -> float:
    """Seconds to resize and mirror the crop of an image whose pixels are there."""
    import io

    with Image.open(io.BytesIO(data)) as header:
        width, height = header.size
    (left, top, wide, high), mirror = pictures.choose(0, index, width, height)
    shrink = next((s for s in SHRINKS if min(wide, high) // s >= pictures.size), 1)
    image = Image.new("RGB", (-(-width // shrink), -(-height // shrink)))
    part = (left / shrink, top / shrink, (left + wide) / shrink, (top + high) / shrink)
    start = time.perf_counter()
    pixels = np.asarray(
        image.resize((pictures.size, pictures.size), Image.Resampling.BILINEAR, box=part)
    )
    np.ascontiguousarray(pixels[:, ::-1] if mirror else pixels)
    return time.perf_counter() - start


def peak(done: FullExperiment, limit_s: float) -> dict[str, float] | None:
    """FLOP per second that the device reaches, None for a step that computes nothing or where
    PyTorch, which measures it for both frameworks, is not there."""
    if done.step is not None:
        return None
    try:
        from rn50lib.backends.torch import peak as measured
    except ImportError:
        return None
    return measured.peak(done, limit_s)


def main(argv: list[str]) -> int:
    from rn50lib import launch
    from rn50lib.cli import experiment_parser, parse_experiment
    from rn50lib.errors import UserError
    from rn50lib.experiment import resolve
    from rn50lib.hardware import machine

    launch.die_with_parent()
    try:
        limit_s = float(argv[0])
        asked, _ = parse_experiment(experiment_parser("train"), argv[1:])
        done = resolve(asked, machine(), asked.num_classes).experiment
        found: dict[str, Any] = {"peak": peak(done, limit_s), "stages": None}
        if done.loader != "synthetic":
            found["stages"] = stages(done, limit_s)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

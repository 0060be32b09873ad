"""In a process with a run's settings: `python -m rn50.diagnose.probe SECONDS FLAGS`.

Prints, after about twice so many seconds, what the device reaches at its best and what each stage
of the input takes for an image on one core, as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from rn50lib.config import Experiment, experiment_from
from rn50lib.data import order
from rn50lib.data.source import Source, open_source
from rn50lib.preemption import die_with_parent

if TYPE_CHECKING:
    from rn50lib.data.torch_images import TorchPictures

MIN_IMAGES, MAX_IMAGES = 16, 512


def stages(done: Experiment, limit_s: float) -> dict[str, float]:
    """Seconds per image of reading, decoding, augmenting and copying, on one core, as PyTorch's
    loader does them."""
    from rn50lib.data.torch_images import TorchPictures

    split = "val" if done.only_inference else "train"
    source: Source = open_source(Path(done.data_root), split, done.data_format)
    taken = one_by_one(TorchPictures(source, split == "train", done), len(source), limit_s)
    image = np.zeros((done.image_shape, done.image_shape, 3), np.uint8)
    return taken | {"copy": copy_seconds([image.copy() for _ in range(done.batch_size)])}


def one_by_one(pictures: TorchPictures, images: int, limit_s: float) -> dict[str, float]:
    """The stages of PyTorch's loader, image by image in the order of a run.

    Decoding is what is left of the time from bytes to pixels without the resizing and mirroring of
    a crop, which are timed on pixels that are there already.
    """
    taken, made = {"read": 0.0, "decode": 0.0, "augment": 0.0}, 0
    begin = time.perf_counter()
    for number in order.epoch_order(images, pictures.seed, 0)[:MAX_IMAGES]:
        index = int(number)
        start = time.perf_counter()
        data = pictures.source.read(index)
        read = time.perf_counter()
        pictures.from_bytes(data, 0, index)
        ready = time.perf_counter()
        augment = resize_seconds(pictures, data, index)
        taken["read"] += read - start
        taken["augment"] += augment
        taken["decode"] += max(0.0, ready - read - augment)
        made += 1
        if ready - begin > limit_s and made >= MIN_IMAGES:
            break
    return {name: value / made for name, value in taken.items()}


def copy_seconds(images: list[np.ndarray]) -> float:
    """Seconds per image to put a batch together and bring it to the device."""
    from rn50.diagnose import peak

    begin = time.perf_counter()
    batch = np.stack(images)
    return (time.perf_counter() - begin + peak.copy_seconds(batch)) / len(images)


def resize_seconds(pictures: TorchPictures, data: bytes, index: int) -> float:
    """Seconds to resize and mirror the crop of an image whose pixels are there."""
    import io

    from rn50lib.data.torch_images import decoding_ratio

    with Image.open(io.BytesIO(data)) as header:
        width, height = header.size
    box, mirror = pictures.choose(0, index, width, height)
    ratio = decoding_ratio(box, pictures.spare * pictures.size)
    decoded = np.zeros((-(-height // ratio), -(-width // ratio), 3), np.uint8)
    start = time.perf_counter()
    np.ascontiguousarray(pictures.shrink(decoded, box, ratio, mirror))
    return time.perf_counter() - start


def peak(done: Experiment, limit_s: float) -> dict[str, float] | None:
    """FLOP per second that the device reaches, None for a step that computes nothing or where
    PyTorch, which measures it for both frameworks, is not there."""
    if done.step is not None:
        return None
    try:
        from rn50.diagnose import peak as measured
    except ImportError:
        return None
    return measured.peak(done, limit_s)


def main(argv: list[str]) -> int:
    from rn50lib.errors import UserError

    die_with_parent()
    try:
        limit_s = float(argv[0])
        done = experiment_from(json.loads(argv[1]), Path("the experiment"))
        found: dict[str, Any] = {"peak": peak(done, limit_s), "stages": None}
        if (done.backend, done.loader) == ("torch", "native"):
            found["stages"] = stages(done, limit_s)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

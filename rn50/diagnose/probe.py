"""The measurements that are not runs: `python -m rn50.diagnose.probe SECONDS EXPERIMENT`.

Prints the device's peak, and the seconds per image of the PyTorch loader's stages on one core,
as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.config import TrainConfig, from_dict
from rn50lib.data import sampler
from rn50lib.data.decode import open_image
from rn50lib.data.source import open_source
from rn50lib.errors import status_of
from rn50lib.preemption import die_with_parent

MIN_IMAGES, MAX_IMAGES = 16, 512


def stages(done: TrainConfig, limit_s: float) -> dict[str, float]:
    """Return the seconds per image of reading, decoding, augmenting and copying, on one core.

    Images come in the order of a run. Decoding is the time from bytes to pixels without resizing
    and mirroring, which are timed on pixels that are there already.
    """
    from rn50.diagnose.peak import copy_seconds
    from rn50lib.data.torch_loader import TorchDecoder, decoding_ratio

    split = "val" if done.only_inference else "train"
    source = open_source(Path(done.data_root), split, done.data_format)
    images = TorchDecoder(source, split == "train", done)
    taken, count = {"read": 0.0, "decode": 0.0, "augment": 0.0}, 0
    begin = time.perf_counter()
    for index in map(int, sampler.epoch_order(len(source), images.seed, 0)[:MAX_IMAGES]):
        start = time.perf_counter()
        data = source.read(index)
        read = time.perf_counter()
        images.decode(0, index, data)
        decoded = time.perf_counter()
        width, height = open_image(data, source.name(index)).size
        box, mirror = images.sample_crop(0, index, width, height)
        ratio = decoding_ratio(box, images.oversample * images.size)
        pixels = np.zeros((-(-height // ratio), -(-width // ratio), 3), np.uint8)
        resize = time.perf_counter()
        np.ascontiguousarray(images.resize_box(pixels, box, ratio, mirror))
        augment = time.perf_counter() - resize
        taken["read"] += read - start
        taken["augment"] += augment
        taken["decode"] += max(0.0, decoded - read - augment)
        count += 1
        if decoded - begin > limit_s and count >= MIN_IMAGES:
            break
    taken = {name: value / count for name, value in taken.items()}
    return taken | {"copy": copy_seconds(done)}


def measure(argv: list[str]) -> int:
    """Print the measurements."""
    limit_s, done = float(argv[0]), from_dict(json.loads(argv[1]), "the experiment")
    found: dict[str, Any] = {"peak": None, "stages": None}
    if done.step is None:
        try:
            from rn50.diagnose.peak import peak

            found["peak"] = peak(done, limit_s)
        except ImportError:  # TensorFlow without PyTorch, which measures the peak for both
            pass
    if (done.backend, done.loader) == ("torch", "native"):
        found["stages"] = stages(done, limit_s)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(status_of(lambda: measure(sys.argv[1:])))

"""The data of notebook 04: shards of all pictures, a part as raw pixels, and what is in them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from rn50lib.config import TrainConfig
from rn50lib.data.decode import Pictures, crop, open_image
from rn50lib.data.source import Source
from workshop import paths
from workshop.programs import program

SIDE = 224  # of the raw pixels, as the reference's network takes them


def make_shards(root: Path, scratch: Path) -> Path:
    """Write ROOT/tfrecord unless it is there, and show the command; returns the data root.

    Where ROOT cannot be written to, links to it stand in `scratch`, and the shards too. Several
    notebooks may do this at once: one works, the others wait.
    """
    if (root / "tfrecord" / ".complete").exists():
        return root  # no lock: the data may be shared, and read-only
    if not paths.writable(root):
        root = link(root, scratch / root.name)
    with open(root / ".tfrecord.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "tfrecord" / ".complete").exists():
            program("data_prep.tfrecord", root.name, folder=root.parent)
        with contextlib.suppress(OSError):
            (root / ".tfrecord.lock").unlink()
    return root


def link(root: Path, folder: Path) -> Path:
    """A data root whose pictures are links to those of another."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val", "records", "classes.txt"):
        if (root / name).exists() and not (folder / name).exists():
            (folder / name).symlink_to(root / name)
    return folder


def take_part(
    root: Path,
    folder: Path,
    per_class: int,
    classes: Sequence[str] = (),
    splits: Sequence[str] = ("train",),
) -> Path:
    """A data root of the first pictures of every class of `root`, or of the classes named, made
    anew, as links."""
    shutil.rmtree(folder, ignore_errors=True)  # of the links, only the links
    for split in splits:
        for source in sorted((root / split).iterdir()):
            if classes and source.name not in classes:
                continue
            target = folder / split / source.name
            target.mkdir(parents=True)
            for picture in sorted(source.iterdir())[:per_class]:
                (target / picture.name).symlink_to(picture)
    return folder


def contents(source: Source) -> set[tuple[str, int]]:
    """(hash of the picture's bytes, label) of all pictures of a split."""
    return {
        (hashlib.sha256(source.read(i)).hexdigest(), int(label))
        for i, label in enumerate(source.labels)
    }


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """How long a piece of work takes, the fastest of a few times."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found)


def rate(source: Source, experiment: TrainConfig, count: int = 48) -> float:
    """Training pictures per second on one core: read, cropped and made small, with Pillow."""
    pictures = Pictures(source, True, experiment)
    count = min(count, len(source))
    return count / seconds(lambda: [pictures.image(0, i) for i in range(count)])


def from_jpeg_and_raw(picture: bytes, size: int = SIDE, share: float = 0.3) -> list[np.ndarray]:
    """The same part of a picture, once from the JPEG and once from raw pixels of `size`, uint8.

    The part has `share` of the area of the picture's central square.
    """
    whole = open_image(picture, "the picture")
    width, height = whole.size
    square = min(width, height)
    left, top = (width - square) // 2, (height - square) // 2
    raw = crop(whole, (left, top, square, square), size, "the picture")
    inner = round(square * share**0.5)
    off = (square - inner) // 2
    box = (left + off, top + off, inner, inner)
    sharp = crop(open_image(picture, "the picture"), box, size, "the picture")
    scale = size / square
    corner = (off * scale, off * scale, (off + inner) * scale, (off + inner) * scale)
    soft = Image.fromarray(raw).resize((size, size), Image.Resampling.BILINEAR, box=corner)
    return [sharp, np.asarray(soft)]


def turned(pictures: Sequence[np.ndarray], degrees: Sequence[float]) -> list[np.ndarray]:
    """Pictures turned counter-clockwise, as `--rotate` turns them; the corners become black."""
    pairs = zip(pictures, degrees, strict=True)
    return [
        np.asarray(Image.fromarray(pixels).rotate(angle, Image.Resampling.BILINEAR))
        for pixels, angle in pairs
    ]

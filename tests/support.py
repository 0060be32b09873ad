"""Helpers for several tests: images made in milliseconds, runs in this process, tiny networks.

Each image has one flat colour that encodes its number, whatever crop is taken of it. So a test
knows which images a batch contains, without the code under test.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from rn50 import cli
from rn50.autoconfig import resolve
from rn50lib import hooks
from rn50lib.config import TrainConfig
from rn50lib.hardware import Machine

CLASSES = ("anvil", "barrel", "candle", "drum", "easel", "flute")
TRAIN_PER_CLASS = 8
VAL_PER_CLASS = 3
LAPTOP = Machine("a processor", cores=2, memory=2**33, bfloat16="", gpus=())
TINY = (
    *("--network", "tiny", "--image-shape", "32", "--batch-size", "8", "--dtype", "float32"),
    *("--threads", "1", "--data-nthreads", "0", "--recipe", "reference"),
)


def free_port() -> int:
    """Return a port that nothing listens on, below those that the kernel assigns.

    One of the kernel's may be assigned to another process before a program listens on it.
    """
    while True:
        port = random.randint(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True)
class Photos:
    """48 training and 19 validation images in 6 classes, as files and as records; read-only."""

    root: Path

    @property
    def records(self) -> Path:
        return self.root / "records"

    def files(self, split: str) -> list[Path]:
        """The images in the order of their number: sorted by class, then by name."""
        return sorted((self.root / split).rglob("*.jpg"))


def colour(number: int) -> tuple[int, int, int]:
    """The colour of image `number` (below 64): far enough from all others to survive JPEG."""
    return 16 + 28 * (number % 8), 16 + 28 * (number // 8), 128


def numbers(images_NHWC: Any) -> list[int]:
    """Return which images a batch of pixels (N, H, W, 3) shows."""
    red_green = np.asarray(images_NHWC)[..., :2].mean(axis=(1, 2))
    column, row = np.rint((red_green - 16) / 28).astype(int).T
    return list(column + 8 * row)


def write_photo(path: Path, number: int, width: int = 80, height: int = 64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), colour(number)).save(path, quality=95)


def write_few(folder: Path) -> None:
    """Write 15 training images, and 6 for validation, of three classes."""
    for split, count in (("train", 5), ("val", 2)):
        for label, name in enumerate("abc"):
            for i in range(count):
                write_photo(folder / split / name / f"{i}.jpg", 5 * label + i)


def png(
    depth: int,
    kind: int,
    samples: tuple[int, ...],
    *chunks: bytes,
    size: tuple[int, int] = (90, 60),
) -> bytes:
    """Return a PNG of one colour: bits per sample, colour type, the samples of a pixel.

    It is assembled by hand (PNG specification, 11.2); further chunks are a palette or transparency.
    """
    width, height = size
    bits = "".join(f"{sample:0{depth}b}" for sample in samples) * width
    bits += "0" * (-len(bits) % 8)
    row = b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
    content = png_chunk(b"IDAT", zlib.compress(row * height))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + content + png_chunk(b"IEND", b"")


def png_chunk(name: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check


def make_photos(root: Path) -> Photos:
    """Draw the images and pack their records."""
    from data_prep import im2rec

    for split, per_class, extra in (("train", TRAIN_PER_CLASS, 0), ("val", VAL_PER_CLASS, 1)):
        number = 0
        for c, name in enumerate(CLASSES):
            for i in range(per_class + (extra if c == 0 else 0)):
                path = root / split / name / f"{name}_{i:02d}.jpg"
                write_photo(path, number, width=48 + 4 * i, height=72 - 4 * i)
                number += 1
    with contextlib.redirect_stdout(sys.stderr):
        im2rec.ensure_records(root)
    return Photos(root)


def full(num_classes: int = len(CLASSES), **fields: Any) -> TrainConfig:
    """Return the configuration of a tiny network on a laptop without a GPU."""
    asked: dict[str, Any] = {
        "network": "tiny", "image_shape": 32, "batch_size": 4, "dtype": "float32",
        "data_nthreads": 0, "threads": 1, "recipe": "reference", "data_root": "data",
    } | fields  # fmt: skip
    return resolve(asked, LAPTOP, num_classes).config


@dataclass(frozen=True)
class Ended:
    """A verb that has ended: its exit status and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of a refused run. Fails if there is more output, or no refusal.

        If it is refused while it starts, its values are printed before, and a note.
        """
        assert self.status == 2, (self.status, self.out, self.err)
        lines = [x for x in self.err.splitlines() if not x.startswith(("  ", "note: "))]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), lines[0]
        return lines[0].removeprefix("error: ")


def run_here(capsys: Any, *args: str | os.PathLike[str]) -> Ended:
    """Run `rn50 ARGS` in this process."""
    capsys.readouterr()
    try:
        status = cli.main([os.fspath(arg) for arg in args])
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    finally:
        hooks.install(())
    shown = capsys.readouterr()
    return Ended(status, shown.out, shown.err)


def bound_by_permissions() -> list[str]:
    """Return a command prefix with which folder permissions hold even for root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"]


def until(
    true: Callable[[], Any],
    said: Callable[[], str] = lambda: "it did not happen",
    seconds: float = 240,
) -> None:
    """Wait until `true()`, which takes a few seconds on an idle machine, or fail with `said()`."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, said()
        time.sleep(0.05)


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """Fail if the code in this block leaves a process behind.

    Orphans are adopted by this process meanwhile, which separates them from those of a test that
    runs at the same time.
    """
    libc, subreaper = ctypes.CDLL(None), 36
    before = set(psutil.Process().children(recursive=True))
    libc.prctl(subreaper, 1)
    try:
        yield
        left = set(psutil.Process().children(recursive=True)) - before
        _, left = psutil.wait_procs(left, timeout=10)  # one that was killed may take a moment
        assert not left, left
    finally:
        libc.prctl(subreaper, 0)


def strict_json(path: Path) -> Any:
    """Return a JSON file, read by the standard: NaN and Infinity are refused."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{path} holds {word}, which is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def timeless(report: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a report that do not depend on the clock, the command or a resume."""
    kept = {k: v for k, v in report["metrics"].items() if k.split(".")[1] not in TIMES}
    return {"model": report["model"], "ngpus": report["ngpus"], "metrics": kept}


TIMES = ("time", "total_ips")

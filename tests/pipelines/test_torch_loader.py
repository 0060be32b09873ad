"""The native loader under PyTorch: its crops, its workers, and how much of a JPEG it decodes."""

from __future__ import annotations

import errno
import io
import itertools
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
from PIL import Image

from rn50lib.data import Batch, open_pipeline
from rn50lib.data.decode import find_frame
from rn50lib.data.source import open_source
from rn50lib.data.torch_loader import TorchDecoder
from rn50lib.errors import UserError
from tests.pipelines import test_loaders
from tests.pipelines.test_images import photograph
from tests.support import Photos, full, write_photo

pytestmark = pytest.mark.needs("torch")

read = partial(test_loaders.read, "torch")


# --- pixels ---------------------------------------------------------------------------------------


def by_position(batches: list[Batch]) -> np.ndarray:
    return np.concatenate([np.asarray(b.images) for b in batches])


def test_augmentation_does_not_depend_on_the_batch_size(textured: Path) -> None:
    source = open_source(textured, "train", "files")
    one = by_position(read(source, batch_size=1, epoch=1))
    assert np.array_equal(one, by_position(read(source, batch_size=6, epoch=1)))
    parts = [by_position(read(source, batch_size=2, epoch=1, rank=r, size=2)) for r in (0, 1)]
    together = np.stack([part.reshape(3, 2, *one.shape[1:]) for part in parts], axis=1)
    assert np.array_equal(one, together.reshape(one.shape))


# --- workers --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bad_file_in_a_worker_is_named_and_ends_all_workers(tmp_path: Path) -> None:
    for split, i in itertools.product(("train", "val"), range(8)):
        write_photo(tmp_path / split / "a" / f"{i}.jpg", i)
    (tmp_path / "train" / "a" / "7.jpg").write_bytes(b"This is not a photo. " * 60)
    with pytest.raises(UserError, match=r"train/a/7\.jpg is not an image"):
        read(open_source(tmp_path, "train"), num_classes=1, data_nthreads=2)
    assert workers() == []


@pytest.mark.slow
def test_batches_that_are_kept_do_not_change(photos: Photos) -> None:
    """The memory of a batch is used again only when nothing refers to it."""
    source = open_source(photos.root, "train", "files")
    kept = []
    for threads in (1, 0):
        pipeline = open_pipeline(full(data_nthreads=threads), source, "train", 0, 1)
        kept.append(by_position(list(pipeline.epoch(0))))
        pipeline.close()
    assert np.array_equal(*kept)


@pytest.mark.slow
def test_closing_a_pipeline_ends_its_workers(photos: Photos) -> None:
    source = open_source(photos.root, "train", "files")
    pipeline = open_pipeline(full(data_nthreads=2), source, "train", 0, 1)
    batches = pipeline.epoch(0)
    next(batches)
    assert len(workers()) == 2
    pipeline.close()  # in the middle of an epoch
    assert workers() == []


@pytest.mark.parametrize(
    ("number", "blamed"), [(None, True), (errno.EROFS, True), (errno.EMFILE, False)]
)
def test_the_temporary_folder_is_blamed_only_if_it_takes_no_socket(
    photos: Photos, monkeypatch: pytest.MonkeyPatch, number: int | None, blamed: bool
) -> None:
    monkeypatch.setattr(forkserver, "ensure_running", Mock(side_effect=OSError(number, "refused")))
    source = open_source(photos.root, "train", "files")
    with pytest.raises(UserError, match="refused.* use --data-nthreads 0") as caught:
        open_pipeline(full(data_nthreads=2), source, "train", 0, 1)
    assert ("TMPDIR" in str(caught.value)) == blamed


def workers() -> list[psutil.Process]:
    """Return the loaders' workers below this process; they are children of a fork server."""
    below = [c for child in psutil.Process().children() for c in child.children()]
    return [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


# --- the rows that a crop needs -------------------------------------------------------------------


def jpeg(width: int, height: int, **how: Any) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(photograph(width, height))).save(buffer, "JPEG", **how)
    return buffer.getvalue()


def frame_of(data: bytes) -> int:
    frame = find_frame(data)
    assert frame is not None
    return frame


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
@pytest.mark.parametrize("way", [{}, {"progressive": True}, {"restart_marker_rows": 1}])
@pytest.mark.parametrize("train", [True, False])
def test_partial_decode_matches_the_whole_image(
    photos: Photos, train: bool, ratio: int, subsampling: str, way: dict[str, Any]
) -> None:
    import simplejpeg

    decoder = TorchDecoder(open_source(photos.root, "train", "files"), train, full())
    width, height = 139, 117
    data = jpeg(width, height, subsampling=subsampling, **way)
    smaller = {"min_height": -(-height // ratio), "min_width": -(-width // ratio)}
    smaller |= {"fastdct": train, "fastupsample": train}
    whole = simplejpeg.decode_jpeg(data, min_factor=ratio, **smaller)
    for bottom in (1, 15, 16, 17, 63, 64, 100, 115, 116, 117):
        rows = decoder.decode_rows(data, frame_of(data), bottom, ratio)
        above = -(-bottom // ratio)
        assert rows.shape[1:] == whole.shape[1:]
        np.testing.assert_array_equal(rows[:above], whole[:above])
        if not way and bottom == 15 and ratio == 1:
            assert len(rows) < 20  # the promise is not kept by decoding everything


# --- synthetic ------------------------------------------------------------------------------------


def test_synthetic_images_are_reproducible() -> None:
    made = open_pipeline(full(loader="synthetic", benchmark_iters=3), None, "train", 0, 1)
    batches = list(made.epoch(0))
    assert len(made) == len(batches) == 3 and made.examples == 12
    assert batches[0].images.shape == (4, 32, 32, 3) and batches[0].images.dtype == np.uint8
    assert batches[0].labels.dtype == np.int32 and set(batches[0].labels) <= set(range(6))
    assert all(np.array_equal(b.images, batches[0].images) for b in batches)
    made.close()
    made = open_pipeline(full(loader="synthetic", num_examples=11), None, "train", 0, 1)
    assert len(made) == 2  # batches of 4: as with stored images, what fills none is left out

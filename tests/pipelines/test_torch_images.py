"""What the native loader decodes under PyTorch: the rows that a crop needs, and none below them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rn50lib.data.decode import find_frame
from rn50lib.data.source import open_source
from rn50lib.data.torch_loader import TorchPictures
from rn50lib.errors import UserError
from tests.pipelines.test_images import photograph
from tests.support import Photos, full

pytestmark = pytest.mark.needs("torch", "simplejpeg")


@pytest.fixture
def pictures(photos: Photos) -> TorchPictures:
    return TorchPictures(open_source(photos.root, "train", "files"), True, full())


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
def test_rows_above_the_bottom_are_the_whole_image_s(
    photos: Photos, train: bool, ratio: int, subsampling: str, way: dict[str, Any]
) -> None:
    import simplejpeg

    pictures = TorchPictures(open_source(photos.root, "train", "files"), train, full())
    width, height = 139, 117
    data = jpeg(width, height, subsampling=subsampling, **way)
    smaller = {"min_height": -(-height // ratio), "min_width": -(-width // ratio)}
    smaller |= {"fastdct": train, "fastupsample": train}
    whole = simplejpeg.decode_jpeg(data, min_factor=ratio, **smaller)
    for bottom in (1, 15, 16, 17, 63, 64, 100, 115, 116, 117):
        rows = pictures.decode(data, frame_of(data), bottom, ratio)
        above = -(-bottom // ratio)
        assert rows.shape[1:] == whole.shape[1:]
        np.testing.assert_array_equal(rows[:above], whole[:above])
        if not way and bottom == 15 and ratio == 1:
            assert len(rows) < 20  # the promise is not kept by decoding everything


def test_damage_is_seen_where_the_crop_reaches_it(pictures: TorchPictures) -> None:
    data = bytearray(jpeg(400, 300, quality=90))
    whole = pictures.decode(bytes(data), frame_of(data), 300, 1).copy()
    at = len(data) * 6 // 10
    del data[at : at + 500]  # the rows that are left end before the image does
    with pytest.raises(ValueError):
        pictures.decode(bytes(data), frame_of(data), 290, 1)
    above = pictures.decode(bytes(data), frame_of(data), 60, 1)
    np.testing.assert_array_equal(above[:60], whole[:60])


@pytest.mark.parametrize("bottom", [20, 300])
def test_a_file_that_is_cut_off_is_damaged_whatever_the_crop(
    pictures: TorchPictures, bottom: int
) -> None:
    data = jpeg(400, 300, quality=90)[:-900]
    with pytest.raises(ValueError):
        pictures.decode(data, frame_of(data), bottom, 1)


def test_a_header_that_claims_a_huge_image_is_refused(photos: Photos) -> None:
    data = bytearray(jpeg(400, 300))
    data[frame_of(data) + 5 : frame_of(data) + 9] = b"\xff\xdc" * 2
    pictures = TorchPictures(open_source(photos.root, "train", "files"), True, full())
    with pytest.raises(UserError, match="not an image that can be decoded"):
        pictures.part(bytes(data), 0, 0)

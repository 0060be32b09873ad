"""The headers of images, against Pillow, which decodes them."""

import io

import pytest
from PIL import Image

from data_prep.encoding import image_info

CHANNELS = {"L": 1, "RGB": 3, "CMYK": 4, "LA": 2, "RGBA": 4, "P": 3}


def encode(mode, size, form, **settings):
    out = io.BytesIO()
    Image.new(mode, size).save(out, form, **settings)
    return out.getvalue()


@pytest.mark.parametrize("size", [(1, 1), (500, 375), (7, 4000)])
@pytest.mark.parametrize(
    ("mode", "form", "settings"),
    [
        ("L", "JPEG", {}),
        ("RGB", "JPEG", {}),
        ("CMYK", "JPEG", {}),
        ("RGB", "JPEG", {"progressive": True, "comment": b"x" * 300}),
        ("RGB", "JPEG", {"exif": b"Exif\0\0" + b"\xff\xc0" * 99, "icc_profile": b"y" * 70000}),
        ("RGB", "PNG", {}),
        ("RGBA", "PNG", {}),
        ("LA", "PNG", {}),
        ("P", "PNG", {}),
    ],
)
def test_same_as_pillow(size, mode, form, settings):
    found = image_info(encode(mode, size, form, **settings))
    assert found[:4] == (form, *size, CHANNELS[mode])
    assert found.bits == (1 if mode == "P" else 8)  # Pillow stores a palette of one colour so


def test_every_cut_of_the_header_gives_none():
    data = encode("RGB", (50, 30), "JPEG")
    whole = data.index(b"\xff\xc0") + 10  # marker, length, precision, height, width, channels
    assert [image_info(data[:cut]) is None for cut in range(whole)] == [True] * whole
    assert image_info(data[:whole]) == ("JPEG", 50, 30, 3, 8)

"""Every program that opens images: the same upright pixels of the same odd file, or a refusal.

One image is stored in many ways. The truth is the image itself, before it was stored.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageChops, ImageOps

from data_prep import im2rec, tfrecord
from data_prep.verifying.images import check_image
from rn50.predict import Files, prepare
from rn50lib.data import open_pipeline, torch_loader
from rn50lib.data.decode import MAX_PIXELS, box_as_stored, find_frame, turn
from rn50lib.data.source import open_source
from rn50lib.data.tfrecord import TFRecordReader, find_shards, parse_example
from rn50lib.errors import UserError
from tests.pipelines.test_loaders import MARKS, read
from tests.support import full

SIZE = 32  # of the network's images; the original has 96 x 64 pixels
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How an image is stored so that an orientation turns it back (Exif 3.0, 4.6.5)."""


def original(mode: str = "RGB") -> Image.Image:
    """Return an image that differs from all its turned forms, with ramps in both directions."""
    across, down = np.meshgrid(np.linspace(0, 1, 96), np.linspace(0, 1, 64))
    pixels = np.stack([40 + 180 * across, 200 - 150 * down, 60 + 120 * across * down], axis=-1)
    pixels[:16, :32] = (230, 60, 30)
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


def saved(image: Image.Image, form: str, orientation: int = 1, **how: object) -> bytes:
    buffer = io.BytesIO()
    if orientation > 1:
        exif = Image.Exif()
        exif[0x0112] = orientation
        image, how = image.transpose(TURNS[orientation]), how | {"exif": exif}
    if form != "PNG":
        how = {"quality": 95, "subsampling": 0} | how
    image.save(buffer, form, **how)
    return buffer.getvalue()


def without_adobe(data: bytes) -> bytes:
    """Return a JPEG without its APP14 segment."""
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


def transparent() -> Image.Image:
    image = original("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


def huge() -> bytes:
    """Return a JPEG whose header claims more pixels than are decoded."""
    data = bytearray(saved(original(), "JPEG"))
    frame = find_frame(bytes(data))
    assert frame is not None
    struct.pack_into(">HH", data, frame + 5, 20_000, MAX_PIXELS // 20_000 + 1)
    return bytes(data)


GREY_16 = Image.fromarray(np.asarray(original("L")).astype(np.uint16) * 256 + 200)
EXIF_AFTER = saved(original(), "JPEG", 6).replace(b"\xff\xe1", b"\xff\xfe\0\4hi\xff\xff\xe1", 1)
TURNED = {
    **{f"jpeg_{o}.jpg": saved(original(), "JPEG", o) for o in TURNS},
    **{f"png_{o}.png": saved(original(), "PNG", o) for o in (3, 6, 7)},
    "progressive_8.jpg": saved(original(), "JPEG", 8, progressive=True),
    "colours_halved_6.jpg": saved(original(), "JPEG", 6, subsampling=2),
    "cmyk_6.jpg": saved(original("CMYK"), "JPEG", 6),
    "comment_first_6.jpg": EXIF_AFTER,
    "mpo_6.jpg": saved(original(), "MPO", 6, save_all=True, append_images=[original("L")]),
    "png_inside_5.JPEG": saved(original(), "PNG", 5),
}
UPRIGHT = {
    "alpha.png": saved(transparent(), "PNG"),
    "animated.png": saved(original(), "PNG", save_all=True, append_images=[transparent()]),
    "cmyk.jpg": saved(original("CMYK"), "JPEG"),
    "cmyk_plain.jpg": without_adobe(saved(ImageChops.invert(original("CMYK")), "JPEG")),
    "colours_stored.jpg": saved(original(), "JPEG", keep_rgb=True),
    "jpeg_inside.png": saved(original(), "JPEG"),
    "mpo.jpg": saved(original(), "MPO", save_all=True, append_images=[original("L")]),
    "palette.png": saved(original().quantize(256), "PNG"),
    "palette_clear.png": saved(original().quantize(256), "PNG", transparency=bytes(range(256))),
    "plain.jpg": saved(original(), "JPEG"),
    "progressive.jpg": saved(original(), "JPEG", progressive=True),
}  # fmt: skip
GREY = {
    "grey.jpg": saved(original("L"), "JPEG"),
    "grey.png": saved(original("L"), "PNG"),
    "grey_16.png": saved(GREY_16, "PNG"),
    "grey_alpha.png": saved(transparent().convert("LA"), "PNG"),
}
CASES = {**TURNED, **UPRIGHT, **GREY}
REFUSED = {
    "bitmap.jpg": saved(original(), "BMP"),
    "gif.png": saved(original(), "GIF"),
    "huge.jpg": huge(),
    "tiff.jpg": saved(original(), "TIFF"),
    "webp.jpg": saved(original(), "WEBP"),
}


def wanted(name: str) -> np.ndarray:
    """Return the centre of the image, as validation sees it, uint8 (SIZE, SIZE, 3)."""
    image = original("L" if name in GREY else "RGB").convert("RGB")
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(16, 0, 80, 64)))


def store(root: Path, files: dict[str, bytes]) -> list[Path]:
    """Write one file for each class, train and val alike; return those of val."""
    for split in ("train", "val"):
        for name, data in files.items():
            path = root / split / name.replace(".", "_") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return sorted((root / "val").glob("*/*"))


def validation(root: Path, data_format: str = "files", **fields: object) -> np.ndarray:
    """Return the validation images of a loader by label, uint8 (images, SIZE, SIZE, 3)."""
    source = open_source(root, "val", data_format)
    asked = {"image_shape": SIZE, "val_resize": SIZE, "num_classes": len(source.classes)}
    pipeline = open_pipeline(full(**asked | fields), source, "val", 0, 1)
    try:
        batches = list(pipeline.epoch(0))
    finally:
        pipeline.close()
    made = np.concatenate([np.asarray(b.images)[: b.valid] for b in batches])
    labels = np.concatenate([np.asarray(b.labels)[: b.valid] for b in batches])
    return made[np.argsort(labels)]


def native(root: Path) -> np.ndarray:
    return validation(root, backend="torch", loader="native")


def pillow(root: Path) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_loader, "simplejpeg", None)
        return native(root)


def dali(root: Path) -> np.ndarray:
    return validation(root, backend="torch", loader="dali")


def tensorflow(root: Path) -> np.ndarray:
    return validation(root, backend="tensorflow", loader="native", data_nthreads=2)


def reencoded(root: Path) -> np.ndarray:
    """Return what `im2rec --resize` packs, which keeps the size here."""
    (root / "records").mkdir(exist_ok=True)
    for split in ("train", "val"):
        prefix, folder = str(root / "records" / split), str(root / split)
        im2rec.main(["--list", "--recursive", prefix, folder])
        im2rec.main(["--resize", "64", "--quiet", prefix, folder])
    return validation(root, "recordio", backend="torch", loader="native")


def predict(root: Path) -> np.ndarray:
    files = Files(tuple(sorted((root / "val").glob("*/*"))))
    config = full(image_shape=SIZE, val_resize=SIZE)
    (made,) = prepare(files, config, len(files))
    for error in (image for image in made if isinstance(image, UserError)):
        raise error
    return np.stack(made)


OPENERS: dict[str, Callable[[Path], np.ndarray]] = {
    "native": native, "pillow": pillow, "tensorflow": tensorflow, "dali": dali,
    "im2rec": reencoded, "predict": predict,
}  # fmt: skip
every_opener = pytest.mark.parametrize(
    "opener",
    [pytest.param(name, marks=MARKS.get(name, [pytest.mark.needs("torch")])) for name in OPENERS],
)


def dali_turns() -> bool:
    from nvidia import dali

    return not dali.__version__.startswith("1.")


@every_opener
def test_every_opener_shows_the_image(tmp_path: Path, opener: str) -> None:
    cases = dict(sorted(CASES.items()))
    if opener == "dali" and not dali_turns():
        cases = {name: data for name, data in cases.items() if name not in TURNED}
    paths = store(tmp_path, cases)
    for path, made in zip(paths, OPENERS[opener](tmp_path), strict=True):
        difference = np.abs(made - wanted(path.name).astype(float)).mean()
        assert difference < 3, (path.name, difference)


@pytest.mark.slow
@pytest.mark.needs("dali")
@pytest.mark.parametrize("data_format", ["files", "recordio", "tfrecord"])
def test_dali_1_names_a_turned_image(tmp_path: Path, data_format: str) -> None:
    """DALI 2 turns it."""
    files = {**UPRIGHT, "turned.jpg": TURNED["jpeg_3.jpg"]}
    turned = store(tmp_path, files)[-1]
    im2rec.ensure_records(tmp_path)
    tfrecord.main([str(tmp_path), "--data-format", "files", "--quiet"])
    fields = {"image_shape": SIZE, "num_classes": len(files), "batch_size": len(files)}
    for split in ("train", "val"):
        source = open_source(tmp_path, split, data_format)
        if dali_turns():
            assert len(read("dali", source, split, **fields)) == 1
            continue
        with pytest.raises(UserError) as caught:
            read("dali", source, split, **fields)
        name = source.name(len(files) - 1)
        if data_format != "files":  # DALI knows the offset, and not the number or key
            number = [source.read(i) for i in range(len(files))].index(turned.read_bytes())
            file, offset = (
                source.name(number).split(": record ")[0],
                source.name(number).split()[-1],
            )
            name = f"{file}: record at offset {int(offset.replace(',', ''))}"
        assert str(caught.value).startswith(f"{name}: this image is turned")
        assert "\n" not in str(caught.value) and "--loader native" in str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize(
    "opener",
    [
        pytest.param(n, marks=MARKS.get(n, [pytest.mark.needs("torch")]))
        for n in OPENERS
        if n != "dali"  # it reads some of them
    ],
)
def test_what_is_not_read_is_named(tmp_path: Path, opener: str, name: str) -> None:
    (path,) = store(tmp_path, {name: REFUSED[name]})
    with pytest.raises(UserError) as caught:
        OPENERS[opener](tmp_path)
    split = "train" if opener == "im2rec" else "val"
    assert str(tmp_path / split / path.relative_to(tmp_path / "val")) in str(caught.value)
    reason = "pixels" if name == "huge.jpg" else Image.open(io.BytesIO(REFUSED[name])).format
    assert str(reason) in str(caught.value)


@pytest.mark.slow
def test_slides_show_the_image(tmp_path: Path) -> None:
    names = [path.name for path in store(tmp_path, dict(sorted(CASES.items())))]
    tfrecord.main([str(tmp_path), "--schema", "slides", "--quiet"])
    examples = [
        parse_example(data)
        for shard in find_shards(tmp_path / "tfrecord", "val")
        for _, data in TFRecordReader(shard).records()
    ]
    assert len(examples) == len(CASES)
    for example in examples:
        assert (example["height"], example["width"]) == ([64], [96])
        name = names[int(example["label"][0])]
        made = np.frombuffer(example["img_raw"][0], np.uint8).reshape(64, 96, 3)
        shown = np.asarray(original("L" if name in GREY else "RGB").convert("RGB"), float)
        assert np.abs(made - shown).mean() < 3, name


def test_verify_finds_what_a_loader_refuses() -> None:
    for name, data in {**CASES, **REFUSED}.items():
        kinds = {kind for kind, _ in check_image(data, name)}
        assert ("turned" in kinds) == (name in TURNED), (name, kinds)
        assert ("cmyk-plain" in kinds) == (name == "cmyk_plain.jpg"), (name, kinds)
        assert bool(kinds & {"no-image", "undecodable"}) == (name in REFUSED), (name, kinds)


@pytest.mark.parametrize(
    "loader", [pytest.param(n, marks=MARKS[n]) for n in ("torch", "tensorflow")]
)
def test_training_crops_are_drawn_on_the_upright_image(tmp_path: Path, loader: str) -> None:
    """PNG changes no pixel: a turned image gives what an upright one gives."""
    batches = {}
    for orientation in (1, *TURNS):
        for form in ("PNG", "JPEG"):
            root = tmp_path / f"{form}{orientation}"
            store(root, {f"{i}.png": saved(original(), form, orientation) for i in range(4)})
            (batch,) = read(loader, open_source(root, "train"), num_classes=4)
            batches[form, orientation] = np.asarray(batch.images).astype(float)
    for (form, orientation), made in batches.items():
        difference = np.abs(made - batches[form, 1]).mean()
        assert difference <= (0.5 if form == "PNG" else 3), (form, orientation, difference)


@given(st.integers(1, 8), st.data())
def test_a_box_of_the_upright_image_is_found_in_the_stored_one(
    orientation: int, data: st.DataObject
) -> None:
    """Pillow turns the whole image; a crop of that is the crop that is turned."""
    height, width = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    stored = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
    image = Image.fromarray(stored)
    image.getexif()[0x0112] = orientation
    upright = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(turn(stored, orientation), upright)
    left, top = (data.draw(st.integers(0, side - 1)) for side in upright.shape[1::-1])
    w = data.draw(st.integers(1, upright.shape[1] - left))
    h = data.draw(st.integers(1, upright.shape[0] - top))
    x, y, dx, dy = box_as_stored((left, top, w, h), orientation, width, height)
    part = turn(stored[y : y + dy, x : x + dx], orientation)
    np.testing.assert_array_equal(part, upright[top : top + h, left : left + w])

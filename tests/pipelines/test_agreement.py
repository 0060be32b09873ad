"""Drawn data sets: every loader, packer and command agrees on names, labels and pixels, or refuses.

The truth is the drawing itself: the sorted folder names, and Pillow with `ImageOps.exif_transpose`.
"""

from __future__ import annotations

import io
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from data_prep import im2rec, tfrecord, verify
from rn50.predict import Files, prepare
from rn50lib.data import open_pipeline
from rn50lib.data.source import open_source
from rn50lib.errors import UserError
from tests.pipelines.test_loaders import LOADERS, MARKS
from tests.pipelines.test_openers import dali_turns
from tests.support import TINY, Ended, full, strict_json

Run = Callable[..., Ended]
SIZE = 32
NAMES = [
    *(b"Zebra", b"apple", b"stop sign", b"10", b"9", b"-rf", b"#1", b"it's", b"$HOME", b"%d", b"A"),
    *(name.encode() for name in ("ähre", "Éclair", "e\u0301clair", "日本", "İ")),
    *(b"caf\xe9", b"\xff\xfe"),  # not UTF-8
]
FORMATS = ("files", "recordio", "tfrecord")
READERS = {"torch": FORMATS, "tensorflow": ("files", "tfrecord"), "dali": FORMATS}


@dataclass
class Drawn:
    """A data set and what is true of it: names, images as seen upright, what is left out."""

    root: Path
    names: tuple[str, ...]
    images: dict[str, list[tuple[int, Path]]] = field(default_factory=dict)
    left_out: dict[str, Counter[str]] = field(default_factory=dict)
    turned: list[Path] = field(default_factory=list)


def picture(rng: random.Random) -> Image.Image:
    """Return nine fields of random colours: no two images, nor their turned forms, are alike."""
    fields = [[[rng.randrange(256) for _ in range(3)] for _ in range(3)] for _ in range(3)]
    size = rng.choice([(32, 32), (48, 32), (32, 56), (64, 64), (96, 72)])
    return Image.fromarray(np.uint8(fields)).resize(size, Image.Resampling.BILINEAR)


def write_image(path: Path, rng: random.Random, drawn: Drawn) -> Path:
    """Write an image in one of many ways, and return its path, with the extension."""
    image, buffer = picture(rng), io.BytesIO()
    how: dict[str, Any] = {}
    form = rng.choice(["JPEG", "PNG"])
    if form == "JPEG":
        how = {"quality": 95, "subsampling": 0, "progressive": rng.random() < 0.3}
        mode = rng.choice(["RGB", "RGB", "L", "CMYK"])
    else:
        mode = rng.choice(["RGB", "L", "RGBA", "P", "I;16"])
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 256 + 99)
    else:
        image = image.quantize(256) if mode == "P" else image.convert(mode)
    orientation = rng.choice([1, 1, 1, *range(2, 9)])
    if orientation > 1:
        exif = Image.Exif()
        exif[0x0112] = orientation
        how["exif"] = exif
    image.save(buffer, form, **how)
    endings = [".jpg", ".JPG", ".jpeg", ".jfif", ".jpe"] if form == "JPEG" else [".png", ".PNG"]
    path = path.with_name(path.name + rng.choice(endings))
    path.write_bytes(buffer.getvalue())
    if orientation > 1:
        drawn.turned.append(path)
    return path


def draw(root: Path, seed: int, upright: bool = False) -> Drawn:
    """Draw a data set of 3 to 5 classes with odd names, images, and things that are left out."""
    rng = random.Random(seed)
    picked = [os.fsdecode(name) for name in rng.sample(NAMES, rng.randint(3, 5))]
    drawn = Drawn(root, tuple(sorted(picked)))
    for split, images in (("train", 4), ("val", 3)):
        drawn.images[split], drawn.left_out[split] = [], Counter()
        (root / split).mkdir(parents=True)
        for name in picked:  # the order in which folders are made means nothing
            folder = root / split / name
            folder.mkdir()
            for i in rng.sample(range(100), images):
                path = write_image(folder / f"{i}", rng, drawn)
                drawn.images[split].append((drawn.names.index(name), path))
                if upright and path in drawn.turned:
                    ImageOps.exif_transpose(Image.open(path)).save(path)
                    drawn.turned.remove(path)
            leave_out(folder, rng, drawn.left_out[split])
        for name, reason in ((".DS_Store", "hidden files"), ("a.txt", "non-image files")):
            if rng.random() < 0.5:
                (root / split / name).touch()
                drawn.left_out[split][reason] += 1
    return drawn


def leave_out(folder: Path, rng: random.Random, count: Counter[str]) -> None:
    """Add to a class folder what no reader takes, and count it by its reason."""
    for name, reason, target in (
        ("._x.jpg", "hidden files", None),
        ("Thumbs.db", "non-image files", None),
        ("x.webp", ".webp images", None),
        ("y.jpg", "dangling links", "/nowhere/y.jpg"),
        (".z.jpg.icloud", "hidden files", None),
        ("x", "files without an extension", None),
    ):
        if rng.random() < 0.2:
            if target:
                (folder / name).symlink_to(target)
            else:
                (folder / name).touch()
            count[reason] += 1


def shown(path: Path) -> np.ndarray:
    """Return an image as validation shows it, by Pillow alone: float (SIZE, SIZE, 3)."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    rgb = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    return np.asarray(rgb, float)


def assert_same_images(drawn: Drawn, labels: Any, images: Any, what: object) -> None:
    """Assert that these are the validation images, each once, with their labels."""
    wanted = [(label, path, shown(path)) for label, path in drawn.images["val"]]
    assert len(images) == len(wanted), what
    found = []
    for label, image in zip(labels, images, strict=True):
        differences = [np.abs(image - pixels).mean() for _, _, pixels in wanted]
        nearest = int(np.argmin(differences))
        assert differences[nearest] < 4, (what, wanted[nearest][1], differences[nearest])
        assert wanted[nearest][0] == label, (what, wanted[nearest][1], label)
        found.append(nearest)
    assert len({*found}) == len(found), what


def validate(drawn: Drawn, loader: str, data_format: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and pixels of validation through a loader."""
    source = open_source(drawn.root, "val", data_format)
    assert source.classes.names == drawn.names
    asked: dict[str, Any] = {"image_shape": SIZE, "val_resize": SIZE, "batch_size": 5}
    experiment = full(num_classes=len(drawn.names), **LOADERS[loader] | asked)
    pipeline = open_pipeline(experiment, source, "val", 0, 1)
    try:
        batches = list(pipeline.epoch(0))
    finally:
        pipeline.close()
    images = np.concatenate([np.asarray(batch.images)[: batch.valid] for batch in batches])
    return np.concatenate([np.asarray(b.labels)[: b.valid] for b in batches]), images.astype(float)


def pack(root: Path, reencode: bool = False) -> None:
    """Make records and shards. Raises UserError if the data set is refused."""
    (root / "records").mkdir()
    for split in ("train", "val"):
        prefix, folder = str(root / "records" / split), str(root / split)
        im2rec.main(["--list", "--recursive", prefix, folder])
        im2rec.main([*([] if reencode else ["--pass-through"]), "--quiet", prefix, folder])
    tfrecord.convert(root, shards={"train": 2, "val": 2}, jobs=0, data_format="files", quiet=True)


def many(small: int, large: int) -> list[Any]:
    """Return seeds: the first for `make test`, all for `make acceptance`."""
    marks = [[] if seed < small else [pytest.mark.acceptance] for seed in range(large)]
    return [pytest.param(seed, marks=mark) for seed, mark in enumerate(marks)]


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("seed", many(4, 40))
def test_commands_agree(seed: int, tmp_path: Path, rn50: Run) -> None:
    """The names and labels of run, verify, im2rec and predict, and what they leave out."""
    drawn = draw(tmp_path / "set", seed)
    root = drawn.root
    done = rn50("train", "--data-root", root, *TINY, "-e", "1", "--batch-size", "4",
                "--model-prefix", tmp_path / "m", "--report", tmp_path / "r.json")  # fmt: skip
    assert done.status == 0, done.err
    left_out = {split: dict(count) for split, count in drawn.left_out.items()}
    assert strict_json(tmp_path / "r.json")["env"]["left_out"] == left_out
    pack(root, reencode=seed % 2 == 1)
    per_class = dict.fromkeys(drawn.names, 4)
    report = verify.verify([root], jobs=0, quiet=True)
    for part in report.parts:
        images = per_class if part.split == "train" else dict.fromkeys(drawn.names, 3)
        assert verify.counts_per_class(part) == images, part.path
        if part.form == "files":
            assert part.left_out == left_out[part.split]
    lost = {"dangling links"}
    assert report.good == (not lost & {*left_out["train"], *left_out["val"]})
    for split in ("train", "val"):
        lines = (root / f"records/{split}.lst").read_bytes().splitlines()
        entries = (os.fsdecode(line).split("\t") for line in lines)
        listed = {path: float(label) for _, label, path in entries}
        truth = {os.path.relpath(path, root / split): n for n, path in drawn.images[split]}
        assert listed == truth
    out = tmp_path / "p.npz"
    done = rn50("predict", tmp_path / "m", "1", "--split", "val", "-o", out)
    assert done.status == 0, done.err
    with np.load(out) as arrays:
        assert tuple(arrays["classes"]) == drawn.names
        predicted = dict(zip(arrays["names"].tolist(), arrays["labels"].tolist(), strict=True))
    # `predict` takes the records now, whose names are keys
    assert Counter(predicted.values()) == Counter(label for label, _ in drawn.images["val"])
    paths = tuple(path for _, path in drawn.images["val"])
    done_as = full(image_shape=SIZE, val_resize=SIZE)
    made = next(prepare(Files(paths), done_as, len(paths)))
    assert_same_images(drawn, [label for label, _ in drawn.images["val"]], made, "predict")


@pytest.mark.slow
@pytest.mark.parametrize("loader", [pytest.param(n, marks=MARKS[n]) for n in READERS])
@pytest.mark.parametrize("seed", many(3, 30))
def test_loaders_agree(seed: int, loader: str, tmp_path: Path) -> None:
    """Every loader and format: the same names, labels and upright pixels.

    DALI opens no file whose name is not UTF-8.
    """
    drawn = draw(tmp_path / "set", 1000 + seed, upright=loader == "dali" and not dali_turns())
    pack(drawn.root, reencode=seed % 2 == 1)
    not_utf8 = any(not name.isprintable() for name in drawn.names)
    for data_format in READERS[loader]:
        if not_utf8 and (loader, data_format) == ("dali", "files"):
            with pytest.raises(UserError, match="--loader dali needs names in UTF-8"):
                validate(drawn, loader, data_format)
            continue
        labels, images = validate(drawn, loader, data_format)
        assert_same_images(drawn, labels, images, (loader, data_format))


# -- the same refusal ----------------------------------------------------------------------------


def some_class(drawn: Drawn, rng: random.Random, *splits: str) -> list[Path]:
    name = rng.choice(drawn.names)
    return [drawn.root / split / name for split in splits]


def is_missing(drawn: Drawn, rng: random.Random) -> None:
    (folder,) = some_class(drawn, rng, rng.choice(["train", "val"]))
    shutil.rmtree(folder)


def is_extra(drawn: Drawn, rng: random.Random) -> None:
    (folder,) = some_class(drawn, rng, rng.choice(["train", "val"]))
    shutil.copytree(folder, folder.with_name(f"{rng.choice('!~')}extra"), symlinks=True)


def is_empty(drawn: Drawn, rng: random.Random) -> None:
    (folder,) = some_class(drawn, rng, "train")
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "notes.txt").touch()


def is_a_dangling_link(drawn: Drawn, rng: random.Random) -> None:
    (folder,) = some_class(drawn, rng, rng.choice(["train", "val"]))
    shutil.rmtree(folder)
    folder.symlink_to("/nowhere/class")


def has_only_others(drawn: Drawn, rng: random.Random) -> None:
    (folder,) = some_class(drawn, rng, "train")
    shutil.rmtree(folder)
    folder.mkdir()
    kind = rng.choice(["{}.webp", "{}.HEIC", "{}", "link"])
    for i in range(3):
        if kind == "link":
            (folder / f"{i}.jpg").symlink_to("/nowhere/image")
        else:
            (folder / kind.format(i)).touch()


def is_renamed(drawn: Drawn, rng: random.Random) -> None:
    (folder,) = some_class(drawn, rng, rng.choice(["train", "val"]))
    folder.rename(folder.with_name(folder.name + rng.choice(" ~sS")))


def has_a_line_break(drawn: Drawn, rng: random.Random) -> None:
    for folder in some_class(drawn, rng, "train", "val"):
        folder.rename(folder.with_name(folder.name + rng.choice("\n\t")))


def holds_a_folder(drawn: Drawn, rng: random.Random) -> None:
    (folder,) = some_class(drawn, rng, rng.choice(["train", "val"]))
    inner = folder / "more"
    inner.mkdir()
    path = next(p for _, p in drawn.images[folder.parent.name] if p.parent == folder)
    path.rename(inner / path.name)


def is_named_in_a_different_order(drawn: Drawn, rng: random.Random) -> None:
    names = [os.fsencode(name) for name in reversed(drawn.names)]
    (drawn.root / "classes.txt").write_bytes(b"\n".join(names))


def holds_no_image(drawn: Drawn, rng: random.Random) -> None:
    _, path = rng.choice(drawn.images["val"])
    data = path.read_bytes()
    buffer = io.BytesIO()
    Image.open(path).convert("RGB").save(buffer, "WEBP")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    annex = b"/annex/objects/SHA256E-s1--0.jpg\n"
    page = b"<html>not found</html>"
    path.write_bytes(rng.choice([b"", data[:30], buffer.getvalue(), pointer, annex, page]))


FAULTS = [
    is_missing, is_extra, is_empty, is_a_dangling_link, has_only_others, is_renamed,
    has_a_line_break, holds_a_folder, is_named_in_a_different_order, holds_no_image,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("seed", many(1, 12))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_refusals_agree(fault: Callable, seed: int, tmp_path: Path, rn50: Run) -> None:
    """What a run refuses, verify reports, and neither records nor shards make it trainable."""
    drawn = draw(tmp_path / "set", 2000 + seed)
    root = drawn.root
    fault(drawn, random.Random(f"{fault.__name__} {seed}"))
    flags = ("--data-root", root, *TINY, "--batch-size", "4", "-e", "1")
    done = rn50("train", *flags)
    assert done.status == 2 and str(root) in done.err, done
    assert done.err.count("error: ") == 1 and done.err.endswith("\n"), done.err
    assert done.err.partition("error: ")[2].count("\n") == 1, done.err
    assert not verify.verify([root], jobs=0, quiet=True).good
    for data_format in ("recordio", "tfrecord"):
        shutil.rmtree(root / "records", ignore_errors=True)
        shutil.rmtree(root / "tfrecord", ignore_errors=True)
        try:
            if data_format == "recordio":
                im2rec.ensure_records(root)
            else:
                tfrecord.convert(root, jobs=0, data_format="files", quiet=True)
        except UserError:
            continue
        assert rn50("train", *flags, "--data-format", data_format).status == 2, data_format
        assert not verify.verify([root], jobs=0, quiet=True).good

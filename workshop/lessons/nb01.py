"""Notebook 01: a RecordIO writer, and a small copy of ImageNet's archives."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

KIT = "ILSVRC2012_devkit_t12"
CLASSES = (  # WordNet id, words, road sign, in the kit's order, which is not sorted
    ("n06874185", "traffic light, traffic signal, stoplight", "yield"),
    ("n02835271", "bicycle-built-for-two, tandem bicycle, tandem", "bicycle"),
    ("n06794110", "street sign", "stop"),
)
TRAIN, VAL = 4, 2  # images of each class
STRUCT, TEXT, NUMBER = 2, 4, 6  # classes of MATLAB's arrays


def pack(number: int, label: float, jpeg: bytes) -> bytes:
    """Return a RecordIO record of one part, with MXNet's image header."""
    content = struct.pack("<IfQQ", 0, label, number, 0) + jpeg
    word = len(content)  # kind 0, a whole record, in the upper 3 bits
    return struct.pack("<II", 0xCED7230A, word) + content + bytes(-len(content) % 4)


def imagenet_archives(folder: Path, data_root: Path) -> None:
    """Write the three archives of ImageNet (ILSVRC 2012) with three classes of road signs.

    Args:
        folder: Where to write them; it is created.
        data_root: The road signs, with the folders train and val.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shown = {sign: sorted((data_root / "val" / sign).iterdir()) for _, _, sign in CLASSES}
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as outer:
        for wnid, _, sign in CLASSES:
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w") as inner:
                files = sorted((data_root / "train" / sign).iterdir())[:TRAIN]
                for number, file in enumerate(files):
                    _add(inner, f"{wnid}_{number}.JPEG", file.read_bytes())
            _add(outer, f"{wnid}.tar", out.getvalue())
    truth = [1 + (2 * i) % len(CLASSES) for i in range(VAL * len(CLASSES))]  # mixed: 1, 3, 2, ...
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as val:
        for number, label in enumerate(truth, start=1):
            file = shown[CLASSES[label - 1][2]].pop(0)
            _add(val, f"ILSVRC2012_val_{number:08}.JPEG", file.read_bytes())
    with tarfile.open(folder / f"{KIT}.tar.gz", "w:gz") as kit:
        _add(kit, f"{KIT}/data/meta.mat", _meta())
        lines = "".join(f"{label}\n" for label in truth).encode()
        _add(kit, f"{KIT}/data/ILSVRC2012_validation_ground_truth.txt", lines)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _meta() -> bytes:
    """Return meta.mat: the array of structs `synsets`, one per class."""
    fields = ("ILSVRC2012_ID", "WNID", "words", "num_children", "num_train_images")
    names = b"".join(name.encode().ljust(32, b"\0") for name in fields)
    values = [
        _array(value)
        for number, (wnid, words, _) in enumerate(CLASSES, start=1)
        for value in (number, wnid, words, 0, TRAIN)
    ]
    body = _element(5, struct.pack("<i", 32)) + _element(1, names) + b"".join(values)
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    return head + _matrix(STRUCT, (len(CLASSES), 1), b"synsets", body)


def _array(value: int | str) -> bytes:
    if isinstance(value, str):
        return _matrix(TEXT, (1, len(value)), b"", _element(16, value.encode()))
    return _matrix(NUMBER, (1, 1), b"", _element(9, struct.pack("<d", value)))


def _matrix(kind: int, shape: tuple[int, int], name: bytes, body: bytes) -> bytes:
    flags = _element(6, struct.pack("<II", kind, 0))
    return _element(14, flags + _element(5, struct.pack("<2i", *shape)) + _element(1, name) + body)


def _element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)

"""TFRecord without TensorFlow: an Example's bytes, the framing, a shard of images and its index."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageOps

from data_prep.lists import read_list
from rn50lib.data.decode import decode_image, open_image
from rn50lib.data.recordio import Reader
from rn50lib.data.source import Source
from rn50lib.data.tfrecord import CRC, index_path, masked_crc
from rn50lib.errors import UserError
from rn50lib.files import FULL, NAMES, replacing, write_file

Value = bytes | str | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]

_BYTES, _FLOATS, _INTS = 0x0A, 0x12, 0x1A  # fields 1, 2 and 3 of Feature, each with a length
_FIELD_1, _FIELD_2 = 0x0A, 0x12


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(tag: int, pieces: Sequence[bytes]) -> list[bytes]:
    """Return a field with a length, as pieces, so that an image is not copied at each level."""
    return [bytes((tag,)) + _varint(sum(map(len, pieces))), *pieces]


def _feature(value: Value) -> list[bytes]:
    values = [value] if isinstance(value, (bytes, str, int, float)) else list(value)
    if all(isinstance(v, (bytes, str)) for v in values):
        parts = [v.encode(errors=NAMES) if isinstance(v, str) else v for v in values]
        return _field(_BYTES, sum((_field(_FIELD_1, [part]) for part in parts), []))  # type: ignore
    if all(isinstance(v, int) for v in values):
        packed = b"".join(_varint(v & 0xFFFFFFFFFFFFFFFF) for v in values)  # type: ignore
        return _field(_INTS, _field(_FIELD_1, [packed]))
    packed = struct.pack(f"<{len(values)}f", *values)
    return _field(_FLOATS, _field(_FIELD_1, [packed]))


def _entry(key: str, value: Value) -> list[bytes]:
    name = _field(_FIELD_1, [key.encode()])
    return _field(_FIELD_1, name + _field(_FIELD_2, _feature(value)))


_known_entry = functools.lru_cache(8192, typed=True)(_entry)  # sizes, classes and words recur


def serialize_example(features: Mapping[str, Value]) -> bytes:
    """Return the bytes of an Example.

    bytes and str become a bytes list, int an int64 list, float a float list. Features are sorted
    by key, so that equal features give equal bytes.
    """
    entries: list[bytes] = []
    for key, value in sorted(features.items()):
        entries += (_known_entry if isinstance(value, str | int | float) else _entry)(key, value)
    return b"".join(_field(_FIELD_1, entries))


# -- framing -------------------------------------------------------------------------------------


def frame_record(data: bytes) -> bytes:
    """Return a framed record, 16 bytes longer than its data."""
    size = struct.pack("<Q", len(data))
    return b"".join([size, CRC.pack(masked_crc(size)), data, CRC.pack(masked_crc(data))])


def write_records(file: BinaryIO, records: Iterable[bytes]) -> list[tuple[int, int]]:
    """Write records; return (offset, size) of each."""
    entries = []
    offset = 0
    for data in records:
        entries.append((offset, file.write(frame_record(data))))
        offset += entries[-1][1]
    return entries


def format_index(entries: Sequence[tuple[int, int]]) -> bytes:
    """Return the text of a shard's index, as DALI's tfrecord2idx writes it."""
    return b"".join(b"%d %d\n" % entry for entry in entries)


# -- a shard of images --------------------------------------------------------------------------


def image_names(source: Source) -> list[str]:
    """Return the file name of each image; of a record, by its list, else its key."""
    if source.format == "files":
        return [os.path.basename(source.name(i)) for i in range(len(source))]
    path_lst = source.path.with_suffix(".lst")
    names = (
        {e.key: os.path.basename(e.path) for e in read_list(path_lst)} if path_lst.exists() else {}
    )
    return [names.get(key, str(key)) for key in Reader(source.path).keys.tolist()]


def prepare(settings: dict) -> Callable[[list], int]:
    """Return the worker's function.

    It writes a shard [split, shard's name, images' numbers, images' names], and returns its bytes.
    """
    out = Path(settings["out"])

    def write(task: list) -> int:
        split, shard, *images = task
        path, index = out / shard, index_path(out / shard)
        source = settings["sources"][split]
        examples = (_example(source, i, name, settings) for i, name in zip(*images, strict=True))
        try:
            with replacing(path) as draft, open(draft, "wb") as file:
                entries = write_records(file, examples)
            write_file(index, format_index(entries))
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise UserError(
                f"{path}: {error.strerror}; make room and run the same command again: the"
                f" finished shards are kept in {out} until then"
            ) from error
        return sum(size for _, size in entries)

    return write


def _example(source: Source, i: int, name: str, settings: dict) -> bytes:
    data, where, label = source.read(i), source.name(i), int(source.labels[i])
    if settings["schema"] == "slides":
        return _slides_example(decode_image(data, where), label, settings["size"])
    image, synset = open_image(data, where), settings["classes"][label]
    return serialize_example(
        {
            "image/encoded": data,
            "image/format": "PNG" if image.format == "PNG" else "JPEG",
            "image/colorspace": "RGB",
            "image/channels": 3,
            "image/height": image.height,
            "image/width": image.width,
            "image/filename": name,
            "image/class/label": label + 1,  # 0 is unused, by convention
            "image/class/synset": synset,
            "image/class/text": settings["words"].get(synset, synset),
        }
    )


def _slides_example(image: Image.Image, label: int, size: int) -> bytes:
    """Return the slides' features: raw RGB bytes, row by row, and the label as a float from 0."""
    if size:
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    return serialize_example(
        {
            "height": image.height,
            "width": image.width,
            "img_raw": image.tobytes(),
            "label": float(label),
        }
    )

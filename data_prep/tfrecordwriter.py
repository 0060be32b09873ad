"""TFRecord without TensorFlow: an Example's bytes, the framing, a shard of images and its index."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image, ImageOps

from data_prep.images import open_image
from data_prep.lists import read_list
from rn50lib.data.decode import eight_bits
from rn50lib.data.recordfile import crc32c
from rn50lib.data.recordio import Reader
from rn50lib.data.source import Source
from rn50lib.data.tfrecord import CRC, index_path, mask
from rn50lib.errors import UserError
from rn50lib.files import FULL, replacing, write_file

Value = bytes | str | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]

_BYTES, _FLOATS, _INTS = 0x0A, 0x12, 0x1A  # fields 1, 2 and 3 of Feature, each with a length
_FIELD_1, _FIELD_2 = 0x0A, 0x12


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(tag: int, body: bytes) -> bytes:
    return bytes((tag,)) + _varint(len(body)) + body


def _feature(value: Value) -> bytes:
    """Return the bytes of one Feature."""
    values = [value] if isinstance(value, (bytes, str, int, float)) else list(value)
    if all(isinstance(v, (bytes, str)) for v in values):
        parts = [v.encode() if isinstance(v, str) else v for v in values]
        return _field(_BYTES, b"".join(_field(_FIELD_1, part) for part in parts))  # type: ignore[arg-type]
    if all(isinstance(v, int) for v in values):
        packed = b"".join(_varint(v & 0xFFFFFFFFFFFFFFFF) for v in values)  # type: ignore
        return _field(_INTS, _field(_FIELD_1, packed))
    return _field(_FLOATS, _field(_FIELD_1, struct.pack(f"<{len(values)}f", *values)))


def serialize_example(features: Mapping[str, Value]) -> bytes:
    """Return the bytes of an Example.

    bytes and str become a bytes list, int an int64 list, float a float list. Features are sorted
    by key, so that equal features give equal bytes.
    """
    entries = [
        _field(_FIELD_1, key.encode()) + _field(_FIELD_2, _feature(features[key]))
        for key in sorted(features)
    ]
    return _field(_FIELD_1, b"".join(_field(_FIELD_1, entry) for entry in entries))


# -- framing -------------------------------------------------------------------------------------


def frame_record(data: bytes) -> bytes:
    """Return a framed record, 16 bytes longer than its data."""
    extend = crc32c()
    size = struct.pack("<Q", len(data))
    return b"".join([size, CRC.pack(mask(extend(0, size))), data, CRC.pack(mask(extend(0, data)))])


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


def describe_images(source: Source, positions: Any) -> list[list]:
    """Return [label, name, path or position] of each image, for the worker that writes it."""
    if source.format == "files":
        start = len(str(source.path)) + 1
        return [
            [int(source.labels[i]), source.name(i)[start:], source.name(i)]
            for i in positions.tolist()
        ]
    path_lst = source.path.with_suffix(".lst")
    names = {e.key: e.path for e in read_list(path_lst)} if path_lst.exists() else {}
    reader = Reader(source.path)
    keys = reader.keys.tolist()
    return [
        [int(source.labels[i]), names.get(keys[i], str(keys[i])), i] for i in positions.tolist()
    ]


def prepare(settings: dict) -> Callable[[list], int]:
    """Return the worker's function: it writes a shard [split, name, images], returns its bytes."""
    out = Path(settings["out"])
    readers: dict[str, Reader] = {}

    def write(task: list) -> int:
        split, name, images = task
        path, index = out / name, index_path(out / name)
        if split in settings["records"] and split not in readers:
            readers[split] = Reader(settings["records"][split])
        examples = _examples(images, readers.get(split), settings)
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


def _examples(images: list[list], reader: Reader | None, settings: dict) -> Iterator[bytes]:
    classes, words = settings["classes"], settings["words"]
    for label, name, item in images:
        if reader is None:
            where = item
            with open(item, "rb", buffering=0) as file:
                data = file.read()
        else:
            where = f"{reader.path_rec}: record with key {reader.keys[item]}"
            data = reader[item][1]
        image = open_image(data)
        if image is None:
            raise UserError(
                f"{where}: this is not a readable JPEG or PNG; repair or remove it "
                "(`python -m data_prep.verify` finds all such images)"
            )
        if settings["schema"] == "slides":
            yield _slides_example(image, label, settings["size"], where)
            continue
        synset = classes[label]
        yield serialize_example(
            {
                "image/encoded": data,
                "image/format": "PNG" if image.format == "PNG" else "JPEG",
                "image/colorspace": "RGB",
                "image/channels": 3,
                "image/height": image.height,
                "image/width": image.width,
                "image/filename": os.path.basename(name),
                "image/class/label": label + 1,  # 0 is unused, by convention
                "image/class/synset": synset,
                "image/class/text": words.get(synset, synset),
            }
        )


def _slides_example(image: Image.Image, label: int, size: int, where: str) -> bytes:
    """Return the slides' features: raw RGB bytes, row by row, and the label as a float from 0."""
    try:
        image = eight_bits(image).convert("RGB")
    except Exception as error:  # Pillow raises many types for damaged images
        raise UserError(f"{where}: this image does not decode ({error})") from None
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

"""TFRecord without TensorFlow: an Example's bytes, the framing, a shard of images and its index."""

from __future__ import annotations

import functools
import io
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.encoding import image_info
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
_LONG = 1024  # values from this length on are not copied


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


@functools.lru_cache(maxsize=8192)
def _small_entry(key: str, kind: str, value: Value) -> bytes:
    """Return one entry of the map. Sizes, classes and constants recur, so they are cached.

    ``kind``, the name of the type, separates 1 and 1.0 in the cache.
    """
    return _entry(key, value)


def _entry(key: str, value: Value) -> bytes:
    return _field(_FIELD_1, _field(_FIELD_1, key.encode()) + _field(_FIELD_2, _feature(value)))


def example_pieces(features: Mapping[str, Value]) -> list[bytes]:
    """Return the bytes of an Example as consecutive pieces; long values are not copied.

    bytes and str become a bytes list, int an int64 list, float a float list. Features are sorted
    by key, so that equal features give equal bytes.
    """
    pieces = [b""]
    for key in sorted(features):
        value = features[key]
        if isinstance(value, bytes) and len(value) >= _LONG:
            pieces += [_long_head(key, len(value)), value]
        elif isinstance(value, (bytes, str, int, float)):
            pieces.append(_small_entry(key, type(value).__name__, value))
        else:
            pieces.append(_entry(key, value))
    total = sum(map(len, pieces))
    pieces[0] = bytes((_FIELD_1,)) + _varint(total)
    return pieces


def _long_head(key: str, size: int) -> bytes:
    """Return what precedes a long value: four nested lengths."""
    name = _field(_FIELD_1, key.encode())
    value = bytes((_FIELD_1,)) + _varint(size)
    values = bytes((_BYTES,)) + _varint(len(value) + size) + value
    feature = bytes((_FIELD_2,)) + _varint(len(values) + size) + values
    return bytes((_FIELD_1,)) + _varint(len(name) + len(feature) + size) + name + feature


def serialize_example(features: Mapping[str, Value]) -> bytes:
    """Return the bytes of an Example; see ``example_pieces``."""
    return b"".join(example_pieces(features))


# -- framing -------------------------------------------------------------------------------------


def frame_pieces(pieces: Sequence[bytes]) -> list[bytes]:
    """Return a framed record, as pieces, from the pieces of its data."""
    extend = crc32c()
    size = struct.pack("<Q", sum(map(len, pieces)))
    crc = 0
    for piece in pieces:
        crc = extend(crc, piece)
    return [size, CRC.pack(mask(extend(0, size))), *pieces, CRC.pack(mask(crc))]


def frame_record(data: bytes) -> bytes:
    """Return a framed record, 16 bytes longer than its data."""
    return b"".join(frame_pieces([data]))


def write_records(file: io.FileIO, records: Iterable[Sequence[bytes]]) -> list[tuple[int, int]]:
    """Write records, each as pieces of its data; return (offset, size) of each."""
    entries = []
    offset = 0
    for pieces in records:
        framed = frame_pieces(pieces)
        size = sum(map(len, framed))
        # One call for all pieces saves a copy into a buffer.
        written = os.writev(file.fileno(), framed) if len(framed) <= 64 else 0
        if written < size:
            rest = memoryview(b"".join(framed))[written:]
            while rest:
                rest = rest[file.write(rest) :]
        entries.append((offset, size))
        offset += size
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
            with replacing(path) as draft, open(draft, "wb", buffering=0) as file:
                assert isinstance(file, io.FileIO)
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


def _examples(images: list[list], reader: Reader | None, settings: dict) -> Iterator[list[bytes]]:
    classes, words = settings["classes"], settings["words"]
    for label, name, item in images:
        if reader is None:
            where = item
            with open(item, "rb", buffering=0) as file:
                data = file.read()
        else:
            where = f"{reader.path_rec}: record with key {reader.keys[item]}"
            data = reader[item][1]
        info = image_info(data)
        if info is None:
            raise UserError(
                f"{where}: this is not a readable JPEG or PNG; repair or remove it "
                "(`python -m data_prep.verify` finds all such images)"
            )
        if settings["schema"] == "slides":
            yield _slides_example(data, label, settings["size"], where)
            continue
        synset = classes[label]
        yield example_pieces(
            {
                "image/encoded": data,
                "image/format": info.format,
                "image/colorspace": "RGB",
                "image/channels": 3,
                "image/height": info.height,
                "image/width": info.width,
                "image/filename": os.path.basename(name),
                "image/class/label": label + 1,  # 0 is unused, by convention
                "image/class/synset": synset,
                "image/class/text": words.get(synset, synset),
            }
        )


def _slides_example(data: bytes, label: int, size: int, where: str) -> list[bytes]:
    """Return the slides' features: raw RGB bytes, row by row, and the label as a float from 0."""
    from PIL import Image, ImageOps

    try:
        image = eight_bits(Image.open(io.BytesIO(data))).convert("RGB")
    except Exception as error:  # Pillow raises many types for damaged images
        raise UserError(f"{where}: this image does not decode ({error})") from None
    if size:
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    features: dict[str, Value] = {
        "height": image.height,
        "width": image.width,
        "img_raw": image.tobytes(),
        "label": float(label),
    }
    return example_pieces(features)

"""Turns images into the examples of a TFRecord shard, in the workers of `tfrecord`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data_prep.encoding import image_info
from data_prep.lists import read_list
from data_prep.tfrecordwriter import Value, example_pieces, format_index, write_records
from rn50lib.data.decode import eight_bits
from rn50lib.data.recordio import Reader
from rn50lib.data.source import Source
from rn50lib.data.tfrecord import index_path
from rn50lib.errors import UserError
from rn50lib.files import FULL, replacing, write_file


def describe_images(source: Source, positions: Any) -> list[list]:
    """[label, name, path or position] of images, for the worker that writes them."""
    if source.format == "files":
        start = len(str(source.path)) + 1
        return [
            [int(source.labels[i]), source.name(i)[start:], source.name(i)]
            for i in positions.tolist()
        ]
    names = _names_of_list(source.path.with_suffix(".lst"))
    reader = Reader(source.path)
    found = []
    for i in positions.tolist():
        key = int(reader.keys[i])
        found.append([int(source.labels[i]), names.get(key, str(key)), i])
    return found


def _names_of_list(path: Path) -> dict[int, str]:
    """Key → file name, from the list beside a record file, if it is still there."""
    return {entry.key: entry.path for entry in read_list(path)} if path.exists() else {}


def prepare(settings: dict) -> Callable[[list], int]:
    """The function that writes one shard: [split, name, images] → its bytes."""
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
                f"{path}: {error.strerror}; make room and give the same command again: the shards"
                f" that are finished are kept in {out} until then"
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
                f"{where}: this is no JPEG or PNG that can be read; put it right or remove it "
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
                "image/class/label": label + 1,  # 0 is unused, as in the field
                "image/class/synset": synset,
                "image/class/text": words.get(synset, synset),
            }
        )


def _slides_example(data: bytes, label: int, size: int, where: str) -> list[bytes]:
    """The slides' features: raw RGB bytes, row by row, and the label as a float from 0 on."""
    from PIL import Image, ImageOps

    try:
        image = eight_bits(Image.open(io.BytesIO(data))).convert("RGB")
    except Exception as error:  # Pillow raises many kinds for damaged images
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

"""The checks of what a learner writes in notebook 04, and the finished versions."""

from __future__ import annotations

import io
import itertools
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.tfrecordwriter import (
    format_index,
    frame_record,
    serialize_example,
    write_records,
)
from rn50lib.data.tfrecord import IMAGE, LABEL, index_path, masked_crc

Read = Callable[[str], Iterator[bytes]]
Pipeline = Callable[..., Any]

AFTER = "After the data come the 4 bytes of its checksum; then the next record begins."


def read(path: str) -> Iterator[bytes]:
    """Yield the data of each record of a shard; raise ValueError for a wrong checksum."""
    with open(path, "rb") as file:
        while head := file.read(12):
            length, length_crc = struct.unpack("<QI", head)
            data = file.read(length)
            (data_crc,) = struct.unpack("<I", file.read(4))
            if (length_crc, data_crc) != (masked_crc(head[:8]), masked_crc(data)):
                raise ValueError(
                    f"{path}: wrong checksum in the record that ends at {file.tell():,}"
                )
            yield data


def pipeline(
    shards: Sequence[str],
    rank: int,
    size: int,
    batch: int,
    seed: int,
    prepare: Callable[[Any], Any],
) -> Any:
    """Return one rank's full batches as a dataset; each pass has a new order."""
    import tensorflow as tf

    files = tf.data.Dataset.from_tensor_slices(list(shards)).shard(size, rank)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    images = records.shuffle(1000, seed=seed).map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(batch, drop_remainder=True).prefetch(2)


# --- what is wrong with a learner's version -------------------------------------------------------


def check_read(yours: Read) -> Read:
    """Print what is wrong with a learner's `read`; return it if right, else the finished one."""
    with tempfile.TemporaryDirectory() as folder:
        return report("read", yours, read, find_read_mistake(yours, Path(folder)))


def check_pipeline(yours: Pipeline, prepare: Callable[[Any], Any]) -> Pipeline:
    """Print what is wrong with a learner's `pipeline`; return it if it is right, else the finished.

    `prepare` turns a record into an image and its label from 0.
    """

    def finished(shards: Sequence[str], rank: int, size: int, batch: int, seed: int) -> Any:
        return pipeline(shards, rank, size, batch, seed, prepare)

    with tempfile.TemporaryDirectory() as folder:
        return report("pipeline", yours, finished, find_pipeline_mistake(yours, Path(folder)))


def report(name: str, yours: Any, ours: Any, wrong: str | None) -> Any:
    """Print the outcome of a check; return the learner's version if it is right, else ours."""
    if wrong is None:
        print(f"✓ `{name}` is right: the notebook uses yours.")
        return yours
    print(f"✗ {wrong}" if wrong else f"`{name}` returns None: not attempted yet.")
    print(f"Until `{name}` is right, the notebook uses ours.")
    return ours


def find_read_mistake(yours: Read, folder: Path) -> str | None:
    """Return what is wrong with a reader of shards, None if nothing, "" if not attempted."""
    contents = [b"first", b"", b"the third record " * 3]
    records = [frame_record(data) for data in contents]
    good = folder / "shard"
    good.write_bytes(b"".join(records))
    found: list[Any] = []
    try:
        result = yours(str(good))
        if result is None:
            return ""
        found.extend(itertools.islice(result, 10))
    except Exception as error:
        after = f" after {len(found)} record(s)" if found else ""
        return (
            f"Reading a good shard of three records ended{after} with {type(error).__name__}:"
            f" {error}. {_error_hint(error, len(found))}"
        )
    if found != contents:
        return _wrong_records(found, contents, records)
    parts = {"the length": 0, "the checksum of the length": 9, "the data": 14,
             "the checksum of the data": len(records[0]) - 1}  # fmt: skip
    for part, place in parts.items():
        damaged = bytearray(good.read_bytes())
        damaged[place] ^= 1
        (folder / "damaged").write_bytes(damaged)
        found = []
        try:
            for data in itertools.islice(yours(str(folder / "damaged")), 10):
                found.append(data)
        except ValueError:
            if not found:
                continue
            return (
                f"With a flipped bit in {part}, it yields the record and raises ValueError only"
                " after that: compare the checksum before you yield the data."
            )
        except Exception as error:
            of = part.removeprefix("the checksum of ")
            return (
                f"With a flipped bit in {part}, it ends with {type(error).__name__}, not with"
                f" ValueError. Compare the checksum of {of} before you use {of}."
            )
        return (
            f"A flipped bit in {part} goes unnoticed: compare masked_crc(…) of the 8 bytes of the"
            " length, and of the data, with the stored checksums; raise ValueError if one differs."
        )
    return None


def _error_hint(error: Exception, records: int) -> str:
    """Return the likely mistake of a reader that fails after some records of a good shard."""
    if records == 3 or isinstance(error, struct.error):
        return (
            "At the end of the file `file.read` returns fewer bytes: stop there. A length takes 8"
            " bytes, `<Q`, and a checksum 4, `<I`."
        )
    if records:
        return AFTER
    if isinstance(error, ValueError):
        return (
            "Both checksums are right there: are your numbers little-endian, `<`, of which bytes"
            " do you compute the checksum, and do you take the first value of struct's tuple?"
        )
    if isinstance(error, MemoryError | OverflowError):
        return "It takes wrong bytes for a length: is it `<Q`, little-endian?"
    return ""


def _wrong_records(found: list[Any], contents: list[bytes], records: list[bytes]) -> str:
    """Return which mistake explains the records that were read."""
    if found == records or found[:1] == records[:1]:
        return "It yields whole records: leave out the 12 bytes before the data and the 4 after."
    if found and not isinstance(found[0], bytes):
        return f"It yields {type(found[0]).__name__}: yield the data as bytes."
    if len(found) == 10:
        return "It does not end: when `file.read` returns b'', the file has ended."
    if found == contents[:1]:
        return "It yields the first of three records only: repeat until the file has ended."
    if found == [data for data in contents if data]:
        return "A record may be empty: stop when the *file* ends, not when the data is empty."
    if found[:1] == contents[:1]:
        return f"The first record is right, the second is not. {AFTER}"
    if not found:
        return "It yields nothing: use `yield`, or return a list of the data of all records."
    return f"The first record should be {contents[0]!r}, and it is {found[0]!r}."


RANKS, SHARDS, EACH, BATCH = 2, 4, 12, 8  # of the check's data set
WIDTH, HEIGHT = 240, 180  # of its images: red is the column, green the row


def find_pipeline_mistake(yours: Pipeline, folder: Path) -> str | None:
    """Return what is wrong with a pipeline, None if nothing, "" if not attempted."""
    shards = write_numbered_shards(folder)
    passes: dict[int, list[list[int]]] = {}
    for rank in range(RANKS):
        hidden = [Path(shard) for shard in shards[1 - rank :: RANKS]]
        try:
            result = yours(shards, rank, RANKS, BATCH, 0)
            if result is None:
                return ""
            labels = [_labels(result) for _ in range(2)]
            for shard in hidden:
                shard.rename(f"{shard}.away")
            try:
                list(itertools.islice(yours(shards, rank, RANKS, BATCH, 0), 1))
            except Exception as error:
                if "NotFound" not in type(error).__name__:
                    raise
                return (
                    f"Rank {rank} opens files of other ranks. Shard the list of file names"
                    " first, before anything shuffles or opens them."
                )
            finally:
                for shard in hidden:
                    Path(f"{shard}.away").rename(shard)
        except _Wrong as wrong:
            return str(wrong)
        except Exception as error:
            text = str(error).splitlines()[0].split("}} ")[-1].split(" [Op:")[0].rstrip(".")
            more = " `decode_crop` takes one record: map before you batch." * ("scalar" in text)
            return f"It ended with {type(error).__name__}: {text}.{more}"
        passes[rank] = labels
    first, second = (set(passes[rank][0]) for rank in (0, 1))
    if first & second:
        return (
            f"{len(first & second)} of {SHARDS * EACH} images are read by both ranks: give rank"
            " `rank` of `size` its shards, with `.shard(size, rank)`."
        )
    if len(first) < SHARDS * EACH // RANKS:
        return (
            f"Rank 0 reads {len(first)} different images in a pass, instead of"
            f" {SHARDS * EACH // RANKS}: each rank reads all records of its shards, once."
        )
    if passes[0][0] == passes[0][1]:
        return "Both passes have the same order: let `shuffle` draw a new one on each pass."
    odd = yours(shards, 0, RANKS, BATCH - 1, 0)
    if {len(labels) for _, labels in itertools.islice(odd, 10)} != {BATCH - 1}:
        return (
            f"The last batch of {len(first)} images in batches of {BATCH - 1} is not full: pass"
            " drop_remainder=True."
        )
    mine = [label // EACH for label in passes[0][0]]
    if [label for label in passes[0][0] if label // EACH == mine[0]] == sorted(
        label for label in passes[0][0] if label // EACH == mine[0]
    ):
        return "Records of a shard stay in their order: shuffle after interleave."
    return None


class _Wrong(Exception):
    """Raised for a wrong batch: what is wrong with it."""


def _labels(dataset: Any) -> list[int]:
    """Return the labels of a pass, which number the images. Raises _Wrong for a wrong batch."""
    found: list[int] = []
    for element in itertools.islice(dataset, 2 * SHARDS * EACH // BATCH):
        if not (isinstance(element, tuple) and len(element) == 2):
            raise _Wrong("An element should be a pair, images and labels: map `decode_crop`.")
        images, labels = (np.asarray(part) for part in element)
        if labels.ndim != 1 or images.ndim != 4:
            raise _Wrong(
                f"An element has shapes {images.shape} and {labels.shape}: batch the images, once,"
                " after map."
            )
        if len(labels) != BATCH:
            raise _Wrong(
                f"A batch has {len(labels)} images instead of {BATCH}: pass `batch`, and"
                " drop_remainder=True."
            )
        found += labels.tolist()
    if not found:
        raise _Wrong("It has no batches.")
    if len(found) == 2 * SHARDS * EACH:
        raise _Wrong("A pass does not end: leave out `repeat`.")
    return found


def write_numbered_shards(folder: Path) -> list[str]:
    """Write shards of small images, with indexes; labels, from 1, number them. Return the paths."""
    from PIL import Image

    buffer = io.BytesIO()
    across, down = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))  # they show the crop
    pixels = np.stack([across, down, 0 * down], axis=2).astype(np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95, subsampling=0)
    shards = []
    (folder / "index").mkdir(exist_ok=True)
    for number in range(SHARDS):
        labels = range(number * EACH + 1, (number + 1) * EACH + 1)
        data = [serialize_example({IMAGE: buffer.getvalue(), LABEL: label}) for label in labels]
        shard = folder / f"train-{number:05}-of-{SHARDS:05}"
        with open(shard, "wb") as file:
            index_path(shard).write_bytes(format_index(write_records(file, data)))
        shards.append(str(shard))
    return shards

"""The checks of what a learner writes in notebook 04, and the finished versions."""

from __future__ import annotations

import functools
import io
import itertools
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.tfrecordwriter import format_index, frame_record, serialize_example, write_records
from rn50lib.data.tfrecord import IMAGE, LABEL, index_path, masked_crc
from workshop.checks.compare import refuse, wrong
from workshop.checks.engine import message, own_frame
from workshop.checks.ex04 import what_is_slow
from workshop.checks.ramps import ramps
from workshop.lessons.choice import Function, choose

AFTER = "The data, which may be empty, come after 12 bytes, 4 bytes before the next record."


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


def my_shards(
    shards: Sequence[str], rank: int, size: int, worker: int, workers: int
) -> Sequence[str]:
    """Return the shards that one of `workers` workers reads on one of `size` ranks."""
    return shards[rank::size][worker::workers]


# --- what is wrong with a learner's version -------------------------------------------------------


def check_read(yours: Function) -> Function:
    with tempfile.TemporaryDirectory() as folder:
        judge = functools.partial(judge_read, yours, Path(folder))
        return choose("read", yours, read, judge, show=True)


def check_my_shards(yours: Function) -> Function:
    judge = functools.partial(judge_my_shards, yours)
    return choose("my_shards", yours, my_shards, judge, show=True)


def check_pipeline(yours: Function, decode_crop: Callable[[Any], Any]) -> Function:
    """Return a learner's `pipeline` if it is right, else the finished one; print what is wrong.

    `decode_crop` turns a record into an image and its label from 0.
    """

    def pipeline(shards: Sequence[str], rank: int, size: int, batch: int, seed: int) -> Any:
        """Return one rank's full batches as a dataset; each pass has a new order."""
        import tensorflow as tf

        auto = tf.data.AUTOTUNE
        files = tf.data.Dataset.from_tensor_slices(list(shards)).shard(size, rank)
        records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=auto)
        images = records.shuffle(1000, seed).map(decode_crop, num_parallel_calls=auto)
        return images.batch(batch, drop_remainder=True).prefetch(2)

    with tempfile.TemporaryDirectory() as folder:
        judge = functools.partial(judge_pipeline, yours, Path(folder))
        return choose("pipeline", yours, pipeline, judge, show=True)


def judge_read(yours: Function, folder: Path) -> str:
    contents = [b"first", b"", b"third"]
    records = [frame_record(data) for data in contents]
    good = folder / "shard"
    good.write_bytes(b"".join(records))
    found, error = read_all(yours, good)
    if error is not None:
        after = f" after {len(found)} record(s)" if found else ""
        then = f"{own_frame(error, yours)} {_error_hint(error, len(found))}".strip()
        wrong(f"Reading a good shard of three records ended{after} with {message(error)}.", then)
    if found != contents:
        _refuse_records(found, contents, records)
    parts = {"the length": 0, "the checksum of the length": 9, "the data": 14,
             "the checksum of the data": len(records[0]) - 1}  # fmt: skip
    for part, place in parts.items():
        damaged = bytearray(good.read_bytes())
        damaged[place] ^= 1
        (folder / "damaged").write_bytes(damaged)
        found, error = read_all(yours, folder / "damaged")
        of = part.removeprefix("the checksum of ")
        refuse(
            (error is None, f"A flipped bit in {part} raises no ValueError.",
             "Compare masked_crc(…) of the 8 bytes of the length, and of the data, with the stored"
             " checksums; raise ValueError if one differs."),
            (not isinstance(error, ValueError), f"With a flipped bit in {part}, it ends with"
             f" {type(error).__name__}, not with ValueError.",
             f"Compare the checksum of {of} before you use {of}."),
            (found, f"With a flipped bit in {part}, it yields the record and raises ValueError only"
             " after that.", "Compare the checksum before you yield the data."),
        )  # fmt: skip
    return "`read` is right: the notebook uses yours."


def read_all(yours: Function, shard: Path) -> tuple[list[Any], Exception | None]:
    """Return the records that a reader yields, ten at most, and the error that ends it."""
    found: list[Any] = []
    try:
        if (result := yours(str(shard))) is None:
            raise NotImplementedError
        found.extend(itertools.islice(result, 10))
    except NotImplementedError:
        raise
    except Exception as error:
        return found, error
    return found, None


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
            'Both checksums are right there. Do you open the file with "rb", are your numbers'
            " little-endian, `<`, of which bytes do you compute the checksum, and do you take the"
            " first value of struct's tuple?"
        )
    return ""


def _refuse_records(found: list[Any], contents: list[bytes], records: list[bytes]) -> None:
    """Raise Wrong with the mistake that explains the records that were read."""
    first = found[0] if found else b""
    refuse(
        (not found, "It yields nothing.",
         "Use `yield`, or return a list of the data of all records."),
        (first == records[0], "It yields whole records.",
         "Leave out the 12 bytes before the data and the 4 after."),
        (isinstance(first, int), "It returns the data of one record.",
         "Use `yield`, which goes on with the next one."),
        (not isinstance(first, bytes), f"It yields {type(first).__name__}.",
         "Yield the data of each record, as bytes."),
        (len(found) == 10, "It does not end.",
         "When `file.read` returns b'', the file has ended."),
        (True, f"It should yield {contents}, and it yields {found}.", AFTER),
    )  # fmt: skip


# shards, ranks, and workers of each rank
READERS = ((8, 1, 2), (8, 2, 2), (8, 2, 3), (12, 3, 2))


def judge_my_shards(yours: Function) -> str:
    for count, size, workers in READERS:
        readers: dict[str, list[str]] = {f"shard {number}": [] for number in range(count)}
        shares = [0] * size
        for rank, worker in itertools.product(range(size), range(workers)):
            given = yours(list(readers), rank, size, worker, workers)
            if given is None:
                raise NotImplementedError
            own = [given] if isinstance(given, str) else list(given)
            if not {*map(str, own)} <= {*readers}:
                wrong(f"It returns {own!r}.", "Return a list of some of the shards.")
            shares[rank] += len(own)
            for shard in own:
                readers[str(shard)].append(f"worker {worker} of rank {rank}")
        unread = [shard for shard, who in readers.items() if not who]
        twice = max(readers.values(), key=len)[:2]
        case = f"With {count} shards and {size} x {workers} workers,"
        refuse(
            (len(twice) > 1, f"{case} {' and '.join(twice)} read the same shard.",
             "Split by rank, `[rank::size]`, and each rank's share by worker."),
            (unread, f"{case} {len(unread)} shards are not read.",
             "Use `size` for the ranks, `workers` for the workers."),
            (max(shares) > min(shares) + 1, f"{case} the ranks read {shares} shards.",
             "Split by rank first, then each share by worker."),
        )  # fmt: skip
    return "`my_shards` is right: the notebook uses yours."


RANKS, SHARDS, EACH, BATCH = 2, 4, 12, 8  # of the check's data set
WIDTH, HEIGHT = 240, 180  # of its images, which show the crop
OPENS = ("A rank opens files of other ranks.",
         "Shard the list of file names first, before anything shuffles or opens them.")  # fmt: skip


def judge_pipeline(yours: Function, folder: Path) -> str:
    shards = write_numbered_shards(folder)
    try:
        return _judge_stages(yours, shards)
    except Exception as error:  # TensorFlow's own
        refuse(
            ("Could not parse example" in str(error), "`decode_crop` gets a file name, no record.",
             "Read the files before `map`: files.interleave(tf.data.TFRecordDataset)."),
            ("serialized must be a scalar" in str(error), "`decode_crop` gets a batch of records.",
             "It takes one record: `map` before `batch`."),
            ("Number of shards must" in str(error), "`shard` gets a rank as the number of shards.",
             "The number comes first: .shard(size, rank)."),
        )  # fmt: skip
        raise


def _judge_stages(yours: Function, shards: list[str]) -> str:
    passes: list[list[list[int]]] = []
    own: list[set[int]] = []  # the shards of each rank's images
    for rank in range(RANKS):
        result = yours(shards, rank, RANKS, BATCH, 0)
        if result is None:
            raise NotImplementedError
        if not hasattr(result, "as_numpy_iterator"):
            wrong(f"It returns a {type(result).__name__}.", "Return the dataset itself.")
        passes.append([_labels(result) for _ in range(2)])
        own.append({label // EACH for label in passes[rank][0]})
        hidden = [Path(shard) for n, shard in enumerate(shards) if n not in own[rank]]
        for shard in hidden:
            shard.rename(f"{shard}.away")
        try:
            list(itertools.islice(yours(shards, rank, RANKS, BATCH, 0), 1))
        except Exception as error:
            refuse(("NotFound" in type(error).__name__, *OPENS))
            raise
        finally:
            for shard in hidden:
                Path(f"{shard}.away").rename(shard)
    first = set(passes[0][0])
    twice = max((set(a) & set(b) for a, b in zip(*passes, strict=True)), key=len)  # of a pass
    each, odd = SHARDS * EACH // RANKS, yours(shards, 0, RANKS, BATCH - 1, 0)
    order = passes[0][0]
    in_batches = [
        [label for label in order[at : at + BATCH] if label // EACH == shard]
        for at in range(0, len(order), BATCH)
        for shard in range(SHARDS)
    ]
    of_shard = [label for label in order if label // EACH == order[0] // EACH]
    refuse(
        (0 < len(twice) < SHARDS * EACH,
         f"{len(twice)} of {SHARDS * EACH} images are read by both ranks.",
         "Use `.shard(size, rank)` before anything shuffles; `list_files` shuffles, too."),
        (twice, f"{len(twice)} of {SHARDS * EACH} images are read by both ranks.",
         "Give rank `rank` of `size` its shards, with `.shard(size, rank)`, before you shuffle."),
        (set.intersection(*own), *OPENS),
        (len(first) < each,
         f"Rank 0 reads {len(first)} different images in a pass, instead of {each}.",
         "Each rank reads all records of its shards, once."),
        (passes[0][0] == passes[0][1], "Both passes have the same order.",
         "Shuffle the records, after any `cache`, and without reshuffle_each_iteration=False."),
        ({len(labels) for _, labels in itertools.islice(odd, 10)} != {BATCH - 1},
         f"The last batch of {each} images in batches of {BATCH - 1} is not full.",
         "Pass drop_remainder=True."),
        (of_shard == sorted(of_shard), "Records of a shard stay in their order.",
         "Shuffle after interleave."),
        (all(labels == sorted(labels) for labels in in_batches),
         "Whole batches are shuffled, not records.", "Shuffle before `batch`."),
    )  # fmt: skip
    return "`pipeline` is right: the notebook uses yours." + what_is_slow(yours, odd)


def _labels(dataset: Any) -> list[int]:
    """Return the labels of a pass, which number the images. Raises Wrong for a wrong batch."""
    found: list[int] = []
    for element in itertools.islice(dataset, 2 * SHARDS * EACH // BATCH):
        if not (isinstance(element, tuple) and len(element) == 2):
            wrong("An element should be a pair, images and labels.", "Map `decode_crop`.")
        images, labels = (np.asarray(part) for part in element)
        refuse(
            (labels.ndim != 1 or images.ndim != 4,
             f"An element has shapes {images.shape} and {labels.shape}.",
             "Batch the images, once, after map."),
            (labels.size != BATCH, f"A batch has {labels.size} images instead of {BATCH}.",
             "Pass `batch`, and drop_remainder=True."),
        )  # fmt: skip
        found += labels.tolist()
    refuse(
        (
            not found,
            f"It has no batches of {BATCH} images, the size that the check passes.",
            "Pass `batch`, not a number, and batch the images of the rank's shards.",
        ),
        (len(found) == 2 * SHARDS * EACH, "A pass does not end.", "Leave out `repeat`."),
    )
    return found


def write_numbered_shards(folder: Path) -> list[str]:
    """Write shards of small images, with indexes; labels, from 1, number them. Return the paths."""
    from PIL import Image

    buffer = io.BytesIO()
    pixels = ramps(WIDTH, HEIGHT)
    pixels[:, ::2, 2] = 128  # fine blue stripes, which show a resize without antialiasing
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

"""The checks of what a learner writes in notebook 04, and the finished versions."""

from __future__ import annotations

import functools
import io
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.tfrecordwriter import format_index, serialize_example, write_records
from rn50lib.data.tfrecord import IMAGE, LABEL, index_path, masked_crc
from workshop.checks.compare import Mistake, refuse, returned, wrong
from workshop.checks.engine import own_frame
from workshop.checks.ex04 import batches_of, judge_epochs, small_buffer, stages, what_is_slow
from workshop.checks.ramps import ramps
from workshop.lessons.choice import Function, choose, in_folder, lesson_check

FORMAT = (
    "A length takes 8 bytes, `<Q`, a checksum 4, `<I`. The data, which may be empty, come after 12"
    " bytes, 4 bytes before the next record. At the end of the file, `file.read` returns b''."
)


def frame_record(data: bytes) -> bytes:
    """Return the bytes of a record: the data with its length and the two checksums."""
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", masked_crc(size)) + data + struct.pack("<I", masked_crc(data))


def read(path: str) -> Iterator[bytes]:
    """Yield the data of each record of a shard; raise ValueError if it is damaged."""
    with open(path, "rb") as file:
        while head := file.read(12):
            if head[8:] != struct.pack("<I", masked_crc(head[:8])):
                raise ValueError(f"{path}: the checksum of a length is wrong")
            (length,) = struct.unpack("<Q", head[:8])
            data = file.read(length)
            if file.read(4) != struct.pack("<I", masked_crc(data)):
                raise ValueError(f"{path}: the checksum of {length:,} bytes of data is wrong")
            yield data


def my_shards(
    shards: Sequence[str], rank: int, size: int, worker: int, workers: int
) -> Sequence[str]:
    """Return the shards that one of `workers` workers reads on one of `size` ranks."""
    return shards[rank::size][worker::workers]


# --- what is wrong with a learner's version -------------------------------------------------------

RECORDS = ((b"first",), (b"",), (bytes(range(256)) * 2,))
FRAME_MISTAKES: tuple[Mistake, ...] = (
    (lambda data: framed(data, ">"), "Your numbers are big-endian.", "Use `<` in struct.pack."),
    (lambda data: framed(data, size="I"), "Your length has 4 bytes.", "Use `<Q`, which has 8."),
    (lambda data: framed(data, extra=16), "Your length is that of the whole record.",
     "Write that of the data."),
    (lambda data: framed(data)[:8] + framed(data)[12:], "Your length has no checksum.",
     "Put masked_crc of its 8 bytes after it."),
    (lambda data: framed(data)[:-4] + struct.pack("<I", masked_crc(framed(data)[:-4])),
     "Your last checksum is that of everything before it.", "Compute it from the data only."),
    (lambda data: struct.pack(f"QI{len(data)}sI",
                              *struct.unpack(f"<QI{len(data)}sI", framed(data))),
     "Your record has padding.", "Begin the format with `<`, which adds none."),
)  # fmt: skip


def framed(data: bytes, order: str = "<", size: str = "Q", extra: int = 0) -> bytes:
    """Return a record, right or with a mistake."""
    head = struct.pack(order + size, len(data) + extra)
    crcs = [struct.pack(f"{order}I", masked_crc(part)) for part in (head, data)]
    return head + crcs[0] + data + crcs[1]


FRAME_HINT = "Four parts: struct.pack('<Q', …), a checksum as '<I', the data, a checksum as '<I'."
SHARDS_HINT = "Take every `size`-th shard, then every `workers`-th of those."


def check_stage(
    name: str, yours: Function, decode_crop: Callable[[Any], Any], cores: int, batch_size: int
) -> Function:
    """Return a learner's `parallel_map` or `prefetch` if it is right, else the finished one."""

    def parallel_map(records: Any) -> Any:
        """Return batches of crops in the records' order, made `cores` at a time."""
        return records.map(decode_crop, num_parallel_calls=cores).batch(batch_size)

    def prefetch(records: Any) -> Any:
        """Return the same batches, two of them prepared ahead."""
        return parallel_map(records).prefetch(2)

    finished = prefetch if name == "prefetch" else parallel_map
    judge = functools.partial(judge_stage, yours, batch_size, cores, finished is prefetch)
    hint = "`map` takes num_parallel_calls; the dataset that `batch` returns has a `prefetch`."
    return choose(name, yours, finished, judge, hint)


def calls_of(dataset: Any, stage: str) -> list[int]:
    """Return how many calls each stage of a kind makes at a time: 0 in turn, -1 for AUTOTUNE."""
    return [*map(int, settings_of(dataset, stage, "_num_parallel_calls"))]


def settings_of(dataset: Any, stage: str, name: str) -> list[Any]:
    """Return a setting of each stage of a kind, 0 where it has none."""
    kinds = f"_{stage}Dataset", f"_Parallel{stage}Dataset"
    found = [getattr(one, name, 0) for one in stages(dataset) if type(one).__name__ in kinds]
    return [value.numpy() if hasattr(value, "numpy") else value for value in found]


@in_folder
def judge_stage(yours: Function, folder: Path, batch: int, cores: int, ahead: bool) -> None:
    import tensorflow as tf

    made = returned(yours(tf.data.TFRecordDataset(write_numbered_shards(folder))))
    read = [np.ravel(labels).tolist() for _, labels in batches_of(made, SHARDS * EACH)]
    last = type(made).__name__
    queued = max(settings_of(made, "Prefetch", "_buffer_size"), default=0)
    whole = list(range(SHARDS * EACH))
    refuse(
        ([n for numbers in read for n in numbers] != whole[: sum(map(len, read))],
         "The images are not those of the records, in order.", "Use `map` and `batch` only."),
        (not read or len(read[0]) != min(batch, len(whole)), f"The batches have"
         f" {len(read[0]) if read else 0} images.", "Use .batch(batch_size), after `map`."),
        (not {*calls_of(made, "Map")} <= {cores, -1}, "`map` does not make `cores` crops at once.",
         "Pass num_parallel_calls=cores."),
        ("false" in settings_of(made, "Map", "_deterministic"), "The images are in no fixed order.",
         "Leave out `deterministic`."),
        (ahead and "Prefetch" not in last, "It prepares no batches ahead.",
         "Call `prefetch` of what parallel_map returns."),
        (ahead and queued > 8, f"It prepares {queued} batches ahead, which takes memory.",
         "After `batch`, `prefetch` counts batches: prefetch(2)."),
        (not ahead and calls_of(made, "Prefetch"), "It prefetches, too.",
         "That is the next stage."),
    )  # fmt: skip


def check_pipeline(yours: Function, decode_crop: Callable[[Any], Any]) -> Function:
    """Return a learner's `pipeline` if it is right, else the finished one; print what is wrong.

    `decode_crop` turns a record into an image and its label from 0.
    """

    def pipeline(shards: Sequence[str], rank: int, size: int, batch: int, seed: int) -> Any:
        """Return one rank's full batches as a dataset, in a new order on each pass."""
        import tensorflow as tf

        auto = tf.data.AUTOTUNE
        files = tf.data.Dataset.from_tensor_slices(list(shards)).shard(size, rank)
        records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=auto)
        images = records.shuffle(1000, seed).map(decode_crop, num_parallel_calls=auto)
        return images.batch(batch, drop_remainder=True).prefetch(2)

    judge = functools.partial(judge_pipeline, yours)
    hint = "Shard the file names; read before you shuffle, and shuffle before you decode."
    return choose("pipeline", yours, pipeline, judge, hint)


def judge_read(yours: Function, folder: Path) -> None:
    contents = [b"first", b"", b"third"]
    records = [frame_record(data) for data in contents]
    shard = folder / "shard"
    shard.write_bytes(b"".join(records))
    found, error = read_all(yours, shard)
    refuse(
        (isinstance(error, ValueError) and not found,
         f"Reading a good shard of three records ends with {error}.",
         'Both checksums are right there. Do you open the file with "rb", are your numbers'
         " little-endian, `<`, of which bytes do you compute the checksum, do you take the first"
         " value of struct's tuple, and do you stop at the end of the file?"),
        (error, f"Reading a good shard of three records ends with {error!r}, after"
         f" {len(found)} of them.", f"{FORMAT} {own_frame(error, yours) if error else ''}"),
        (found and isinstance(found[0], int), "It returns the data of one record.",
         "Use `yield`, which continues with the next one."),
        (found != contents, f"It should yield {contents}, and it yields {found}.", FORMAT),
    )  # fmt: skip
    parts = {"the length": 6, "the checksum of the length": 9, "the data": 14,
             "the checksum of the data": len(records[0]) - 1}  # fmt: skip
    for before, (part, place) in itertools.product((0, 2), parts.items()):
        damaged = bytearray(b"".join(records))
        damaged[place + sum(map(len, records[:before]))] ^= 1
        shard.write_bytes(damaged)
        found, error = read_all(yours, shard)
        if len(found) > before or not isinstance(error, ValueError):
            ended = repr(error) if error else "no error"
            wrong(f"With a flipped bit in {part} of record {before + 1}, it yields {len(found)}"
                  f" record{'s' * (len(found) != 1)} and ends with {ended}.",
                  "Compare masked_crc(…) of the 8 bytes of the length with the stored"
                  " checksum before you use the length, and that of the data before you yield"
                  " them; raise ValueError if one differs.")  # fmt: skip
    for missing in (2, 6, len(records[2]) - 3):
        shard.write_bytes(b"".join(records)[:-missing])
        found, error = read_all(yours, shard)
        refuse((error is None or len(found) > 2, f"Without its last {missing} bytes, a shard is"
                f" read without an error: {len(found)} records.", "`file.read` returns fewer bytes"
                " at the end of the file: raise ValueError."))  # fmt: skip


def read_all(yours: Function, shard: Path) -> tuple[list[Any], Exception | None]:
    """Return the records that a reader yields, ten at most, and the error that ends it."""
    found: list[Any] = []
    try:
        result = yours(str(shard))
        found.extend(itertools.islice(result or (), 10))
    except Exception as error:
        return found, error
    returned(result)
    return found, None


# shards, ranks, and workers of each rank
READERS = ((8, 1, 2), (8, 2, 2), (8, 2, 3), (12, 3, 2))


def judge_my_shards(yours: Function) -> None:
    for count, size, workers in READERS:
        readers: dict[str, list[str]] = {f"shard {number}": [] for number in range(count)}
        shares = np.zeros((size, workers), int)
        for rank, worker in itertools.product(range(size), range(workers)):
            given = returned(yours(list(readers), rank, size, worker, workers))
            own = [given] if isinstance(given, str) else list(given)
            if not {*map(str, own)} <= {*readers}:
                wrong(f"It returns {own!r}.", "Return a list of some of the shards.")
            shares[rank, worker] += len(own)
            for shard in own:
                readers[str(shard)].append(f"worker {worker} of rank {rank}")
        unread = [shard for shard, who in readers.items() if not who]
        twice = max(readers.values(), key=len)[:2]
        case = f"With {count} shards and {size} x {workers} workers,"
        uneven = int(np.ptp(shares, axis=1).argmax())
        refuse(
            (len(twice) > 1, f"{case} {' and '.join(twice)} read the same shard.",
             "Every reader must take other shards, in every epoch: split by rank,"
             " `[rank::size]`, and each rank's share by worker; a random split overlaps."),
            (unread and len(unread) == count % (size * workers),
             f"{case} {len(unread)} shards are not read.",
             "An equal share by `//` drops the rest: some readers take one shard more."),
            (unread, f"{case} {len(unread)} shards are not read.",
             "Use `size` for the ranks, `workers` for the workers."),
            (np.ptp(shares.sum(1)) > 1, f"{case} the ranks read {shares.sum(1).tolist()} shards.",
             "Split by rank first, then each share by worker."),
            (np.ptp(shares, axis=1).max() > 1, f"{case} the workers of rank {uneven} read"
             f" {shares[uneven].tolist()} shards.",
             "Give each worker of a rank an equal part of that rank's share."),
        )  # fmt: skip


RANKS, SHARDS, EACH, BATCH = 2, 4, 12, 8  # of the check's data set
WIDTH, HEIGHT = 240, 180  # of its images, which show the crop


@in_folder
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
        )  # fmt: skip
        raise


def _judge_stages(yours: Function, shards: list[str]) -> str:
    def epochs(shards: list[str], batch: int) -> list[list[np.ndarray]]:
        """Return two epochs, each with the numbers of every rank's images (steps, batch)."""
        made = [yours(shards, rank, RANKS, batch, 0) for rank in range(RANKS)]
        both = [[_numbers(dataset, batch) for dataset in made] for _ in range(2)]
        found = [[numbers for numbers, _ in parts] for parts in both]
        means.extend({(n, mean) for numbers, crops in parts
                      for n, mean in zip(numbers.flat, crops.flat, strict=True)}
                     for parts in both)  # fmt: skip
        return found

    means: list[set[tuple[int, float]]] = []

    ends = [EACH * (number + 1) for number in range(SHARDS)]
    steps = SHARDS * EACH // RANKS // BATCH
    read = epochs(shards, BATCH)
    numbers = np.concatenate([part.ravel() for part in read[0]])
    if numbers.size:
        low, high = numbers.min(), numbers.max()
        refuse((low < 0 or high >= SHARDS * EACH,
                f"Labels are {low} to {high} instead of 0 to {SHARDS * EACH - 1}.",
                "Leave them as `decode_crop` returns them: they begin at 0."))  # fmt: skip
    judge_epochs(read, ends, steps)
    refuse((2 * len(means[0] & means[1]) > len(means[0]),
            "Images have the same crop in both epochs.",
            "Remove `cache`, or put it before `map`, which draws the crops."))  # fmt: skip
    # 24 images of a rank do not fill batches of 7
    judge_epochs(epochs(shards, BATCH - 1), ends, steps)
    for rank, numbers in enumerate(read[0]):
        own = set(numbers.ravel() // EACH)
        given = [path if n in own else f"{path}.missing" for n, path in enumerate(shards)]
        try:
            list(itertools.islice(yours(given, rank, RANKS, BATCH, 0), 1))
        except Exception as error:
            refuse(("NotFound" in type(error).__name__, "A rank opens files of other ranks.",
                    "Shard the list of file names first, before anything shuffles or opens them.",
                    ))  # fmt: skip
            raise
    made = yours(shards, 0, RANKS, BATCH, 0)
    remarks = what_is_slow(made, draws=True)
    if 0 in calls_of(made, "Interleave"):
        remarks += " Slow over a network: `interleave` needs `num_parallel_calls` to read ahead."
    if small := small_buffer(read[0], ends):
        remarks += f" Weak: {small}"
    return f"`pipeline` is right: the notebook uses yours.{remarks}"


def _numbers(dataset: Any, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the images' numbers, which are their labels, and means in a pass (steps, batch).

    Raises Wrong for a batch of a wrong form.
    """
    found = []
    for images, labels in batches_of(returned(dataset), SHARDS * EACH):
        if images.ndim != 4 or labels.shape != (batch,):
            wrong(f"An element has shapes {images.shape} and {labels.shape}, with {batch} as the"
                  " batch size.", "Batch the images, once, after map; pass `batch`, and"
                  " drop_remainder=True.")  # fmt: skip
        found.append((labels, images.mean((1, 2, 3))))
    numbers = np.array([labels for labels, _ in found], int)
    return numbers.reshape(-1, batch), np.array([means for _, means in found])


def striped_ramps() -> np.ndarray:
    """Return an image with fine blue stripes, which show a resize without antialiasing."""
    pixels = ramps(WIDTH, HEIGHT)
    pixels[:, ::2, 2] = 128
    return pixels


def striped_jpeg() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(striped_ramps()).save(buffer, "JPEG", quality=95, subsampling=0)
    return buffer.getvalue()


def write_numbered_shards(folder: Path) -> list[str]:
    """Write shards of small images, with indexes; labels, from 1, number them. Return the paths."""
    image, shards = striped_jpeg(), []
    (folder / "index").mkdir(exist_ok=True)
    for number in range(SHARDS):
        labels = range(number * EACH + 1, (number + 1) * EACH + 1)
        data = [serialize_example({IMAGE: image, LABEL: label}) for label in labels]
        shard = folder / f"train-{number:05}-of-{SHARDS:05}"
        with open(shard, "wb") as file:
            index_path(shard).write_bytes(format_index(write_records(file, data)))
        shards.append(str(shard))
    return shards


check = lesson_check(
    (frame_record, RECORDS, FRAME_MISTAKES, FRAME_HINT),
    (read, in_folder(judge_read), FORMAT),
    (my_shards, judge_my_shards, SHARDS_HINT),
    parallel_map=functools.partial(check_stage, "parallel_map"),
    prefetch=functools.partial(check_stage, "prefetch"),
    pipeline=check_pipeline,
)

"""TFRecord shards as a source: each record by its number.

Two kinds of examples are known: the field's, with an encoded image and a label from 1 on, and the
slides', with raw pixels and a label from 0 on as a float. Labels and offsets come from the sidecar
that `data_prep.tfrecord` writes, else from the shards and their indexes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.errors import UserError
from rn50lib.data import kept
from rn50lib.data.example import find_numbers, parse_example
from rn50lib.data.folder import compare_labels
from rn50lib.data.tfrecord import SPLIT_PREFIX, Shard, TFRecordReader, find_shards

IMAGE, LABEL, SYNSET = "image/encoded", "image/class/label", "image/class/synset"
RAW, RAW_LABEL, HEIGHT, WIDTH = "img_raw", "label", "height", "width"
LARGE = 20_000_000  # bytes from which on the labels are kept: up to 100,000 examples
OPEN_SHARDS = 64  # at the same time: each takes a file descriptor
WRITE_AGAIN = "write the shards again with `python -m data_prep.tfrecord`"


@dataclass
class ShardSource:
    """A split as TFRecord shards; image i is record ``i - firsts[s]`` of shard ``s``.

    ``firsts`` is int64 of shape (shards + 1,): the number of the first image of each shard, and
    the images in all. ``raw`` says that the examples are the slides'.
    """

    root: Path
    path: Path
    labels: np.ndarray = field(repr=False)
    classes: tuple[str, ...]
    shards: tuple[Path, ...] = field(repr=False)
    firsts: np.ndarray = field(repr=False)
    raw: bool
    offsets: np.ndarray = field(repr=False)
    remarks: tuple[str, ...] = ()
    format: str = "tfrecord"
    _open: dict[int, TFRecordReader] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """Return the shard, with number and offset of the record of image i."""
        shard = self._shard(i)
        position = i - int(self.firsts[shard])
        return f"{self.shards[shard]}: record {position} at offset {int(self.offsets[i]):,}"

    def read(self, i: int) -> bytes:
        """Return the encoded image in record i; raw pixels come as a PPM image.

        Raises RecordError if the record is damaged, UserError if it holds no image.
        """
        shard = self._shard(i)
        if shard not in self._open:
            if len(self._open) == OPEN_SHARDS:
                self._open.clear()
            self._open[shard] = TFRecordReader(self.shards[shard])
        data = self._open[shard].read_at(int(self.offsets[i]))
        image, *size = _features(data, self.name(i), (RAW, HEIGHT, WIDTH) if self.raw else (IMAGE,))
        if not image:
            raise UserError(f"{self.name(i)}: this image has no bytes; {WRITE_AGAIN}")
        if not self.raw:
            return image
        height, width = size
        if len(image) != 3 * height * width:
            raise UserError(
                f"{self.name(i)}: {RAW} has {len(image):,} bytes, but {HEIGHT} x {WIDTH} x 3 is "
                f"{height:g} x {width:g} x 3; {WRITE_AGAIN}"
            )
        return b"P6 %d %d 255\n" % (width, height) + image

    def find_damage(self, message: str) -> UserError:
        """Return the error for a damaged record of which TensorFlow says only the offset, that of
        the record or of its data, in some shard."""
        found = re.search(r"record at (\d+)", message)
        offset = int(found[1]) if found else -1
        for i in np.flatnonzero(np.isin(self.offsets, (offset, offset - 12))).tolist():
            try:
                self.read(i)
            except UserError as error:
                return error
        return UserError(f"{self.path}: TensorFlow says: {message}")

    def _shard(self, i: int) -> int:
        return int(np.searchsorted(self.firsts, i, side="right")) - 1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


def shard_folder(root: Path) -> Path | None:
    """Return the folder with the shards of a data root: `tfrecord` in it, or the root itself."""
    for folder in (root / "tfrecord", root):
        if any(folder.glob("train-*-of-*")) or any(folder.glob("validation-*-of-*")):
            return folder
    return None


def open_shards(root: Path, split: str, names: tuple[str, ...] | None) -> ShardSource:
    """Open a split; ``names`` are the classes as classes.txt has them, None if it is missing.

    Raises UserError, which names the shard and the record, if a shard is missing, empty or damaged,
    if a label is no class, or if the label map is not that of classes.txt or of the other split.
    """
    folder = shard_folder(root) or root / "tfrecord"
    shards = find_shards(folder, split)
    found = _contents(folder, split, shards)
    other = "val" if split == "train" else "train"
    there: kept.Arrays | None = None
    reads_other = split == "train" or names is None  # scoring reads no training data
    if reads_other and any(folder.glob(f"{SPLIT_PREFIX[other]}-*-of-*")):
        there = _contents(folder, other, find_shards(folder, other))
    classes = _class_names(folder, split, found, there, names)
    remarks = compare_labels(root, split, found["labels"], there["labels"] if there else None)
    return ShardSource(
        root,
        folder,
        found["labels"],
        classes,
        tuple(shard.path for shard in shards),
        found["firsts"],
        bool(found["raw"]),
        found["offsets"],
        remarks,
    )


# -- labels and offsets --------------------------------------------------------------------------


def sidecar(folder: Path, split: str) -> Path:
    """Return the file with labels and offsets of a split; see `kept`."""
    return folder / f"{SPLIT_PREFIX[split]}.labels"


def write_sidecar(
    folder: Path, split: str, labels: np.ndarray, classes: Sequence[str], raw: bool
) -> None:
    """Write what `open_shards` has to know of shards that were just written with their indexes.

    ``labels`` are those of all records, in their order; ``classes`` are empty if the records do
    not name them.
    """
    shards = find_shards(folder, split)
    readers = [TFRecordReader(shard.path, shard.index) for shard in shards]
    found = _arrays([reader.offsets for reader in readers], labels, classes, raw)
    kept.save(sidecar(folder, split), kept.sizes([shard.path for shard in shards]), found)


def _arrays(
    offsets: list[np.ndarray], labels: np.ndarray, classes: Sequence[str], raw: bool
) -> kept.Arrays:
    """Return `offsets` and `labels` of all records, int64 and int32; the number of the first record
    of each shard, and of the records in all, as `firsts`; the names that the records have for the
    classes, if any; and whether the examples are the slides', as `raw`."""
    return {
        "offsets": np.concatenate(offsets),
        "labels": labels.astype(np.int32),
        "firsts": np.cumsum([0, *map(len, offsets)], dtype=np.int64),
        "classes": np.array(classes, np.str_),
        "raw": np.array(raw),
    }


def _contents(folder: Path, split: str, shards: list[Shard]) -> kept.Arrays:
    """Return the arrays of a split: from the sidecar, else found out, and kept if that is much."""
    files = [shard.path for shard in shards]
    path = sidecar(folder, split)
    find_out = partial(_find_contents, shards)
    if (written := kept.load_sidecar(path, files)) is not None:
        return written
    if sum(file.stat().st_size for file in files) < LARGE:
        return find_out()
    return kept.kept(path, files, find_out)


def _find_contents(shards: list[Shard]) -> kept.Arrays:
    raw = None
    offsets, labels, names = [], [], {}
    for shard in shards:
        reader = TFRecordReader(shard.path)
        found, raw = _read_labels(reader, raw)
        offsets.append(reader.offsets)
        labels.append(found)
        for label, position in zip(*np.unique(found, return_index=True), strict=True):
            if not raw and int(label) not in names:
                span = reader.spans[position].tolist()
                text = _parse(reader.file.data(), reader.path, (SYNSET,), *span).get(SYNSET)
                names[int(label)] = _text(text[0]) if text else ""
    classes = [names.get(label, "") for label in range(max(names, default=-1) + 1)]
    return _arrays(offsets, np.concatenate(labels), classes, bool(raw))


def _read_labels(reader: TFRecordReader, raw: bool | None) -> tuple[np.ndarray, bool]:
    """Return the labels of a shard, from 0 on, int32, and whether its examples are the slides'.

    ``raw`` is the kind of the shards before, None at the first.
    """
    name = f"{reader.path}: record 0 at offset 0"
    raw = _check_kind(_parse(reader.read_at(0), name, (LABEL,)), raw, name)
    key, first = (RAW_LABEL, 0) if raw else (LABEL, 1)
    labels = np.full(len(reader.spans), -1, np.int64)
    if not raw:
        with reader.file.scan(len(labels)) as mapped:
            data = np.frombuffer(mapped, np.uint8)
            starts, stops = reader.spans.T
            labels = find_numbers(data, starts, stops, LABEL) - 1
    for position in np.flatnonzero((labels < 0) | (labels >= 2**31)).tolist():
        name = f"{reader.path}: record {position} at offset {int(reader.offsets[position]):,}"
        span = reader.spans[position].tolist()
        (label,) = _features(reader.file.data(), name, (key,), *span)
        if not first <= label < 2**31 or label != int(label):
            remark = "; here labels count from 1, and 0 is unused" if label == 0 else ""
            raise UserError(f"{name}: the label {label:g} is no class{remark}; {WRITE_AGAIN}")
        labels[position] = int(label) - first
    return labels.astype(np.int32), raw


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _check_kind(features: dict[str, Any], before: bool | None, name: str) -> bool:
    """Return True if an example is the slides'. Raises UserError if it differs from ``before``."""
    if IMAGE not in features and RAW not in features:
        shown = ", ".join(sorted(features)) or "no features at all"
        raise UserError(f"{name}: this example has {shown}, not {IMAGE} or {RAW}; {WRITE_AGAIN}")
    raw = IMAGE not in features
    if before not in (None, raw):
        raise UserError(
            f"{name}: this example is of a different kind than those before; all shards must be "
            "written with the same --schema"
        )
    return raw


def _class_names(
    folder: Path,
    split: str,
    found: kept.Arrays,
    other: kept.Arrays | None,
    names: tuple[str, ...] | None,
) -> tuple[str, ...]:
    """Return the classes: those of classes.txt, else the names in the records, else numbers."""
    count = int(found["labels"].max()) + 1
    known, elsewhere = dict(enumerate(names or ())), "classes.txt"
    if names is not None and count > len(names):
        raise UserError(
            f"{folder}: the {split} shards have labels up to {count}, and classes.txt names "
            f"{len(names)} classes; correct the list, or write the shards again"
        )
    if names is None and other is not None:
        known = {i: name for i, name in enumerate(other["classes"].tolist()) if name}
        count = max(count, int(other["labels"].max()) + 1)
        elsewhere = f"the {'val' if split == 'train' else 'train'} shards"
    here = {i: name for i, name in enumerate(found["classes"].tolist()) if name}
    for label in here.keys() & known.keys():
        if here[label] != known[label]:
            raise UserError(
                f"{folder}: label {label + 1} is {here[label]!r} in the {split} shards and "
                f"{known[label]!r} in {elsewhere}: a label must mean one class; write the shards "
                "again together, or correct the list"
            )
    return names or tuple((known | here).get(label, str(label)) for label in range(count))


# -- features ------------------------------------------------------------------------------------


def _parse(data: Any, name: str, keys: Sequence[str], *span: int) -> dict[str, Any]:
    try:
        return parse_example(data, keys, *span)
    except ValueError as error:
        text = f"{name}: its data is no tf.train.Example ({error}); {WRITE_AGAIN}"
        raise UserError(text) from None


def _features(data: Any, name: str, keys: Sequence[str], *span: int) -> list[Any]:
    """Return the one value of each of these features of an Example."""
    found = _parse(data, name, keys, *span)
    for key in keys:
        wanted, kind = (bytes, "bytes") if key in (IMAGE, RAW) else ((int, float), "a number")
        if len(found.get(key, ())) != 1 or not isinstance(found[key][0], wanted):
            raise UserError(f"{name}: this example should have one {key}, {kind}; {WRITE_AGAIN}")
    return [found[key][0] for key in keys]

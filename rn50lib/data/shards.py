"""TFRecord shards as a source: every record at hand by its number, through DALI's indexes.

Two kinds of examples are known: the field's, with an encoded image and a label from 1 on, and the
slides', with raw pixels and a label from 0 on as a float. Where an index is missing it is made in
memory.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.errors import UserError
from rn50lib.data import kept
from rn50lib.data.example import (
    FeatureSpan,
    Spans,
    find_features,
    find_features_of_all,
    texts,
    values,
    whole_numbers,
)
from rn50lib.data.folder import compare_labels
from rn50lib.data.tfrecord import SPLIT_PREFIX, Shard, TFRecordReader, find_shards

IMAGE, LABEL, SYNSET = "image/encoded", "image/class/label", "image/class/synset"
RAW, RAW_LABEL, HEIGHT, WIDTH = "img_raw", "label", "height", "width"
LARGE_INDEX = 1_000_000  # bytes, of some 60,000 records: half a second's work
OPEN_SHARDS = 64  # mapped at the same time: each takes a file descriptor


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
    _offsets: np.ndarray = field(repr=False)
    format: str = "tfrecord"
    _open: OrderedDict[int, TFRecordReader] = field(default_factory=OrderedDict, repr=False)
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def position(self, i: int) -> tuple[int, int]:
        """(shard, position in it) of image i."""
        shard = int(np.searchsorted(self.firsts, i, side="right")) - 1
        return shard, i - int(self.firsts[shard])

    def name(self, i: int) -> str:
        """The shard, with number and offset of the record of image i."""
        shard, position = self.position(i)
        return f"{self.shards[shard]}: record {position} at offset {int(self._offsets[i]):,}"

    def read(self, i: int) -> bytes:
        """The encoded image in record i; raw pixels come as a PPM image.

        Raises RecordError if the record is damaged, UserError if it holds no image.
        """
        data = self._reader(self.position(i)[0]).read_at(int(self._offsets[i]))
        features = _features(data, 0, len(data), self.name(i))
        if not self.raw:
            image = _bytes_of(data, features, IMAGE, self.name(i))
            if not image:
                raise UserError(f"{self.name(i)}: this image has no bytes; write the shards again")
            return image
        height, width = (_number_of(data, features, key, self.name(i)) for key in (HEIGHT, WIDTH))
        pixels = _bytes_of(data, features, RAW, self.name(i))
        if len(pixels) != 3 * height * width:
            raise UserError(
                f"{self.name(i)}: {RAW} has {len(pixels):,} bytes, but {HEIGHT} x {WIDTH} x 3 is "
                f"{height:g} x {width:g} x 3; write the shards again"
            )
        return b"P6 %d %d 255\n" % (width, height) + pixels

    def find_damage(self, message: str) -> UserError:
        """The error that names the damaged record of which TensorFlow says only the offset, that of
        the record or of its data, in some shard."""
        found = re.search(r"record at (\d+)", message)
        offset = int(found[1]) if found else -1
        for i in np.flatnonzero(np.isin(self._offsets, (offset, offset - 12))).tolist():
            try:
                self.read(i)
            except UserError as error:
                return error
        return UserError(f"{self.path}: TensorFlow says: {message}")

    def _reader(self, shard: int) -> TFRecordReader:
        reader = self._open.pop(shard, None)
        if reader is None:  # not `or`: it would ask an open one for its length
            reader = TFRecordReader(self.shards[shard])
        self._open[shard] = reader  # the one used last stands last
        if len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)[1].close()
        return reader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}


def shard_folder(root: Path) -> Path | None:
    """The folder that holds the shards of a data root: `tfrecord` in it, or the root itself."""
    for folder in (root / "tfrecord", root):
        if any(folder.glob("train-*-of-*")) or any(folder.glob("validation-*-of-*")):
            return folder
    return None


def open_shards(root: Path, split: str, names: tuple[str, ...] | None) -> ShardSource:
    """Open a split; ``names`` are the classes as classes.txt has them, None where it is missing.

    Every record's label is read, none of the images. Raises UserError, which names the shard and
    the record, where a shard is missing, empty or damaged, where a label is no class, or where the
    label map is not that of classes.txt or of the other split.
    """
    folder = shard_folder(root) or root / "tfrecord"
    shards = find_shards(folder, split)
    missing = [shard.path.name for shard in shards if shard.index is None]
    if missing:
        print(
            f"{folder}: {len(missing)} of {len(shards)} {split} shards have no index; it is made in"
            f" memory. `python -m data_prep.tfrecord --index {folder}` writes them",
            file=sys.stderr,
        )
    found = _contents(folder, split, shards)
    other = _other_contents(folder, split)
    classes = _class_names(folder, split, found, other, names)
    remarks = compare_labels(root, split, found["labels"], other["labels"] if other else None)
    paths = tuple(shard.path for shard in shards)
    return ShardSource(
        root, folder, found["labels"], classes, paths, found["firsts"], bool(found["raw"]),
        found["offsets"], remarks=remarks,
    )  # fmt: skip


# -- labels --------------------------------------------------------------------------------------


def _contents(folder: Path, split: str, shards: list[Shard]) -> kept.Arrays:
    """What is found out about a split; of large shards, or many records, it is kept (see `kept`).

    `offsets` and `labels` of all records, int64 and int32; the number of the first record of each
    shard, and of the records in all, as `firsts`; the ids of the classes, where there are some, as
    `ids` of the labels `known`; and whether the examples are the slides', as `raw`.
    """
    files = [path for shard in shards for path in (shard.path, shard.index) if path]
    find_out = partial(_find_contents, shards)
    indexes = sum(shard.index.stat().st_size for shard in shards if shard.index)
    if indexes < LARGE_INDEX and sum(file.stat().st_size for file in files) < kept.LARGE:
        return find_out()
    return kept.kept(folder / f"{SPLIT_PREFIX[split]}.labels", files, find_out)


def _find_contents(shards: list[Shard]) -> kept.Arrays:
    ids: dict[int, str] = {}
    raw = None
    offsets, labels = [], []
    for shard in shards:
        reader = TFRecordReader(shard.path, shard.index)
        found, raw = _read_labels(reader, ids, raw)
        offsets.append(reader.offsets)
        labels.append(found)
        reader.close()
    return {
        "offsets": np.concatenate(offsets),
        "labels": np.concatenate(labels),
        "firsts": np.cumsum([0, *map(len, labels)], dtype=np.int64),
        "raw": np.array(bool(raw)),
        "known": np.array(list(ids), np.int64),
        "ids": np.array(list(ids.values()), np.str_),
    }


def _ids(contents: kept.Arrays) -> dict[int, str]:
    """The id of each label's class, for those whose records name it."""
    return dict(zip(contents["known"].tolist(), contents["ids"].tolist(), strict=True))


def _read_labels(
    reader: TFRecordReader, ids: dict[int, str], raw: bool | None
) -> tuple[np.ndarray, bool]:
    """The labels of a shard, from 0 on, int32, and whether its examples are the slides'.

    ``ids`` collects the class id of each label over all shards; ``raw`` is the kind of the shards
    before, None at the first.
    """
    name = f"{reader.path}: record 0 at offset 0"
    data = reader.read_at(0)  # its checksum, too: where the data are no Example, that says why
    raw = _check_kind(_features(data, 0, len(data), name), raw, name)
    labels = np.full(len(reader), -1, np.int32)
    if not raw:
        _read_usual_labels(reader, labels, ids)
    for position in np.flatnonzero(labels < 0).tolist():
        offset = int(reader.offsets[position])
        name = f"{reader.path}: record {position} at offset {offset:,}"
        data, start, stop = reader.span_at(offset)
        features = _features(data, start, stop, name)
        label = _number_of(data, features, RAW_LABEL if raw else LABEL, name)
        first = 0 if raw else 1
        if not first <= label < 2**31 or label != int(label):
            remark = "; here labels count from 1, and 0 is unused" if label == 0 else ""
            raise UserError(
                f"{name}: the label {label:g} is no class{remark}; write the shards again with "
                "`python -m data_prep.tfrecord`"
            )
        labels[position] = int(label) - first
        if SYNSET in features:
            found = _bytes_of(data, features, SYNSET, name).decode("utf-8", "replace")
            _add_id(ids, int(labels[position]), found, name)
    return labels, bool(raw)


def _read_usual_labels(reader: TFRecordReader, labels: np.ndarray, ids: dict[int, str]) -> None:
    """Set the labels of the records that are written in the usual way, all of them at once."""
    examples = Spans(*reader.spans())
    with reader.starts() as mapped:
        data = np.frombuffer(mapped, np.uint8)
        usual, found = find_features_of_all(data, examples, (LABEL, SYNSET))
        numbers = whole_numbers(data, found[LABEL])
        names = texts(data, found[SYNSET])
        named = (found[SYNSET].stop < 0) | (names.stop > names.start)
        usual &= (numbers > 0) & (numbers < 2**31) & named
        labels[usual] = numbers[usual] - 1
        rows = np.flatnonzero(usual & (names.stop > names.start))
        # The first record of each class stands for it; of the others those that name it otherwise.
        _, first, class_of = np.unique(labels[rows], return_index=True, return_inverse=True)
        start, size = names.start[rows], (names.stop - names.start)[rows]
        other = size != size[first][class_of]
        for width in np.unique(size).tolist():
            same = np.flatnonzero(~other & (size == width))
            begins = start[same], start[first][class_of[same]]
            here, there = (data[begin[:, None] + np.arange(width)] for begin in begins)
            other[same] = (here != there).any(axis=1)
        for k in [*first.tolist(), *np.flatnonzero(other).tolist()]:
            row = int(rows[k])
            text = data[start[k] : start[k] + size[k]].tobytes().decode("utf-8", "replace")
            name = f"{reader.path}: record {row} at offset {int(reader.offsets[row]):,}"
            _add_id(ids, int(labels[row]), text, name)
        del data  # else the map could not be closed


def _add_id(ids: dict[int, str], label: int, found: str, name: str) -> None:
    known = ids.setdefault(label, found)
    if found != known:
        raise UserError(
            f"{name}: label {label + 1} is {found!r} here and {known!r} in records before: "
            "the shards come from different label maps; write them again together"
        )


def _check_kind(features: dict[str, FeatureSpan], before: bool | None, name: str) -> bool:
    """Whether an example is the slides'. Raises UserError if it is not as those ``before``."""
    if IMAGE not in features and RAW not in features:
        shown = ", ".join(sorted(features)) or "no features at all"
        raise UserError(
            f"{name}: this example has neither {IMAGE} nor {RAW}, but {shown}; write the "
            "shards with `python -m data_prep.tfrecord`"
        )
    raw = IMAGE not in features
    if before not in (None, raw):
        raise UserError(
            f"{name}: this example is of another kind than those before; all shards must be "
            "written with the same --schema"
        )
    return raw


def _other_contents(folder: Path, split: str) -> kept.Arrays | None:
    """Return what `_contents` says of the other split; None if it has no shards."""
    other = "val" if split == "train" else "train"
    try:
        shards = find_shards(folder, other)
    except UserError:
        return None
    return _contents(folder, other, shards)


def _class_names(
    folder: Path,
    split: str,
    found: kept.Arrays,
    other: kept.Arrays | None,
    names: tuple[str, ...] | None,
) -> tuple[str, ...]:
    """Return the classes: those of classes.txt, else the ids in the records, else numbers."""
    ids, count = _ids(found), int(found["labels"].max()) + 1
    known, elsewhere = dict(enumerate(names or ())), "classes.txt"
    if names is not None and count > len(names):
        raise UserError(
            f"{folder}: the {split} shards have labels up to {count}, and classes.txt names "
            f"{len(names)} classes; put the list right, or write the shards again"
        )
    if names is None and other is not None:
        known = _ids(other)
        count = max(count, int(other["labels"].max()) + 1)
        elsewhere = f"the {'val' if split == 'train' else 'train'} shards"
    for label in ids.keys() & known.keys():
        if ids[label] != known[label]:
            raise UserError(
                f"{folder}: label {label + 1} is {ids[label]!r} in the {split} shards and "
                f"{known[label]!r} in {elsewhere}: a label must mean one class; write the shards "
                "again together, or put the list right"
            )
    return names or tuple((known | ids).get(label, str(label)) for label in range(count))


# -- features ------------------------------------------------------------------------------------


def _features(data: Any, start: int, stop: int, name: str) -> dict[str, FeatureSpan]:
    try:
        return find_features(data, start, stop)
    except ValueError as error:
        raise UserError(
            f"{name}: its data is no tf.train.Example ({error}); write the shards with "
            "`python -m data_prep.tfrecord`"
        ) from None


def _bytes_of(data: Any, features: dict[str, FeatureSpan], key: str, name: str) -> bytes:
    span = features.get(key)
    found = values(data, span) if span is not None and span.kind == "bytes" else []
    if not found:
        raise UserError(f"{name}: this example has no {key}; write the shards again")
    return bytes(found[0])  # type: ignore[arg-type]


def _number_of(data: Any, features: dict[str, FeatureSpan], key: str, name: str) -> float:
    span = features.get(key)
    found = values(data, span) if span is not None and span.kind != "bytes" else []
    if len(found) != 1 or isinstance(found[0], bytes):
        raise UserError(
            f"{name}: {key} should be one number, and is {found or 'missing'}; write the shards "
            "again"
        )
    return found[0]

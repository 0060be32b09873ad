r"""Write TFRecord shards, with an index for DALI next to each, from class folders or record files.

    python -m data_prep.tfrecord data/roadsigns
    python -m data_prep.tfrecord /data/imagenet /data/imagenet/tfrecord --train-shards 1024 \\
        --val-shards 128 --jobs 8

The images are shuffled across classes with --seed; the shards are named train-00000-of-01024 and
validation-00000-of-00128, and index/SHARD.idx holds `offset size` of each record. Neither writing
nor reading back needs TensorFlow.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from pathlib import Path

import numpy as np

from data_prep import processes
from data_prep.command_line import Parser, whole
from data_prep.common import Progress, check_room, run_program
from data_prep.lists import read_words, write_classes
from data_prep.output import COMPLETE, STAMP, OutputFolder, finish_swap, refuse_others
from data_prep.tfrecordwriter import format_index, image_names, prepare
from rn50lib.data.classes import check_agreement
from rn50lib.data.recordfile import read_pairs, save_arrays
from rn50lib.data.sampler import epoch_order
from rn50lib.data.scan import SPLITS, describe_contents
from rn50lib.data.source import ShardSource, Source, describe_changes, open_source
from rn50lib.data.tfrecord import (
    SPLIT_PREFIX,
    TFRecordReader,
    find_shards,
    index_path,
    shard_name,
    sidecar_path,
)
from rn50lib.errors import UserError
from rn50lib.files import NAMES, format_bytes, make_folder, write_file

SHARD_BYTES = 128e6  # about the size of a shard if no number is given; readers interleave 4
EXAMPLE_BYTES = 400  # what the other features and the framing add to an image, at most
_OURS = re.compile(
    r"(train|validation)(-\d{5}-of-\d{5}|\.labels)$|index$|classes\.txt$"
    rf"|{re.escape(COMPLETE)}$|{re.escape(STAMP)}$"
)


def convert(
    root: str | os.PathLike, out: str | os.PathLike | None = None, *,
    shards: dict[str, int] | None = None, schema: str = "imagenet", size: int = 0, seed: int = 0,
    jobs: int | None = None, data_format: str = "auto", quiet: bool = False, wait: bool = False,
) -> Path:  # fmt: skip
    """Write all splits of a data set as shards; return the folder.

    Args:
        root: The data set: class folders or record files.
        out: The folder for the shards, ROOT/tfrecord by default.
        shards: The number for "train" and "val".
        schema: "imagenet", or "slides" for images decoded to raw RGB bytes.
        size: Width and height in pixels for "slides"; 0 keeps each image's.
        seed: The seed of the shuffling.
        jobs: The number of processes, by default all usable cores; 0 works in this one.
        data_format: What to read: "auto", "files" or "recordio".
        quiet: Print no progress and no summary.
        wait: Wait for another process that writes the same.

    Raises:
        UserError: The data set cannot be read, an image is bad, the disk has too little room, or
            ``out`` holds something else.
    """
    root = Path(root)
    out = Path(out) if out else root / "tfrecord"
    refuse_others(out, _OURS.match)
    sources = _open_sources(root, data_format, quiet)
    read = {split: stats(source) for split, source in sources.items()}
    sizes = {split: [size for _, size, _ in read[split]] for split in sources}
    counts = {}
    for split, source in sources.items():
        fitting = min(1024, max(4, round(sum(sizes[split]) / SHARD_BYTES)))
        counts[split] = min(len(source), (shards or {}).get(split) or fitting)
    stamp = {"root": str(root.resolve()), "schema": schema, "size": size, "seed": seed}
    stamp |= {"shards": counts, "images": {s: fingerprint(sources[s], read[s]) for s in sources}}
    folder = OutputFolder(out, stamp, wait)
    if folder.is_complete():
        print(f"{out}: already complete")
        return out
    make_folder(folder.path.parent, str(out))
    count = sum(map(len, sources.values()))
    pixels = 3 * size * size * count if size else sum(map(sum, sizes.values()))
    needed = pixels + EXAMPLE_BYTES * count
    with folder:
        if folder.finished:
            return out
        (folder.part / "index").mkdir(exist_ok=True)
        orders = {split: epoch_order(len(source), seed, 0) for split, source in sources.items()}
        tasks = []
        for split, source in sources.items():
            names = image_names(source)
            for number in range(counts[split]):
                path = folder.part / shard_name(split, number, counts[split])
                first, last = (len(source) * n // counts[split] for n in (number, number + 1))
                if not (index_path(path).exists() and path.exists()):
                    images = orders[split][first:last].tolist()
                    tasks.append([split, path.name, images, [names[i] for i in images]])
        left = sum(len(images) for _, _, images, _ in tasks)
        check_room(folder.path.parent, needed * left // max(1, count), f"writing {out}")
        words = read_words(root)
        classes = check_agreement([source.classes for source in sources.values()], str(root))
        if classes.known:
            write_classes(folder.part, classes, words)
        settings = {
            "out": str(folder.part),
            "schema": schema,
            "size": size,
            "classes": list(classes),
            "words": words,
            "sources": sources,
        }
        total, written = sum(len(task[2]) for task in tasks), 0
        with Progress(total, "writing shards", quiet=quiet) as progress:
            for number, answer in processes.run(prepare, settings, tasks, jobs):
                written += answer
                progress.update(len(tasks[number][2]))
            took = progress.took(total)
        for draft in folder.part.rglob(".*.tmp*"):  # of a killed run
            draft.unlink()
        if schema == "imagenet":
            for split, source in sources.items():
                write_sidecar(folder.part, split, source.labels[orders[split]])
    if not quiet:
        print(
            f"{out}: {', '.join(f'{len(v):,} {s}' for s, v in sources.items())} images in "
            f"{', '.join(f'{n:,} {SPLIT_PREFIX[s]}' for s, n in counts.items())} shards; wrote "
            f"{total:,} images, {format_bytes(written)} in {took}"
        )
        for split, source in sources.items():
            if source.left_out:
                print(f"{source.path}{source.left_out.note}")
            if changes := describe_changes(source, split):
                print(f"note: {changes}")
    return out


def ensure_tfrecord(root: str | os.PathLike) -> Path:
    """Make ROOT/tfrecord from ROOT if it is missing; return the folder.

    If several processes call this at once, one works and the others wait.
    """
    root = Path(root)
    out = root / "tfrecord"
    finish_swap(out)
    return out if (out / COMPLETE).exists() else convert(root, out, quiet=True, wait=True)


def _open_sources(root: Path, data_format: str, quiet: bool) -> dict[str, Source]:
    sources = {"train": open_source(root, "train", data_format)}
    if sources["train"].format == "tfrecord":
        raise UserError(
            f"{root}: it holds shards and nothing to make shards from; --index writes their indexes"
        )
    if (root / "val").is_dir() or sources["train"].path.with_name("val.rec").exists():
        sources["val"] = open_source(root, "val", data_format)
    elif not quiet:
        print(
            f"note: {root} has no val, only {describe_contents(root)}: training shards are written,"
            " and `rn50 run` on them needs --no-val"
        )
    return sources


def stats(source: Source) -> list[tuple[str, int, int]]:
    """Return name, bytes and time of change (ns) of each image file, or of the record file."""
    files = source.format == "files"
    names = map(source.name, range(len(source))) if files else [str(source.path)]
    return [(name, (status := os.stat(name)).st_size, status.st_mtime_ns) for name in names]


def fingerprint(source: Source, read: list[tuple[str, int, int]]) -> str:
    """Return a hash of what a resumed run must find unchanged: files, labels and classes."""
    digest = hashlib.sha256(source.labels.tobytes())
    digest.update(f"{read} {source.classes.names}".encode("utf-8", "surrogateescape"))
    digest.update(f"{source.format} {source.path}".encode(errors=NAMES))
    return digest.hexdigest()


def write_sidecar(folder: Path, split: str, labels: np.ndarray) -> None:
    """Write the labels of all records, and the offsets from the indexes, of new shards."""
    shards = find_shards(folder, split)
    offsets = [read_pairs(index_path(shard))[:, 0] for shard in shards]
    firsts = np.cumsum([0, *map(len, offsets)], dtype=np.int64)
    found = {"offsets": np.concatenate(offsets), "labels": labels, "firsts": firsts}
    save_arrays(sidecar_path(folder, split), shards, found)


def rebuild_indexes(folder: Path) -> None:
    """Rewrite index/SHARD.idx for all shards in a folder."""
    total = 0
    for split in [split for split in SPLITS if ShardSource.holds(folder, split)] or ["train"]:
        for shard in find_shards(folder, split):
            records = TFRecordReader(shard).records()
            entries = [(offset, len(data) + 16) for offset, data in records]
            write_file(index_path(shard), format_index(entries))
            total += len(entries)
    print(f"{folder}: indexes of {total:,} records")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m data_prep.tfrecord",
        description="Write TFRecord shards and DALI's indexes from class folders or record files.",
    )
    add = parser.add_argument
    add("root", metavar="ROOT", help="data root: train/ and val/, or train.rec and val.rec")
    add("out", metavar="OUT", nargs="?", help="folder for the shards (ROOT/tfrecord)")
    add("--train-shards", type=whole(1, 99999), metavar="N", help="(one per 128 MB, at least 4)")
    add("--val-shards", type=whole(1, 99999), metavar="N", help="(the same)")
    add("--schema", choices=("imagenet", "slides"), default="imagenet", help="the features")
    add("--size", type=int, default=0, metavar="PX", help="slides: crop and resize to PX x PX")
    add("--seed", type=int, default=0, metavar="S", help="seed of the shuffling (0)")
    add("--jobs", type=whole(), metavar="J", help="processes (all usable cores)")
    add("--data-format", choices=("auto", "files", "recordio"), default="auto", help="what to read")
    add("--index", action="store_true", help="ROOT holds shards: write their indexes, and stop")
    add("--quiet", action="store_true", help="no progress and no summary")
    arguments = parser.parse_args(argv)
    if arguments.size and arguments.schema != "slides":
        parser.error(f"--size {arguments.size}: pixels, for --schema slides only")
    return arguments


def main(argv: list[str] | None = None) -> None:
    flags = vars(parse(argv))
    if flags.pop("index"):
        rebuild_indexes(Path(flags["root"]))
        return
    counts = {"train": flags.pop("train_shards"), "val": flags.pop("val_shards")}
    convert(**flags, shards={split: count for split, count in counts.items() if count})


if __name__ == "__main__":
    run_program(main)

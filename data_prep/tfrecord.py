"""Write TFRecord shards, with an index for DALI beside each, from class folders or record files.

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

from data_prep import processes, shardwriter
from data_prep.common import Progress, check_room, format_bytes, run_program
from data_prep.encoding import image_info, write_sidecar
from data_prep.output import COMPLETE, STAMP, OutputFolder, finish_swap
from data_prep.shardwriter import describe_images
from data_prep.tfrecordwriter import format_index
from rn50lib.argparser import Parser
from rn50lib.data.folder import read_class_rows
from rn50lib.data.recordio import Reader
from rn50lib.data.sampler import epoch_order
from rn50lib.data.source import Source, open_source
from rn50lib.data.tfrecord import (
    SPLIT_PREFIX,
    TFRecordReader,
    find_shards,
    index_path,
    shard_name,
)
from rn50lib.errors import UserError
from rn50lib.files import write_file
from rn50lib.hardware import usable_cores

SHARD_BYTES = 128e6  # about the size of a shard where no number is given
EXAMPLE_BYTES = 400  # what the other features and the framing add to an image, at most
SCHEMAS = ("imagenet", "slides")
_OURS = re.compile(r"(train|validation)(-\d{5}-of-\d{5}|\.labels)$|index$|classes\.txt$")


def convert(
    root: str | os.PathLike,
    out: str | os.PathLike | None = None,
    *,
    shards: dict[str, int] | None = None,
    schema: str = "imagenet",
    size: int = 0,
    seed: int = 0,
    jobs: int | None = None,
    data_format: str = "auto",
    quiet: bool = False,
    wait: bool = False,
) -> Path:
    """Write all splits of the data set ``root`` to ``out`` (ROOT/tfrecord); returns ``out``.

    ``shards`` is the number for "train" and "val". With the schema "slides" the images are decoded
    to raw bytes, ``size`` × ``size`` pixels if that is not 0. ``jobs`` is the number of processes,
    all usable cores unless given; 0 works in this one. ``wait`` waits for another process that
    writes the same. Raises UserError if the data set cannot be read, an image is bad, the disk has
    too little room, or ``out`` holds anything else.
    """
    root = Path(root)
    out = Path(out) if out else root / "tfrecord"
    jobs = usable_cores() if jobs is None else jobs
    _refuse_others(out)
    sources = {"train": open_source(root, "train", data_format)}
    if sources["train"].format == "tfrecord":
        raise UserError(
            f"{root}: it holds shards and nothing to make shards from; --index writes their indexes"
        )
    if (root / "val").is_dir() or sources["train"].path.with_name("val.rec").exists():
        sources["val"] = open_source(root, "val", data_format)
    elif not quiet:
        print(
            f"note: {root} has no val, so only training shards are written; training on them needs "
            "--no-val"
        )
    sizes = {split: image_bytes(source) for split, source in sources.items()}
    total = sum(sum(s) for s in sizes.values()) + EXAMPLE_BYTES * sum(map(len, sources.values()))
    if schema == "slides":
        total = _raw_bytes(sources, size)
    counts = {
        split: min(len(source), (shards or {}).get(split) or _shard_count(source, sizes[split]))
        for split, source in sources.items()
    }
    stamp = {"root": str(root.resolve()), "schema": schema, "size": size, "seed": seed}
    stamp |= {"shards": counts, "images": {s: fingerprint(sources[s], sizes[s]) for s in sources}}
    folder = OutputFolder(out, stamp, wait)
    if folder.is_complete():
        print(f"{out}: already complete")
        return out
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    check_room(folder.path.parent, total, f"writing {out}")
    with folder:
        if folder.finished:
            return out
        (folder.part / "index").mkdir(exist_ok=True)
        words = {row[1]: row[2] for row in read_class_rows(root) or [] if len(row) > 2}
        tasks = []
        for split, source in sources.items():
            order = epoch_order(len(source), seed, 0)
            for number in range(counts[split]):
                name = shard_name(split, number, counts[split])
                first, last = (len(source) * n // counts[split] for n in (number, number + 1))
                done = index_path(folder.part / name).exists() and (folder.part / name).exists()
                if not done:
                    tasks.append([split, name, describe_images(source, order[first:last])])
        classes = sources["train"].classes
        settings = {
            "out": str(folder.part),
            "schema": schema,
            "size": size,
            "classes": classes,
            "words": words,
            "records": {s: str(v.path) for s, v in sources.items() if v.format == "recordio"},
        }
        written = _run(tasks, settings, jobs, quiet)
        (folder.part / "classes.txt").write_text(
            "".join(f"{i}\t{name}\t{words.get(name, '')}\n" for i, name in enumerate(classes))
        )
        for split, source in sources.items():
            labels = source.labels[epoch_order(len(source), seed, 0)]
            named = classes if schema == "imagenet" else ()
            write_sidecar(folder.part, split, labels, named, schema == "slides")
        images = sum(len(task[2]) for task in tasks)
    if not quiet:
        print(
            f"{out}: {', '.join(f'{len(v):,} {s}' for s, v in sources.items())} images in "
            f"{', '.join(f'{n:,} {SPLIT_PREFIX[s]}' for s, n in counts.items())} shards; wrote "
            f"{images:,} images, {format_bytes(written[0])} in {written[1]:.1f} s "
            f"({images / max(written[1], 1e-9):,.0f} images/s)"
        )
    return out


def ensure_tfrecord(root: str | os.PathLike) -> Path:
    """Make ROOT/tfrecord from ROOT unless it is there; returns the folder.

    Several processes may call this at once: one works, the others wait.
    """
    root = Path(root)
    out = root / "tfrecord"
    finish_swap(out)
    return out if (out / COMPLETE).exists() else convert(root, out, quiet=True, wait=True)


def _run(tasks: list, settings: dict, jobs: int, quiet: bool) -> tuple[int, float]:
    """Write the shards; returns bytes and seconds."""
    total = 0
    with Progress(sum(len(task[2]) for task in tasks), "writing shards", quiet=quiet) as progress:
        for number, answer in processes.run(shardwriter.prepare, settings, tasks, jobs):
            if isinstance(answer, processes.Died):
                raise UserError(
                    f"a process that wrote shards was {answer.reason}; the same command goes on "
                    "from here"
                )
            total += answer
            progress.add(len(tasks[number][2]))
        return total, progress.seconds


def _refuse_others(out: Path) -> None:
    """Raise UserError if the output folder holds what this program did not write."""
    finish_swap(out)
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out}: this is a file; name a folder to write the shards to")
    for entry in os.scandir(out):
        if not _OURS.match(entry.name) and entry.name not in (COMPLETE, STAMP):
            raise UserError(
                f"{entry.path}: the output folder is replaced as a whole, and this is not a shard; "
                "choose another folder"
            )


def image_bytes(source: Source) -> list[int]:
    """The size of each encoded image."""
    if source.format == "files":
        return [os.stat(source.name(i)).st_size for i in range(len(source))]
    reader = Reader(source.path)
    stops = sorted([*reader.offsets.tolist(), os.path.getsize(source.path)])
    after = dict(zip(stops, stops[1:], strict=False))
    return [after[offset] - offset for offset in reader.offsets.tolist()]


def _raw_bytes(sources: dict[str, Source], size: int) -> int:
    """What the images take as raw pixels, from the headers of at most 200 of each split."""
    total = 0
    for source in sources.values():
        pixels = size * size
        if not size:
            step = max(1, len(source) // 200)
            infos = [image_info(source.read(i)) for i in range(0, len(source), step)]
            known = [info.width * info.height for info in infos if info]
            pixels = sum(known) // max(1, len(known))
        total += len(source) * (3 * pixels + EXAMPLE_BYTES)
    return total


def _shard_count(source: Source, sizes: list[int]) -> int:
    """About SHARD_BYTES a shard, at least 4, so that readers have something to interleave."""
    return min(1024, max(4, round(sum(sizes) / SHARD_BYTES)))


def fingerprint(source: Source, sizes: list[int]) -> str:
    """A hash of names, sizes and labels: what a resumed run must find unchanged."""
    digest = hashlib.sha256(source.labels.tobytes())
    digest.update(repr(sizes).encode())
    status = os.stat(source.path)
    digest.update(f"{source.format} {source.path} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


# -- the program ---------------------------------------------------------------------------------


def rebuild_indexes(folder: str | os.PathLike) -> int:
    """Write index/SHARD.idx anew for all shards in a folder; returns the number of records."""
    folder = Path(folder)
    (folder / "index").mkdir(exist_ok=True)
    total = 0
    for split in SPLIT_PREFIX:
        try:
            shards = find_shards(folder, split)
        except UserError:
            if split == "train":
                raise
            continue
        for shard in shards:
            records = TFRecordReader(shard.path).records()
            entries = [(offset, len(data) + 16) for offset, data in records]
            index = index_path(shard.path)
            write_file(index, format_index(entries))
            total += len(entries)
    print(f"{folder}: indexes of {total:,} records")
    return total


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = Parser(
        prog="python -m data_prep.tfrecord",
        description="Write TFRecord shards and DALI's indexes from class folders or record files.",
    )
    add = parser.add_argument
    add("root", metavar="ROOT", help="data root: train/ and val/, or train.rec and val.rec")
    add("out", metavar="OUT", nargs="?", help="folder for the shards (ROOT/tfrecord)")
    add("--train-shards", type=int, metavar="N", help="(one for about 128 MB, at least 4)")
    add("--val-shards", type=int, metavar="N", help="(likewise)")
    add("--schema", choices=SCHEMAS, default="imagenet", help="features of an example")
    add("--size", type=int, default=0, metavar="PX", help="slides: crop and resize to PX x PX")
    add("--seed", type=int, default=0, metavar="S", help="of the shuffling (0)")
    add("--jobs", type=int, metavar="J", help="processes (all usable cores)")
    add("--data-format", choices=("auto", "files", "recordio"), default="auto", help="to read")
    add("--index", action="store_true", help="ROOT holds shards: write their indexes, and stop")
    add("--quiet", action="store_true", help="no progress and no summary")
    arguments = parser.parse_args(argv)
    for flag in ("train_shards", "val_shards", "jobs"):
        value = getattr(arguments, flag)
        if value is not None and not 1 <= value <= 99999:
            parser.error(f"--{flag.replace('_', '-')} {value}: give a number from 1 to 99999")
    if arguments.size < 0 or (arguments.size and arguments.schema != "slides"):
        parser.error(f"--size {arguments.size}: pixels, for --schema slides only")
    if arguments.seed < 0:
        parser.error(f"--seed {arguments.seed}: seeds are not negative")
    return arguments


def main(argv: list[str] | None = None) -> None:
    """The program."""
    flags = parse(argv)
    if flags.index:
        rebuild_indexes(flags.root)
        return
    shards = {"train": flags.train_shards, "val": flags.val_shards}
    convert(
        flags.root,
        flags.out,
        shards={split: count for split, count in shards.items() if count},
        schema=flags.schema,
        size=flags.size,
        seed=flags.seed,
        jobs=flags.jobs,
        data_format=flags.data_format,
        quiet=flags.quiet,
    )


if __name__ == "__main__":
    run_program(main)

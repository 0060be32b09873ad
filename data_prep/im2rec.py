"""Turn a folder of images into the record files that MXNet, DALI and `rn50` read, byte for byte as
MXNet 1.9.1's own im2rec writes them: first list the images, then pack them.

Beside them stands PREFIX.crc, a checksum for each record, by which `data_prep.verify` and training
see damage that still decodes; MXNet and DALI pass it over.

    python -m data_prep.im2rec --list --recursive data/roadsigns/records/train data/roadsigns/train
    python -m data_prep.im2rec --pass-through --num-thread 2 data/roadsigns/records/train \\
        data/roadsigns/train
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
import time
import warnings
from pathlib import Path

from data_prep.common import Parser, Progress, check_room, format_bytes, run_program, usable_cores
from data_prep.lists import EXTENSIONS, Split, find_images, read_list, write_lists
from data_prep.output_set import OutputSet
from data_prep.packing import (
    BadImages,
    Filler,
    Framed,
    Packer,
    PassThrough,
    check_files,
    checksum,
    cut_runs,
    record_sizes,
)
from rn50lib import overrides
from rn50lib.errors import UserError
from rn50lib.files import write_file
from rn50lib.records.checksums import checksum_path, crc32c, format_checksums
from rn50lib.records.framing import frame


def make_list(
    prefix: str,
    root: str,
    *,
    recursive: bool = True,
    shuffle: bool = True,
    extensions: tuple[str, ...] = EXTENSIONS,
    split: Split | None = None,
    fsync: bool = True,
) -> dict[Path, int]:
    """Write PREFIX.lst (or several, after ``split``); returns the number of images in each."""
    found = find_images(root, recursive, extensions)
    for folder in found.empty:
        print(
            f"note: {folder} holds no images and gets no label, so the labels after it are one "
            "lower than in a split where it holds some",
            file=sys.stderr,
        )
    for folder in found.classes:
        if any(name.startswith(".") and name != "." for name in folder.split("/")):
            print(
                f"note: {folder} is a hidden folder and becomes a class; is it one?",
                file=sys.stderr,
            )
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    lists = write_lists(prefix, found, shuffle, split, fsync)
    for path, count in lists.items():
        print(f"{path}: {count:,} images in {max(1, len(found.classes)):,} classes")
    for other in find_lists(prefix):
        if other not in lists:
            print(
                f"note: {other} was there before; packing {prefix} would pack it as well",
                file=sys.stderr,
            )
    return lists


def find_lists(prefix: str) -> list[Path]:
    """Every list whose path starts with ``prefix``, sorted; all lists in it if it is a folder."""
    folder = Path(prefix) if os.path.isdir(prefix) else None
    found = sorted(folder.glob("*.lst")) if folder else []
    parent = Path(os.path.abspath(prefix)).parent
    if not found and parent.is_dir():
        stem = os.path.basename(os.path.abspath(prefix))
        names = [e.name for e in os.scandir(parent) if e.is_file() and e.name.endswith(".lst")]
        found = [Path(prefix).parent / n for n in sorted(names) if n.startswith(stem)]
    return found


def pack_list(
    path_lst: Path,
    root: str,
    *,
    threads: int = 1,
    pack_label: bool = False,
    transform: object = None,
    skip_bad: bool = False,
    fsync: bool = True,
    quiet: bool = False,
) -> int:
    """Write the .rec, .idx and .crc beside a list; returns the number of records.

    ``transform`` None passes the files through; else it is a ``data_prep.transform.Transform``.
    Raises UserError if the disk has too little room, or if images are missing, empty, git-LFS
    pointers or (transforming) do not decode, unless ``skip_bad`` leaves them out.
    """
    entries = read_list(path_lst)
    bad_files, bad_images = BadImages(), BadImages()
    entries, sizes = check_files(entries, root, bad_files)
    _judge(bad_files, path_lst, skip_bad, stopped_early=True)
    if not entries:
        raise UserError(f"{path_lst}: it lists no image that can be packed")
    record_bytes = record_sizes(entries, sizes, pack_label)
    if transform is None:
        check_room(path_lst.parent, sum(record_bytes), f"{path_lst.with_suffix('.rec').name}")
        framing = overrides.get("record_framing")
        filler: Filler = (
            PassThrough(entries, sizes, root, pack_label)
            if framing is frame
            else Framed(entries, root, pack_label, framing)
        )
    else:
        from data_prep.transform import Encode, Transform

        assert isinstance(transform, Transform)
        filler = Encode(entries, root, pack_label, transform, bad_images)
    paths = [path_lst.with_suffix(ending) for ending in (".rec", ".idx")]
    path_rec, path_crc = paths[0], checksum_path(paths[0])
    # Whoever frames records with a function of their own may write what no reader gives back.
    if has_checksums := crc32c() is not None and overrides.get("record_framing") is frame:
        paths.append(path_crc)
    with (
        OutputSet(*paths, fsync=fsync) as outputs,
        Progress(len(entries), path_rec.name, quiet=quiet) as progress,
    ):
        rec, *others = outputs.files
        packer = Packer(filler, [entry.key for entry in entries], rec.fileno(), progress)
        packer.run(cut_runs(record_bytes), threads)
        _judge(bad_images, path_lst, skip_bad, stopped_early=False)
        for file, text in zip(others, (packer.index_text(), packer.checksum_text()), strict=False):
            lines = memoryview(text)
            while lines:
                lines = lines[file.write(lines) :]
        seconds = progress.seconds
    if not has_checksums:
        path_crc.unlink(missing_ok=True)  # those of the file that was there before
    if not quiet:
        print(
            f"{path_rec}: {packer.count:,} records, {format_bytes(packer.size)} in {seconds:.1f} s "
            f"({packer.count / max(seconds, 1e-9):,.0f} images/s)"
        )
    return packer.count


def _judge(bad: BadImages, path_lst: Path, skip_bad: bool, stopped_early: bool) -> None:
    """Report bad images: an error, unless they are to be left out."""
    if not bad.found:
        return
    count = len(bad.found)
    images = f"{count:,} image{'s' if count > 1 else ''}"
    if skip_bad:
        print(f"note: left out {images} of {path_lst}:\n{bad.text()}", file=sys.stderr)
        return
    when = "nothing was packed" if stopped_early else "the record file was not put in place"
    raise UserError(
        f"{path_lst}: {images} cannot be packed, so {when}:\n{bad.text()}\n"
        "Put them right, or give --skip-bad to leave them out"
    )


def pack_all(prefix: str, root: str, **settings: object) -> None:
    """Pack every list whose path starts with ``prefix``. Raises UserError if there is none."""
    lists = find_lists(prefix)
    if not lists:
        raise UserError(
            f"{prefix}.lst: there is no such list; make it first with "
            f"`python -m data_prep.im2rec --list --recursive {prefix} {root}`"
        )
    if not os.path.isdir(root):
        raise UserError(f"{root}: there is no such folder of images")
    for path in lists:
        if path.stat().st_size == 0:
            print(f"note: {path} is empty, so there is nothing to pack for it", file=sys.stderr)
        else:
            pack_list(path, root, **settings)  # type: ignore[arg-type]


def rebuild_index(prefix: str, fsync: bool = True) -> int:
    """Write PREFIX.idx anew from the ids in PREFIX.rec; returns the number of records.

    Where the ids do not tell the records apart, they are numbered from 0 on, as MXNet's rec2idx
    does.
    """
    from rn50lib.records.index import format_index
    from rn50lib.records.recordio import Reader

    found = [(header.id, offset) for offset, header in Reader(f"{prefix}.rec").headers()]
    if len({key for key, _ in found}) < len(found):
        found = [(number, offset) for number, (_, offset) in enumerate(found)]
        print(f"note: {prefix}.rec repeats ids; its records are numbered from 0", file=sys.stderr)
    with OutputSet(f"{prefix}.idx", fsync=fsync) as outputs:
        outputs.files[0].write(format_index(found).encode())
    print(f"{prefix}.idx: {len(found):,} records")
    return len(found)


def rebuild_checksums(prefix: str, fsync: bool = True) -> int:
    """Write PREFIX.crc anew for the records as they are in PREFIX.rec; returns their number.

    Raises RecordError if the record file is damaged, UserError without google-crc32c.
    """
    from rn50lib.records.recordio import Reader

    if crc32c() is None:
        raise UserError("--checksums needs the package google-crc32c: `pip install google-crc32c`")
    records = Reader(f"{prefix}.rec").payloads()
    entries = [(offset, checksum(payload)) for offset, payload in records]
    with OutputSet(checksum_path(f"{prefix}.rec"), fsync=fsync) as outputs:
        outputs.files[0].write(format_checksums(entries))
    print(f"{prefix}.crc: {len(entries):,} records, as they are now")
    return len(entries)


def ensure_records(root: str | os.PathLike, threads: int | None = None) -> Path:
    """Make ROOT/records/{train,val}.{lst,rec,idx} from ROOT/{train,val} unless they are there.

    Several processes may call this at once: one works, the others wait. Returns the folder.
    """
    folder = Path(root) / "records"
    marker = folder / ".complete"
    if marker.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if marker.exists():
            return folder
        counts = {}
        for split in ("train", "val"):
            prefix, images = str(folder / split), str(Path(root) / split)
            make_list(prefix, images)
            counts[split] = pack_list(
                Path(f"{prefix}.lst"), images, threads=threads or usable_cores()
            )
        write_file(marker, json.dumps({"images": counts, "made": _now()}) + "\n")
        with contextlib.suppress(OSError):
            os.unlink(lock.name)
    return folder


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags, which are MXNet's, and six more: --index, --checksums, --skip-bad, --no-fsync,
    --quiet and --override."""
    parser = Parser(
        prog="python -m data_prep.im2rec",
        description="List the images of a folder (--list), then pack them into record files.",
    )
    add = parser.add_argument
    add("prefix", metavar="PREFIX", help="path of the .lst, .rec and .idx, without the ending")
    add("root", metavar="ROOT", nargs="?", help="folder that holds the images")
    add("--no-fsync", dest="fsync", action="store_false", help="do not wait for the disk")
    add("--quiet", action="store_true", help="no progress and no summary")
    add("--index", action="store_true", help="write PREFIX.idx anew from PREFIX.rec, and stop")
    add(
        "--checksums",
        action="store_true",
        help="write PREFIX.crc, by which damage is seen, for PREFIX.rec as it is now, and stop",
    )
    add = parser.add_argument_group("making the list").add_argument
    add("--list", action="store_true", help="write PREFIX.lst, and stop")
    add("--recursive", action="store_true", help="each folder is a class of its own")
    add("--exts", nargs="+", default=EXTENSIONS, metavar="EXT", help=" ".join(EXTENSIONS))
    add("--chunks", type=int, default=1, metavar="N", help="divide into N lists")
    add("--train-ratio", type=float, default=1.0, metavar="R", help="share for training")
    add("--test-ratio", type=float, default=0.0, metavar="R", help="share for testing")
    add("--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the walk")
    add = parser.add_argument_group("packing").add_argument
    add("--pass-through", action="store_true", help="pack the bytes of the files as they are")
    add("--num-thread", type=int, default=1, metavar="N", help="threads (default 1)")
    add("--pack-label", action="store_true", help="pack all labels of a list with several")
    add("--skip-bad", action="store_true", help="leave bad images out and name them")
    add(
        "--override",
        metavar="NAME=FILE:FUNCTION",
        help="frame the records with a function of your own: record_framing=mine.py:frame",
    )
    add("--resize", type=int, default=0, metavar="PX", help="make the shorter side PX long")
    add("--center-crop", action="store_true", help="cut out the square in the middle")
    add("--quality", type=int, metavar="Q", help="JPEG 1-100 (95), PNG compression 1-9 (6)")
    add("--color", type=int, default=1, choices=(-1, 0, 1), help="1 RGB, 0 grey, -1 as it is")
    add("--encoding", default=".jpg", choices=(".jpg", ".png"), help="format to encode in")
    arguments = parser.parse_args(argv)
    if arguments.root is None and not (arguments.index or arguments.checksums):
        parser.error("ROOT, the folder that holds the images, is missing")
    if arguments.num_thread < 1:
        parser.error(f"--num-thread {arguments.num_thread}: give at least one thread")
    return arguments


def main(argv: list[str] | None = None) -> None:
    """The program."""
    arguments = parse(argv)
    prefix = arguments.prefix.rstrip("/")
    if arguments.index:
        rebuild_index(prefix, arguments.fsync)
        return
    if arguments.checksums:
        rebuild_checksums(prefix, arguments.fsync)
        return
    root = os.path.abspath(arguments.root)
    if arguments.list:
        split = Split(arguments.chunks, arguments.train_ratio, arguments.test_ratio)
        make_list(
            prefix,
            root,
            recursive=arguments.recursive,
            shuffle=arguments.shuffle,
            extensions=tuple(ext.lower() for ext in arguments.exts),
            split=split,
            fsync=arguments.fsync,
        )
        return
    overrides.install((arguments.override,) if arguments.override else (), overrides.PACK)
    transform = None
    if not arguments.pass_through:
        from data_prep.transform import Transform

        # Pillow warns of corrupt EXIF blocks and the like, image by image; the pixels are fine.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        transform = Transform(
            arguments.resize,
            arguments.center_crop,
            arguments.quality,
            arguments.color,
            arguments.encoding,
        )
    pack_all(
        prefix,
        root,
        threads=arguments.num_thread,
        pack_label=arguments.pack_label,
        transform=transform,
        skip_bad=arguments.skip_bad,
        fsync=arguments.fsync,
        quiet=arguments.quiet,
    )


if __name__ == "__main__":
    run_program(main)

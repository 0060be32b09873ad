"""Turn a folder of images into the record files that MXNet, DALI and `rn50` read.

They are equal, byte for byte, to those of MXNet 1.9.1's im2rec: first list the images, then pack
them. PREFIX.crc is added, a checksum for each record, by which `data_prep.verify` and training see
damage that still decodes, and classes.txt, the names of the classes; MXNet and DALI ignore them.

    python -m data_prep.im2rec --list --recursive data/roadsigns/records/train data/roadsigns/train
    python -m data_prep.im2rec --pass-through data/roadsigns/records/train data/roadsigns/train
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from data_prep.command_line import Parser, whole
from data_prep.common import Progress, check_room, run_program
from data_prep.lists import (
    Found,
    classes_of_list,
    find_images,
    other_list,
    read_list,
    read_words,
    take_off,
    write_classes,
    write_list,
)
from data_prep.output import check_file
from data_prep.recordwriter import Bad, Writer, check_files, pack, record_bytes
from data_prep.remedies import program
from rn50lib.data.classes import Classes, check_agreement, read_class_names
from rn50lib.data.recordfile import crc32c
from rn50lib.data.recordio import Reader, checksum_path, unpack
from rn50lib.data.scan import LeftOut
from rn50lib.errors import UserError
from rn50lib.files import format_bytes, lock_open, make_folder, write_file
from rn50lib.hardware import usable_cores


def make_list(prefix: str, root: str, recursive: bool = True) -> None:
    """Write PREFIX.lst, and print what it holds."""
    found = find_images(root, recursive)
    path = Path(f"{prefix}.lst")
    classes = check_listed_classes(path, found, root)
    make_folder(path.parent, str(path))
    write_list(path, found)
    name_classes(path, classes, Path(root))
    images, count = len(found.images), max(1, len(found.classes))
    print(f"{path}: {images:,} images in {count:,} class{'es' * (count != 1)}{found.left_out.note}")


def check_listed_classes(path: Path, found: Found, root: str) -> Classes | None:
    """Return the classes of the images found; None if they have no names.

    Raises UserError if a label would mean a different class than in the list of the other split or
    in `classes.txt`, next to the list at `path`.
    """
    classes = found.to_classes(root)
    if classes is not None:
        stated = [classes, *stated_beside(path)]
        whole = [replace(classes, seen=False) for classes in stated if classes]
        old = [*filter(None, [other_list(path)]), *path.parent.glob("classes.txt"),
               *path.parent.glob("*.rec")]  # fmt: skip
        remedy = f"make the folders the same, or remove {', '.join(map(str, sorted(old)))} and list"
        check_agreement(whole, remedy=f"{remedy} both splits again")
    for folder in found.empty:
        parent = folder.rpartition("/")[0] or "."
        after = [name for name in found.classes if name.split("/") > folder.split("/")]
        if folder.startswith(".") or parent in found.classes or not after:
            note(f"{folder} holds no images and gets no label")
            continue
        raise UserError(
            f"{root}/{folder}: this class folder holds no images and gets no label, so those of"
            f" {after[0]!r} and the classes after it would be one lower than in a split with images"
            " of it; add images, or remove the folder from both splits"
        )
    return classes


def stated_beside(path: Path) -> list[Classes | None]:
    """Return the classes by the list of the other split and by `classes.txt`, next to a list."""
    other = other_list(path)
    return [
        classes_of_list(other, read_list(other)) if other else None,
        read_class_names(path.parent),
    ]


def name_classes(path: Path, classes: Classes | None, root: Path) -> None:
    """Write `classes.txt` next to the list or records at `path` if none is there."""
    if classes is not None and classes.known and not path.with_name("classes.txt").exists():
        write_classes(path.parent, classes, read_words(root.parent))


def note(message: str) -> None:
    """Print what may or may not be intended."""
    print(f"note: {message}", file=sys.stderr)


def pack_list(
    path_lst: Path, root: str, *, threads: int = 1, skip_bad: bool = False, quiet: bool = False,
    transform: Callable[[bytes], bytes] | None = None,
) -> None:  # fmt: skip
    """Write the .rec, .idx and .crc next to a list.

    ``transform`` re-encodes an image; None packs the files unchanged. Raises UserError
    if the disk has too little room, or if images are missing, empty, pointers or
    (transforming) do not decode, unless ``skip_bad`` leaves them out and takes them off the list.
    """
    check_file(path_lst)
    if path_lst.is_symlink() and not path_lst.exists():
        raise UserError(
            f"{path_lst}: this link leads to {os.readlink(path_lst)}, which is missing: put the"
            " list there, or remove the link"
        )
    if not path_lst.exists():
        prefix = path_lst.with_suffix("")
        make = program("im2rec", "--list", "--recursive", prefix, root)
        raise UserError(f"{path_lst}: there is no such list; make it first with {make}")
    if not os.path.isdir(root):
        raise UserError(f"{root}: there is no such folder of images")
    listed = read_list(path_lst)
    stated = [classes_of_list(path_lst, listed), *stated_beside(path_lst)]
    classes = check_agreement(stated) if any(stated) else None
    entries, sizes, bad = check_files(listed, root)
    _report_bad(bad, path_lst, skip_bad, "nothing was packed")
    if not entries:
        raise UserError(f"{path_lst}: it lists no image that can be packed")
    path_rec = path_lst.with_suffix(".rec")
    if transform is None:
        check_room(path_lst.parent, record_bytes(sizes), path_rec.name)
    writer = Writer(path_lst.with_suffix(""))
    with writer, Progress(len(entries), path_rec.name, quiet=quiet) as progress:
        failed = pack(writer, root, entries, sizes, threads, transform, progress)
        _report_bad(failed, path_lst, skip_bad, "the record file was not put in place")
        took = progress.took(writer.count)
    if bad or failed:
        take_off(path_lst, root, {path for path, _ in (*bad, *failed)})
    name_classes(path_rec, classes, Path(root))
    if not quiet:
        left_out = LeftOut()
        for _, reason in (*bad, *failed):
            left_out.add(f"images ({reason.partition(' (')[0]})", count=1)
        size = format_bytes(writer.size)
        print(f"{path_rec}: {writer.count:,} records, {size} in {took}{left_out.note}")


def _report_bad(bad: Bad, path_lst: Path, skip_bad: bool, outcome: str) -> None:
    """Raise UserError for bad images; only note them if they are to be left out."""
    if not bad:
        return
    names = "\n".join(f"  {path}: {reason}" for path, reason in sorted(bad)[:10])
    if len(bad) > 10:
        names += f"\n  … and {len(bad) - 10:,} more"
    images = f"{len(bad):,} image{'s' if len(bad) > 1 else ''}"
    if skip_bad:
        note(f"{images} will be left out, and removed from {path_lst} ({path_lst.name}.all"
             f" keeps the full list):\n{names}")  # fmt: skip
        return
    raise UserError(
        f"{path_lst}: {images} cannot be packed, so {outcome}:\n{names}\n"
        "Repair them, or pass --skip-bad to leave them out and remove them from the list"
    )


def reencode(data: bytes, resize: int = 0, quality: int = 95) -> bytes:
    """Return an encoded image as an upright RGB JPEG. Raises UserError if it is not an image.

    The shorter side becomes ``resize`` pixels long (0 keeps the size), and the other is rounded
    down, as in MXNet.
    """
    from PIL import Image

    from rn50lib.data.decode import decode_image

    image = decode_image(data, "it")
    if resize:
        width, height = image.size
        shorter = min(width, height)
        size = (width * resize // shorter, height * resize // shorter)
        image = image.resize(size, Image.Resampling.BILINEAR)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


def rebuild_index(prefix: str) -> None:
    """Rewrite PREFIX.idx from the ids in PREFIX.rec.

    If an id repeats, the records are numbered from 0, as MXNet's rec2idx does.
    """
    records = Reader(f"{prefix}.rec").payloads()
    found = [(unpack(record).key, offset) for offset, record in records]
    if len({key for key, _ in found}) < len(found):
        found = [(number, offset) for number, (_, offset) in enumerate(found)]
        note(f"{prefix}.rec repeats ids; its records are numbered from 0")
    write_file(f"{prefix}.idx", "".join(f"{key}\t{offset}\n" for key, offset in found))
    print(f"{prefix}.idx: {len(found):,} records")


def rebuild_checksums(prefix: str) -> None:
    """Write PREFIX.crc for the records in PREFIX.rec. Raises RecordError if that is damaged."""
    records = Reader(f"{prefix}.rec").payloads()
    lines = [f"{offset}\t{crc32c(payload)}\n" for offset, payload in records]
    write_file(checksum_path(f"{prefix}.rec"), "".join(lines))
    print(f"{prefix}.crc: {len(lines):,} records, as they are now")


def ensure_records(root: str | os.PathLike, threads: int | None = None) -> Path:
    """Make ROOT/records/{train,val}.{lst,rec,idx} from ROOT/{train,val} unless they are there.

    If several processes call this at once, one works and the others wait. Returns the folder.
    """
    folder = Path(root) / "records"
    marker = folder / ".complete"
    if marker.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    is_new = not (folder / ".lock").exists()  # a killed run leaves it
    with open(folder / ".lock", "ab") as lock:
        lock_open(lock.fileno(), folder)
        if marker.exists():
            return folder
        for split in ("train", "val"):
            prefix, images = str(folder / split), str(Path(root) / split)
            if not (is_new and os.path.exists(f"{prefix}.rec")):  # else you have packed them
                make_list(prefix, images)
                pack_list(Path(f"{prefix}.lst"), images, threads=threads or usable_cores())
        write_file(marker, "{}\n")
        with contextlib.suppress(OSError):
            os.unlink(lock.name)
    return folder


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags: MXNet's, --index, --checksums, --skip-bad and --quiet."""
    parser = Parser(
        prog="python -m data_prep.im2rec",
        description="List the images of a folder (--list), then pack them into record files.",
    )
    add = parser.add_argument
    add("prefix", metavar="PREFIX", help="path of the .lst, .rec and .idx, without the ending")
    add("root", metavar="ROOT", nargs="?", help="folder that holds the images")
    add("--quiet", action="store_true", help="no progress and no summary")
    add("--index", action="store_true", help="rewrite PREFIX.idx from PREFIX.rec, and stop")
    add("--checksums", action="store_true", help="write PREFIX.crc for PREFIX.rec, and stop")
    add = parser.add_argument_group("making the list").add_argument
    add("--list", action="store_true", help="write PREFIX.lst, and stop")
    add("--recursive", action="store_true", help="each folder is a class")
    add = parser.add_argument_group("packing").add_argument
    add("--pass-through", action="store_true", help="pack the bytes of the files as they are")
    add("--num-thread", type=whole(), metavar="N", help="threads (all usable cores)")
    add(
        "--skip-bad",
        action="store_true",
        help="name bad images, and leave them out of the records and the list",
    )
    add(
        "--resize",
        type=whole(0, 65_500),
        default=0,
        metavar="PX",
        help="make the shorter side PX long",
    )
    add("--quality", type=whole(1, 100), default=95, metavar="Q", help="of the JPEG, 1 to 100 (95)")
    arguments = parser.parse_args(argv)
    if sum((arguments.list, arguments.index, arguments.checksums)) > 1:
        parser.error("--list, --index and --checksums exclude each other: name one")
    if arguments.pass_through and (arguments.resize or arguments.quality != 95):
        parser.error("--pass-through keeps the files' bytes: leave out --resize and --quality")
    if arguments.root is None and not (arguments.index or arguments.checksums):
        parser.error("ROOT, the folder that holds the images, is missing")
    return arguments


def main(argv: list[str] | None = None) -> None:
    arguments = parse(argv)
    prefix = arguments.prefix.rstrip("/")
    if arguments.index:
        rebuild_index(prefix)
        return
    if arguments.checksums:
        rebuild_checksums(prefix)
        return
    root = os.path.abspath(arguments.root)
    if arguments.list:
        make_list(prefix, root, arguments.recursive)
        return
    transform = None
    if not arguments.pass_through:
        transform = functools.partial(reencode, resize=arguments.resize, quality=arguments.quality)
    pack_list(
        Path(f"{prefix}.lst"), root, threads=arguments.num_thread or usable_cores(),
        transform=transform, skip_bad=arguments.skip_bad, quiet=arguments.quiet,
    )  # fmt: skip


if __name__ == "__main__":
    run_program(main)

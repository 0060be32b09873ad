"""Write a copy of a data set in which the images with one right repair are repaired.

A CMYK image, or a PNG named as JPEG, becomes an RGB JPEG of quality 100, as is usual for ImageNet;
everything else is copied byte for byte.
"""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

from PIL import Image

from data_prep.checks.folders import Part
from data_prep.checks.problems import Problems
from data_prep.common import Progress, check_room
from data_prep.encoding import pack_header
from data_prep.output import OutputFolder
from data_prep.recordwriter import Writer
from rn50lib.data.decode import eight_bits
from rn50lib.data.recordfile import MappedFile
from rn50lib.data.recordio import join, locate, unpack_header
from rn50lib.errors import UserError

FIXED = ("cmyk", "png-as-jpeg")


def check_target(source: Path, out: Path) -> None:
    """Raise UserError, before anything is read, if the copy cannot go there."""
    if out.exists():
        raise UserError(f"--fix {out}: this is there already; name a new folder")
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise UserError(f"--fix {out}: this is inside {source}; name a folder next to it")


def write_fixed(
    source: Path, out: Path, parts: list[Part], problems: Problems, quiet: bool = False
) -> int:
    """Copy the files or records of ``source`` to the new folder ``out``; return the repairs.

    If there are class folders, only they are copied; make records and shards from them again.
    Raises UserError if records are damaged, which the copy's checksums would hide, or if ``out``
    has too little room.
    """
    chosen = [part for part in parts if part.form == "files"]
    are_files = bool(chosen)
    chosen = chosen or [part for part in parts if part.form == "recordio"]
    if not chosen:
        raise UserError(f"--fix: {source} holds shards; fix the images that they were made from")
    damaged = sum(problem.kind == "checksum" for problem in problems)
    if damaged and not are_files:
        raise UserError(
            f"--fix: {damaged:,} records changed since they were packed; copy the record files or "
            "pack the images again first"
        )
    broken = {p.where for p in problems if p.kind in ("undecodable", "crash")}
    wrong = {p.where for p in problems if p.kind in FIXED} - broken
    files = [part.path for part in chosen]
    if are_files:
        paths = [Path(f, name) for top in files for f, _, names in os.walk(top) for name in names]
        files = [path for path in paths if path.is_file()]
    out.parent.mkdir(parents=True, exist_ok=True)
    check_room(out.parent, sum(path.stat().st_size for path in files), f"the copy {out}")
    total = len(files) if are_files else sum(map(len, chosen))
    with OutputFolder(out, None) as folder, Progress(total, "copying", quiet=quiet) as progress:
        if are_files:
            done = _copy_files(source, folder.part, files, wrong, progress)
        else:
            done = sum(_copy_records(part, folder.part, wrong, progress) for part in chosen)
        if (source / "classes.txt").is_file():
            shutil.copyfile(source / "classes.txt", folder.part / "classes.txt")
    return done


def _copy_files(
    source: Path, target: Path, files: list[Path], wrong: set[str], progress: Progress
) -> int:
    done = 0
    for path in files:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if str(path) in wrong:
            copy.write_bytes(to_rgb_jpeg(path.read_bytes()))
            done += 1
        else:
            shutil.copyfile(path, copy)
        progress.add(1)
    return done


def _copy_records(part: Part, target: Path, wrong: set[str], progress: Progress) -> int:
    file = MappedFile(str(part.path))
    done = 0
    places = [place for _, (_, _, run) in part.runs for place in run]
    with Writer(target / part.path.stem) as writer:
        for name, (offset, _) in zip(part.names, places, strict=True):
            record = join(file.data(), locate(file.data(), offset, file.size))
            header, image = unpack_header(record)
            if name in wrong:
                record = pack_header(header.label, header.id, to_rgb_jpeg(image))
                done += 1
            writer.write(header.id, record)
            progress.add(1)
    path_lst = part.path.with_suffix(".lst")
    if path_lst.exists():
        shutil.copyfile(path_lst, target / path_lst.name)
    return done


def to_rgb_jpeg(data: bytes) -> bytes:
    """Return the image as an RGB JPEG of quality 100."""
    out = io.BytesIO()
    eight_bits(Image.open(io.BytesIO(data))).convert("RGB").save(out, "JPEG", quality=100)
    return out.getvalue()

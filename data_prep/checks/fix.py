"""Writes a copy of a data set in which the images that have one right repair are repaired.

A CMYK image, or a PNG named as JPEG, becomes an RGB JPEG of quality 100, as is done for ImageNet;
everything else is copied byte for byte.
"""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

from PIL import Image

from data_prep.checks.folders import Part
from data_prep.checks.problems import Problem
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
    """Raise UserError if the copy cannot go there, which is better said before all is read."""
    if out.exists():
        raise UserError(f"--fix {out}: this is there already; name a new folder")
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise UserError(f"--fix {out}: this lies inside {source}; name a folder beside it")


def check_records(parts: list[Part], problems: list[Problem]) -> None:
    """Raise UserError if records are damaged: the copy would give them checksums that fit."""
    damaged = sum(problem.kind == "checksum" for problem in problems)
    if damaged and not any(part.form == "files" for part in parts):
        raise UserError(
            f"--fix: {damaged:,} records are not as they were packed; copy the record files or "
            "pack the images again first"
        )


def write_fixed(
    source: Path, out: Path, parts: list[Part], wrong: set[str], quiet: bool = False
) -> int:
    """Copy the files or records of ``source`` to the new folder ``out``; returns the number
    repaired.

    ``wrong`` holds the names, as in the parts, of the images to repair. Of a data root with class
    folders only these are copied; records and shards are to be made from them again. Raises
    UserError if ``out`` is there already, lies inside the source, or has too little room.
    """
    check_target(source, out)
    chosen = [part for part in parts if part.form == "files"]
    chosen = chosen or [part for part in parts if part.form == "recordio"]
    if not chosen:
        raise UserError(f"--fix: {source} holds shards; fix the images that they were made from")
    files = _files(source, chosen) if chosen[0].form == "files" else [p.path for p in chosen]
    out.parent.mkdir(parents=True, exist_ok=True)
    check_room(out.parent, sum(path.stat().st_size for path in files), f"the copy {out}")
    total = len(files) if chosen[0].form == "files" else sum(map(len, chosen))
    with OutputFolder(out, None) as folder, Progress(total, "copying", quiet=quiet) as progress:
        if chosen[0].form == "files":
            done = _copy_files(source, folder.part, files, wrong, progress)
        else:
            done = sum(_copy_records(part, folder.part, wrong, progress) for part in chosen)
        for name in ("classes.txt",):
            if (source / name).is_file():
                shutil.copyfile(source / name, folder.part / name)
    return done


def _files(source: Path, parts: list[Part]) -> list[Path]:
    found = []
    for part in parts:
        for folder, _, names in os.walk(part.path):
            found += [Path(folder, name) for name in names if os.path.isfile(f"{folder}/{name}")]
    return found


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
    with Writer(target / part.path.stem) as writer:
        names = iter(part.names)
        for _, (_, _, offsets) in part.runs:
            for offset, _ in offsets:
                record = join(file.data(), locate(file.data(), offset, file.size))
                header, image = unpack_header(record)
                if next(names) in wrong:
                    record = pack_header(header.label, header.id, to_rgb_jpeg(image))
                    done += 1
                writer.write(header.id, record)
                progress.add(1)
    path_lst = part.path.with_suffix(".lst")
    if path_lst.exists():
        shutil.copyfile(path_lst, target / path_lst.name)
    return done


def to_rgb_jpeg(data: bytes) -> bytes:
    """The image as an RGB JPEG of quality 100."""
    out = io.BytesIO()
    eight_bits(Image.open(io.BytesIO(data))).convert("RGB").save(out, "JPEG", quality=100)
    return out.getvalue()

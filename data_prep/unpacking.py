"""Write the images of one class into its folder; runs in worker processes.

A class folder appears whole, by renaming, so that a resumed run knows what is finished.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import FULL

_NAME = re.compile(r"[\w.-]+\.(JPEG|jpeg|jpg|JPG)")

Item = list[Any]
"""An image to write: [name, path], or [name, archive, offset, size in bytes]."""


def safe_members(
    path: str | os.PathLike, offset: int = 0, size: int | None = None
) -> Iterator[tarfile.TarInfo]:
    """Yield the plain files of a tar (or of a tar inside a tar at an offset), in its order.

    Folders are skipped. Raises UserError at a link or device, at a name that does not belong to a
    file in the folder itself, and if the archive is damaged or cut short.
    """
    whole = os.path.getsize(path)
    end = whole if size is None else min(whole, offset + size)
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            tar = tarfile.open(fileobj=file, mode="r:")
            for member in tar:
                if member.size < 0 or member.offset_data + member.size > end:
                    raise tarfile.ReadError("unexpected end of data")
                if member.isdir():
                    continue
                name, why = member.name.removeprefix("./"), ""
                if not member.isreg() or member.issparse():
                    why = "is a link or a device"
                elif "/" in name or name in ("", ".", "..") or "\\" in name or "\0" in name:
                    why = "would be written to another folder"
                if why:
                    raise UserError(
                        f"{path}: the member {member.name!r} {why}; this is not one of ImageNet's "
                        "archives, and nothing of it was written"
                    )
                member.name = name
                yield member
            file.seek(tar.offset)
            if file.read(512) != bytes(512):  # a tar ends with blocks of zeros
                raise tarfile.ReadError("its end is missing")
    except tarfile.TarError as error:
        raise UserError(
            f"{path}: this archive is damaged or cut short ({error}); download it again"
        ) from None


def prepare(out: str) -> Callable[[list], list[int]]:
    """Return the worker's function, which does one task and returns [images, bytes].

    The tasks are ["tar", split, wnid, path, offset, size] for an inner tar, and ["items", split,
    wnid, items] for the images of a class.
    """

    def work(task: list) -> list[int]:
        kind, split, wnid, *where = task
        items = where[0]
        if kind == "tar":
            items = [[m.name, where[0], m.offset_data, m.size] for m in safe_members(*where)]
        return _write_class(Path(out, split, wnid), items)

    return work


def _write_class(folder: Path, items: list[Item]) -> list[int]:
    """Write a class folder, unless it is there, whole."""
    sizes = {}
    for name, path, *place in items:
        if not _NAME.fullmatch(name):
            raise UserError(f"{path}: {name!r} is not a name of ImageNet; nothing was written")
        if name in sizes:
            raise UserError(f"{path}: {name!r} is there twice; nothing was written")
        sizes[name] = place[1] if place else os.stat(path).st_size
    if not _is_whole(folder, sizes):
        part = _fresh_part(folder)
        for name, path, *place in items:
            if place:
                _extract(path, part / name, *place)
            else:
                _link(path, part / name)
        os.rename(part, folder)
    return [len(items), sum(sizes.values())]


def _extract(path: str, target: Path, offset: int, size: int) -> None:
    with open(path, "rb", buffering=0) as archive:
        data = os.pread(archive.fileno(), size, offset)
    if len(data) != size:
        raise UserError(f"{path}: the archive ends inside {target.name}; download it again")
    with open(target, "xb", buffering=0) as file:
        file.write(data)


def _link(path: str, target: Path) -> None:
    """Link a file, or copy it if that fails: file systems refuse links in many ways."""
    try:
        os.link(os.path.realpath(path), target)
    except OSError:
        try:
            shutil.copyfile(path, target)
        except OSError as error:
            if error.errno in FULL:
                error.filename = str(target)  # it is the source's, which is not full
            raise


def _is_whole(folder: Path, sizes: dict[str, int]) -> bool:
    """Return True if an earlier run finished this folder; remove it if it is incomplete."""
    if not folder.is_dir():
        return False
    found = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
    if found == sizes:
        return True
    shutil.rmtree(folder)
    return False


def _fresh_part(folder: Path) -> Path:
    """Return an empty folder for this process: a killed run's may still be written to."""
    for old in folder.parent.glob(f".{folder.name}.part-*"):
        shutil.rmtree(old, ignore_errors=True)
    part = folder.with_name(f".{folder.name}.part-{os.getpid()}")
    part.mkdir(parents=True)
    return part

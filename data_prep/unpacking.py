"""Writes the images of one class, or of one parquet shard, into class folders; runs in workers.

A class folder appears whole, by renaming, so that a run that was killed knows what it has finished.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rn50lib.errors import UserError
from rn50lib.files import write_file

_NAME = re.compile(r"[\w.-]+\.(JPEG|jpeg|jpg|JPG)")
_HF_NAME = re.compile(r"(.+)_(n\d{8})\.(JPEG|jpe?g)", re.IGNORECASE)

Item = tuple[str, str, int, int]
"""An image to write: its name, the file that holds it, offset and size in bytes."""


class Region(io.RawIOBase):
    """A part of a file as a file of its own: an inner tar where it lies in the outer one."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file, self._offset, self._size, self._at = file, offset, size, 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the part."""
        left = self._size - self._at
        self._file.seek(self._offset + self._at)
        data = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place of the part."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = min(max(0, base + offset), self._size)
        return self._at

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at


def safe_members(
    path: str | os.PathLike, offset: int = 0, size: int | None = None
) -> Iterator[tarfile.TarInfo]:
    """The plain files of a tar (or of a tar inside a tar at an offset), in its order.

    Folders are passed over. Raises UserError at a link or device, at a name that is not that of a
    file in the folder itself, and where the archive is damaged or cut short.
    """
    whole = os.path.getsize(path)
    size = whole - offset if size is None else size
    try:
        with (
            open(path, "rb") as file,
            Region(file, offset, size) as region,
            tarfile.open(fileobj=region, mode="r:") as tar,
        ):
            for member in tar:
                name = member.name.removeprefix("./")
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise UserError(
                        f"{path}: the member {member.name!r} is a link or a device; this is not "
                        "one of ImageNet's archives, and nothing of it was written"
                    )
                if "/" in name or name in ("", ".", "..") or "\\" in name or "\0" in name:
                    raise UserError(
                        f"{path}: the member {member.name!r} would be written to another folder; "
                        "this is not one of ImageNet's archives, and nothing of it was written"
                    )
                member.name = name
                member.offset_data += offset
                if member.offset_data + member.size > min(whole, offset + size):
                    raise tarfile.ReadError("unexpected end of data")
                yield member
            region.seek(tar.offset)
            if region.read(512) != bytes(512):  # a tar ends with blocks of zeros
                raise tarfile.ReadError("its end is missing")
    except tarfile.TarError as error:
        raise UserError(
            f"{path}: this archive is damaged or cut short ({error}); download it again (--md5 "
            "checks it)"
        ) from None


def class_of_tar(name: str) -> str | None:
    """n01440764 for n01440764.tar."""
    match = re.fullmatch(r"(n\d{8})\.tar", name)
    return match[1] if match else None


def worker(settings: dict[str, Any]) -> Callable[[list], list[int]]:
    """The function that does one task; it answers with [images, bytes].

    ["tar", split, wnid, path, offset, size]: an inner tar; ["items", split, wnid, items]: images
    that lie in an archive; ["links", split, wnid, pairs of name and path]: files that are there,
    linked where that is possible; ["parquet", split, path]: a shard with images of all classes.
    """
    out, copy = Path(settings["out"]), settings["copy"]

    def work(task: list) -> list[int]:
        kind, split, *rest = task
        if kind == "parquet":
            return _parquet(out, split, rest[0], settings["wnids"])
        wnid, *where = rest
        if kind == "links":
            return _link_class(out / split / wnid, where[0], copy)
        if kind == "tar":
            path, offset, size = where
            members = safe_members(path, offset, size)
            items = [(m.name, path, m.offset_data, m.size) for m in members]
        else:
            items = [tuple(item) for item in where[0]]
        return _write_class(out / split / wnid, items)

    return work


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(f"{where}: {name!r} is no name of an ImageNet image; nothing was written")


def _write_class(folder: Path, items: list[Item]) -> list[int]:
    """Write a class folder from parts of archives, unless it is there, whole."""
    for name, path, _, _ in items:
        _check_name(name, path)
    sizes = {name: size for name, _, _, size in items}
    answer = [len(items), sum(sizes.values())]
    if _is_whole(folder, sizes):
        return answer
    part = _fresh_part(folder)
    files: dict[str, int] = {}
    try:
        for name, path, offset, size in items:
            if path not in files:
                files[path] = os.open(path, os.O_RDONLY)
            data = os.pread(files[path], size, offset)
            if len(data) != size:
                raise UserError(f"{path}: the archive ends inside {name}; download it again")
            with open(part / name, "xb", buffering=0) as file:
                file.write(data)
    finally:
        for descriptor in files.values():
            os.close(descriptor)
    os.rename(part, folder)
    return answer


def _link_class(folder: Path, pairs: list[list[str]], copy: bool) -> list[int]:
    """Make a class folder of files that are there already."""
    sizes = {}
    for name, path in pairs:
        _check_name(name, path)
        sizes[name] = os.stat(path).st_size
    answer = [len(sizes), sum(sizes.values())]
    if _is_whole(folder, sizes):
        return answer
    part = _fresh_part(folder)
    for name, path in pairs:
        if not copy:
            try:
                os.link(os.path.realpath(path), part / name)
                continue
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                    raise
        shutil.copyfile(path, part / name)
    os.rename(part, folder)
    return answer


def _is_whole(folder: Path, sizes: dict[str, int]) -> bool:
    """Whether a killed run had finished this folder; what is there but not whole is removed."""
    if not folder.is_dir():
        return False
    found = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
    if found == sizes:
        return True
    shutil.rmtree(folder)
    return False


def _fresh_part(folder: Path) -> Path:
    """An empty folder of this process's own: a killed run's may still be written to."""
    for old in folder.parent.glob(f".{folder.name}.part-*"):
        shutil.rmtree(old, ignore_errors=True)
    part = folder.with_name(f".{folder.name}.part-{os.getpid()}")
    part.mkdir(parents=True)
    return part


def _parquet(out: Path, split: str, path: str, wnids: list[str]) -> list[int]:
    """Write the images of a Hugging Face shard: columns image {bytes, path} and label."""
    marker = out / ".shards" / f"{split}-{Path(path).name}"
    if marker.exists():
        images, size = map(int, marker.read_text().split())
        return [images, size]
    images = total = 0
    for batch in open_parquet(path).iter_batches(batch_size=256, columns=["image", "label"]):
        for row in batch.to_pylist():
            name, wnid = name_and_class(row["image"]["path"] or "", path)
            label = row["label"]
            if label is None or not 0 <= label < len(wnids) or wnid not in (None, wnids[label]):
                raise UserError(
                    f"{path}: {row['image']['path']} has the label {label}, which is not the rank "
                    "of its class; these are not the shards of the data set imagenet-1k"
                )
            _check_name(name, path)
            data = row["image"]["bytes"] or b""
            folder = out / split / wnids[label]
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".{name}.{os.getpid()}"
            draft.write_bytes(data)
            os.replace(draft, folder / name)
            images, total = images + 1, total + len(data)
    marker.parent.mkdir(exist_ok=True)
    write_file(marker, f"{images} {total}")
    return [images, total]


def name_and_class(path: str, where: str) -> tuple[str, str | None]:
    """The original name of an image, and its class where the name says it.

    Hugging Face appends the class: n01440764_10026_n01440764.JPEG,
    ILSVRC2012_val_00000293_n....JPEG.
    """
    name = os.path.basename(path)
    match = _HF_NAME.fullmatch(name)
    if match:
        return f"{match[1]}.{match[3]}", match[2]
    if not name:
        raise UserError(
            f"{where}: its images have no names, so that they cannot be written as files"
        )
    return name, None


def open_parquet(path: str | os.PathLike) -> Any:
    """The parquet file. Raises UserError if pyarrow is not installed or the file is damaged."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            f"{path}: reading parquet needs the package pyarrow: `pip install pyarrow`"
        ) from None
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # pyarrow has a hierarchy of its own
        raise UserError(f"{path}: this parquet file cannot be read ({error})") from None

"""The exercise notebooks that learners handed in, in a folder, a zip or a file.

Of several notebooks of one exercise, the newest with an answer is graded. Nothing is unpacked to
the disk; a notebook that cannot be read is a note.
"""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rn50lib.errors import first_names
from workshop import catalogue

Cell = dict[str, Any]
MAX_FILE = 40 * 2**20  # bytes of a notebook
NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.I)  # some browsers append a suffix
HIDDEN = re.compile(r"(^|/)\.[^./]")  # Jupyter's checkpoints, and what macOS adds
NAMES = {item.name for item in catalogue.EXERCISES}


class File(NamedTuple):
    """A file of an upload: its path there, its date, its size, and how to read it."""

    where: str
    when: tuple[int, ...]
    size: int
    read: Callable[[], bytes]


def read(path: Path, fresh: Mapping[str, list[Cell]]) -> tuple[dict[str, list[Cell]], list[str]]:
    """Return the cells of the notebooks in an upload by "ex01", and what an instructor has to know.

    `fresh` has the cells of each untouched notebook. Whatever is wrong with an upload is a note.
    """
    found = defaultdict[str, list[tuple[tuple, str, list[Cell]]]](list)
    stubs = {key: {cell["source"].strip() for cell in cells} for key, cells in fresh.items()}
    unread: list[str] = []
    others: list[str] = []
    for file in files(path, unread):
        cells = []
        if NOTEBOOK.search(file.where) and not HIDDEN.search(file.where):
            try:
                cells = cells_of(file)
            except Exception as problem:  # of the file system, the zip, or the content
                unread.append(f"{file.where} {unreadable(problem)}")
        keys = {cell["exercise"][:4] for cell in cells} & fresh.keys()
        if not keys:
            others.append(file.where)
        for key in keys:
            own = {cell["source"].strip() for cell in cells
                   if cell["kind"] == "answer" and cell["exercise"].startswith(key)}  # fmt: skip
            found[key].append(((not own <= stubs[key], file.when), file.where, cells))
            found[key].sort(key=lambda one: one[0], reverse=True)
            found[key][1:] = [(*one[:2], []) for one in found[key][1:]]  # there may be thousands
    graded: dict[str, list[Cell]] = {}
    there = f": {first_names(others)}" if others else ""
    notes = [] if found else [f"no exercise notebook was found{there}"]
    for key, several in sorted(found.items()):
        (_, best, graded[key]), *rest = several
        if rest:
            losers = first_names([where for _, where, _ in rest])
            notes.append(f"{key} is {best}; not graded: {losers}")
    if unread:
        notes.append(f"left out: {first_names(unread)}")
    return graded, [clean(note, 2000) for note in notes]


def files(upload: Path, unread: list[str]) -> Iterator[File]:
    """Yield all files, also those in zips, each to be read before the next. Follows no link.

    What cannot be read is added to `unread`.
    """
    walk = os.walk(upload, onerror=lambda e: unread.append(f"a folder {unreadable(e)}"))
    inside = (Path(folder, name) for folder, _, names in walk for name in sorted(names))
    for path in inside if upload.is_dir() and not upload.is_symlink() else [upload]:
        where = path.name if path == upload else path.relative_to(upload).as_posix()
        try:
            if path.is_symlink() or not path.is_file():
                unread.append(f"{where} is a link, or not a file")
            elif where.lower().endswith(".zip") or (path == upload and zipfile.is_zipfile(path)):
                with zipfile.ZipFile(path) as archive:
                    for info in archive.infolist():
                        name = info.filename.replace("\\", "/").lstrip("/")
                        name = name if path == upload else f"{where}/{name}"
                        yield File(
                            name, info.date_time, info.file_size, partial(member, archive, info)
                        )
            else:
                found = path.stat()
                when = time.localtime(found.st_mtime)[:6]
                yield File(where, when, found.st_size, path.read_bytes)
        except Exception as problem:  # each kind of damage has its own exception
            unread.append(f"{where} {unreadable(problem)}")


def member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return a file of a zip, whose size there may be a lie: no more than MAX_FILE is unpacked.

    Of the methods that zipfile knows, only these can be unpacked by parts.
    """
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is not compressed with deflate")
    with archive.open(info) as file:
        return file.read(MAX_FILE)


def unreadable(problem: Exception) -> str:
    text = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    return f"cannot be read, {text[:150]}"


def cells_of(file: File) -> list[Cell]:
    """Return the code cells of a notebook. Raises an exception if it is too large or damaged."""
    if file.size > MAX_FILE:
        raise ValueError(f"it is larger than {MAX_FILE // 2**20} MiB")
    return code_cells(file.read())


def code_cells(data: bytes) -> list[Cell]:
    """Return kind, exercise and source of the code cells. Raises an exception for anything else."""
    found = []
    for cell in json.loads(data)["cells"]:
        source = "".join(cell["source"]).replace("\r\n", "\n").encode("utf-8", "replace").decode()
        tags = cell["metadata"].get("tags", [])
        kind = next((tag for tag in tags if tag in ("answer", "check")), "")
        name = next((tag for tag in tags if tag in NAMES), "")
        if not (kind and name):
            kind = name = ""
        if cell["cell_type"] == "code":
            found.append({"kind": kind, "exercise": name, "source": source})
    return found


def clean(text: str, limit: int = 300) -> str:
    """Return text from a learner on one line, without characters that cannot be written."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:limit]).split())

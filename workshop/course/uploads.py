"""The exercise notebooks that learners handed in, in a folder, a zip or a file.

The notebook with its original name goes before others, then the shallowest, then the newest.
Nothing is unpacked to the disk; everything that is not graded is counted by reason.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from rn50lib.errors import first_names
from workshop import catalogue

Cell = dict[str, Any]
MAX_FILE = 40 * 2**20  # bytes of a notebook
NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.I)  # some browsers append a suffix
ARCHIVE = re.compile(r"\.(zip|7z|rar|tar|t?gz|bz2|xz|zst)$", re.I)
NAMES = {item.name for item in catalogue.EXERCISES}
# reasons that need no file names, unless the upload has no exercise at all
OTHER, RESOURCE, LESSON = "not a notebook", "macOS resource file", "notebook without exercises"


class File(NamedTuple):
    """A file of an upload: its path there, its date, its size, and how to read it."""

    where: str
    when: tuple[int, ...]
    size: int
    read: Callable[[], bytes]


def read(
    path: Path, fresh: Mapping[str, list[Cell]], names: Collection[str]
) -> tuple[dict[str, list[Cell]], list[str]]:
    """Return the cells of the notebooks in an upload by "ex01", and what an instructor has to know.

    `fresh` has the cells of each untouched notebook, `names` their file names without suffix.
    Whatever is wrong with an upload is a note.
    """
    left_out = defaultdict[str, list[str]](list)
    found = defaultdict[str, list[tuple[tuple, File, list[Cell]]]](list)
    stubs = {key: {cell["source"].strip() for cell in cells} for key, cells in fresh.items()}
    for file in files(path, left_out):
        cells, why = [], why_unread(file)
        if not why:
            try:
                cells = code_cells(file.read())
            except Exception as problem:  # of the file system, the zip, or the content
                why = unreadable(problem)
        keys = {cell["exercise"][:4] for cell in cells} & fresh.keys()
        if not keys:
            left_out[why or LESSON].append(file.where)
        for key in keys:
            own = {cell["source"].strip() for cell in cells
                   if cell["kind"] == "answer" and cell["exercise"].startswith(key)}  # fmt: skip
            place = PurePosixPath(NOTEBOOK.sub("", file.where))
            worse = own <= stubs[key], place.name not in names, len(place.parts)
            found[key].append((worse, file, cells))
    graded: dict[str, list[Cell]] = {}
    notes = [] if found else ["no exercise notebook was found"]
    for key, several in sorted(found.items()):
        several.sort(key=lambda one: (one[1].when, one[1].where), reverse=True)
        several.sort(key=lambda one: one[0])
        (_, best, graded[key]), *others = several
        if others:
            losers = first_names([file.where for _, file, _ in others])
            notes.append(f"{key} is {best.where}; not graded: {losers}")
    quiet = {OTHER, RESOURCE, LESSON} if found else set()
    reasons = [
        f"{why} ({len(where)}{'' if why in quiet else f': {first_names(where)}'})"
        for why, where in left_out.items()
    ]
    if reasons:
        notes.append(f"left out: {'; '.join(reasons)}")
    return graded, [clean(note, 2000) for note in notes]


def files(upload: Path, left_out: dict[str, list[str]]) -> Iterator[File]:
    """Yield all files, also those in zips, each to be read before the next. Follows no link.

    What cannot be read is added to `left_out`, by reason.
    """
    walk = os.walk(upload, onerror=lambda e: left_out[unreadable(e)].append(Path(e.filename).name))
    inside = (
        Path(folder, name) for folder, *names in walk for name in sorted(itertools.chain(*names))
    )
    for path in itertools.chain([upload], inside if upload.is_dir() else ()):
        where = path.name if path == upload else path.relative_to(upload).as_posix()
        try:
            if path.is_symlink():
                left_out["link"].append(where)
            elif path.is_dir():
                continue
            elif not path.is_file():
                left_out["neither a file nor a folder"].append(where)
            elif where.lower().endswith(".zip") or (path == upload and zipfile.is_zipfile(path)):
                with zipfile.ZipFile(path) as archive:
                    for info in archive.infolist():
                        name = info.filename.replace("\\", "/").lstrip("/")
                        name = name if path == upload else f"{where}/{name}"
                        if not name.endswith("/"):
                            content = partial(archive.read, info)
                            yield File(name, info.date_time, info.file_size, content)
            else:
                found = path.stat()
                when = time.localtime(found.st_mtime)[:6]
                yield File(where, when, found.st_size, path.read_bytes)
        except Exception as problem:  # each kind of damage has its own exception
            left_out[unreadable(problem)].append(where)


def why_unread(file: File) -> str:
    """Return why a file's name or size says not to read it, or nothing."""
    path, archive = PurePosixPath(file.where), ARCHIVE.search(file.where)
    if "__MACOSX" in path.parts or path.name.startswith("._"):
        return RESOURCE
    if not NOTEBOOK.search(file.where):
        return f"{archive[0]} archive" if archive else OTHER
    return f"larger than {MAX_FILE // 2**20} MiB" if file.size > MAX_FILE else ""


def unreadable(problem: Exception) -> str:
    text = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    return f"cannot be read, {text[:150]}"


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

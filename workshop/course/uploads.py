"""The exercise notebooks that learners handed in, in a folder, a zip or a file.

Copies that programs make never replace the notebook itself. Nothing is unpacked to the disk;
everything that is not graded is counted by reason.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from workshop import catalogue

Cell = dict[str, Any]
MAX_FILE = 40 * 2**20  # bytes of a notebook
NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.I)  # some browsers append a suffix
ARCHIVE = re.compile(r"\.(zip|7z|rar|tar|t?gz|bz2|xz|zst)$", re.I)
ZIP = re.compile(r"\.zip$", re.I)
# Jupyter's, an editor's
HIDDEN = re.compile(r"(^|/)\.(?!\.?/)|-checkpoint\.|(^|/)__pycache__/", re.I)
COPY = re.compile(
    r"-copy\d*$|\(\d+\)$|[ _-](copy|kopie)( ?\d+)?$|\.changed-|\.nbconvert$|~$"
    r"|[._ -](bak|backup|old|autosave)$|conflict",
    re.I,
)  # a name without its suffix: of JupyterLab, browsers, file managers, `reset`, sync programs
WORSE = ("a hidden copy", "untouched", "a copy", "another name", "in a deeper folder")
NAMES = {item.name for item in catalogue.EXERCISES}
# reasons that need no file names, unless the upload has no exercise at all
OTHER, RESOURCE, LESSON = "not a notebook", "macOS resource file", "notebook without exercises"


class File(NamedTuple):
    """A file of an upload: its path there, its date, its size, and how to read it."""

    where: str
    when: tuple[int, ...]
    size: int
    read: Callable[[], bytes]


class Candidate(NamedTuple):
    """A notebook that contains exercises; of two, the one with the lower rank is graded."""

    where: str
    when: tuple[int, ...]
    cells: list[Cell]
    rank: tuple[bool | int, ...]


def read(
    path: Path, fresh: Mapping[str, list[Cell]], names: Collection[str]
) -> tuple[dict[str, list[Cell]], list[str]]:
    """Return the cells of the notebooks in an upload by "ex01", and what an instructor has to know.

    `fresh` has the cells of each untouched notebook, `names` their file names without suffix.
    Whatever is wrong with an upload is a note.
    """
    upload, cells = Upload(path), {}
    notes: list[str] = []
    found = candidates(upload, fresh, names)
    for key, ordered in sorted(found.items()):
        best, *others = ordered
        cells[key] = best.cells
        kind = next((f", {WORSE[i]}" for i in (0, 2) if best.rank[i]), "")
        losers = listed([f"{one.where} ({why_not(one, best)})" for one in others])
        if others or kind:
            more = f"; not graded: {losers}" if others else ""
            notes.append(f"{key} is {best.where}{kind}{more}")
    if not found:
        notes.append("no exercise notebook was found")
    quiet = {OTHER, RESOURCE, LESSON} if found else set()
    reasons = [
        f"{why} ({len(files)}{'' if why in quiet else f': {listed(files)}'})"
        for why, files in upload.left_out.items()
    ]
    if reasons:
        notes.append(f"left out: {'; '.join(reasons)}")
    return cells, [clean(note, 2000) for note in notes]


def candidates(
    upload: Upload, fresh: Mapping[str, list[Cell]], names: Collection[str]
) -> dict[str, list[Candidate]]:
    """Return the notebooks with exercises by "ex01", the one to grade first."""
    found = defaultdict[str, list[Candidate]](list)
    stubs = {key: {cell["source"].strip() for cell in cells} for key, cells in fresh.items()}
    for file, cells in upload.notebooks():
        keys = {cell["exercise"][:4] for cell in cells} & fresh.keys()
        if not keys:
            upload.leave_out(file.where, LESSON)
        for key in keys:
            own = {c["source"].strip() for c in cells
                   if c["kind"] == "answer" and c["exercise"].startswith(key)}  # fmt: skip
            hidden, *others = by_name(file.where, names)
            rank = (hidden, own <= stubs[key], *others)
            found[key].append(Candidate(file.where, file.when, cells, rank))
    for one in found.values():
        one.sort(key=lambda c: (c.when, c.where), reverse=True)
        one.sort(key=lambda c: c.rank)
    return found


class Upload:
    """The files of one upload, and the paths of those that are left out, by reason."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_out = defaultdict[str, list[str]](list)

    def leave_out(self, where: str, why: str | Exception) -> None:
        if isinstance(why, Exception):
            text = getattr(why, "strerror", None) or str(why) or type(why).__name__
            why = f"cannot be read, {text[:150]}"
        self.left_out[why].append(where)

    def notebooks(self) -> Iterator[tuple[File, list[Cell]]]:
        """Yield the notebooks with their code cells."""
        for file in self.files():
            path, archive = PurePosixPath(file.where), ARCHIVE.search(file.where)
            if "__MACOSX" in path.parts or path.name.startswith("._"):
                self.leave_out(file.where, RESOURCE)
            elif not NOTEBOOK.search(file.where):
                self.leave_out(file.where, f"{archive[0]} archive" if archive else OTHER)
            elif file.size > MAX_FILE:
                self.leave_out(file.where, f"larger than {MAX_FILE // 2**20} MiB")
            else:
                try:
                    cells = code_cells(file.read())
                except Exception as problem:  # of the file system, the zip, or the content
                    self.leave_out(file.where, problem)
                else:
                    yield file, cells

    def files(self) -> Iterator[File]:
        """Yield all files, also those in zips, each to be read before the next. Follows no link."""
        for path in self.paths():
            where = path.name if path == self.path else path.relative_to(self.path).as_posix()
            try:
                found = path.lstat()
                when, kind = time.localtime(found.st_mtime)[:6], stat.S_IFMT(found.st_mode)
                if kind == stat.S_IFLNK:
                    self.leave_out(where, "link")
                elif kind not in (stat.S_IFREG, stat.S_IFDIR):
                    self.leave_out(where, "neither a file nor a folder")
                elif ZIP.search(where) or (path == self.path and zipfile.is_zipfile(path)):
                    with zipfile.ZipFile(path) as archive:
                        yield from zipped(archive, "" if path == self.path else f"{where}/")
                elif kind == stat.S_IFREG:
                    yield File(where, when, found.st_size, path.read_bytes)
            except Exception as problem:  # each kind of damage has its own exception
                self.leave_out(where, problem)

    def paths(self) -> Iterator[Path]:
        """Yield the upload, and all files and folders in it."""
        yield self.path
        if self.path.is_dir():
            walk = os.walk(self.path, onerror=lambda e: self.leave_out(Path(e.filename).name, e))
            for folder, folders, files in walk:
                yield from (Path(folder, name) for name in sorted([*folders, *files]))


def zipped(archive: zipfile.ZipFile, folder: str) -> Iterator[File]:
    """Yield the files of a zip, with "/" between the parts of a path."""
    for info in archive.infolist():
        where = folder + info.filename.replace("\\", "/").lstrip("/")
        if not where.endswith("/"):
            yield File(where, info.date_time, info.file_size, partial(archive.read, info))


def by_name(where: str, names: Collection[str]) -> tuple[bool, bool, bool, int]:
    """Return whether a path is a hidden file, a copy and renamed, and how deep it is."""
    path = PurePosixPath(where)
    stem = NOTEBOOK.sub("", path.name)
    hidden = HIDDEN.search(where) is not None
    return hidden, COPY.search(stem) is not None, stem not in names, len(path.parts)


def why_not(one: Candidate, best: Candidate) -> str:
    for worse, mine, other in zip(WORSE, one.rank, best.rank, strict=True):
        if mine != other:
            return worse
    return "older" if one.when < best.when else "a second one"


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


def listed(names: list[str]) -> str:
    """Return the first three of the names, each cut at its beginning, and how many follow."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(n if len(n) < 120 else f"…{n[-118:]}" for n in names[:3]) + more


def clean(text: str, limit: int = 300) -> str:
    """Return text from a learner on one line, without characters that cannot be written."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:limit]).split())

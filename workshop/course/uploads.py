"""The exercise notebooks that learners handed in, in a folder, a zip or a file.

Copies that programs make never replace the notebook itself, and cells are recognised without tags.
Nothing is unpacked to the disk; everything that is not graded is counted by reason.
"""

from __future__ import annotations

import io
import re
import stat
import time
import zipfile
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from workshop import catalogue
from workshop.course import build

Cell = dict[str, Any]
MAX_FILE = 40 * 2**20  # bytes of a notebook or of a zip inside a zip
MAX_TOTAL = 10 * MAX_FILE  # bytes of all of them in an upload
MAX_NOTEBOOKS = 200  # of an upload
MAX_FILES = 100_000  # and folders, of an upload that is a folder
NESTING = 2  # zips inside zips
NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.I)  # some browsers append a suffix
ARCHIVE = re.compile(r"\.(7z|rar|tar|t?gz|bz2|xz|zst)$", re.I)
ZIP = re.compile(r"\.zip$", re.I)
HIDDEN = re.compile(
    r"(^|/)\.(?!\.?/)|-checkpoint\.|(^|/)__pycache__/", re.I
)  # Jupyter's, an editor's
COPY = re.compile(
    r"-copy\d*$|\(\d+\)$|[ _-](copy|kopie)( ?\d+)?$|\.changed-|\.nbconvert$|~$"
    r"|[._ -](bak|backup|old|autosave)$|conflict",
    re.I,
)  # a name without its suffix: of JupyterLab, browsers, file managers, `reset`, sync programs
WORSE = ("a hidden copy", "untouched", "a copy", "another name", "in a deeper folder")
CHECKED = re.compile(r"\b(?:check|points)\(\s*[\"'](ex\d\d\.\w+)")  # also in nbgrader's cells
HEADING = re.compile(r"^#+\s*(ex\d\d\.\w+)", re.M)
NAMES = {item.name: item.answer for item in catalogue.EXERCISES}
# reasons that need no file names, unless the upload has no exercise at all
OTHER, RESOURCE, LESSON = "not a notebook", "macOS resource file", "notebook without exercises"


@dataclass(frozen=True)
class File:
    """A file of an upload: its path there, its date, and how to read it up to the limit."""

    where: str
    when: tuple[int, ...]
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Candidate:
    """A notebook that contains exercises; of two, the one with the lower rank is graded."""

    where: str
    when: tuple[int, ...]
    cells: list[Cell]
    rank: tuple[bool | int, ...]


@dataclass
class Work:
    """The cells of a learner's notebooks by "ex01", and what an instructor has to know."""

    cells: dict[str, list[Cell]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read(path: Path, fresh: Mapping[str, list[Cell]], names: Collection[str]) -> Work:
    """Return the work in one upload.

    `fresh` has the cells of each untouched notebook, `names` their file names without suffix.
    Whatever is wrong with an upload is a note.
    """
    work = Work()
    with ExitStack() as opened:
        upload = Upload(path, opened)
        found = candidates(upload, fresh, names)
    for key, ordered in sorted(found.items()):
        best, *others = ordered
        work.cells[key] = best.cells
        kind = next((f", {WORSE[i]}" for i in (0, 2) if best.rank[i]), "")
        losers = listed([f"{one.where} ({why_not(one, best)})" for one in others])
        if others or kind:
            more = f"; not graded: {losers}" if others else ""
            work.notes.append(f"{key} is {best.where}{kind}{more}")
    if not found:
        work.notes.append("no exercise notebook was found")
    quiet = {OTHER, RESOURCE, LESSON} if found else set()
    reasons = [
        f"{why} ({len(files)}{'' if why in quiet else f': {listed(files)}'})"
        for why, files in upload.left_out.items()
    ]
    if reasons:
        work.notes.append(f"left out: {'; '.join(reasons)}")
    work.notes = [clean(note, 2000) for note in work.notes]
    return work


def candidates(
    upload: Upload, fresh: Mapping[str, list[Cell]], names: Collection[str]
) -> dict[str, list[Candidate]]:
    """Return the notebooks with exercises by "ex01", the one to grade first."""
    found = defaultdict[str, list[Candidate]](list)
    stubs = {key: {cell["source"].strip() for cell in cells} for key, cells in fresh.items()}
    for file, data in upload.notebooks(names):
        try:
            cells = code_cells(data, PurePosixPath(file.where).name)
        except Exception as problem:  # each kind of damage has its own exception
            upload.leave_out(file.where, problem)
            continue
        answers = [cell for cell in cells if cell["kind"] == "answer"]
        keys = {cell["exercise"][:4] for cell in answers or cells} & fresh.keys()
        if not keys:
            upload.leave_out(file.where, LESSON)
        for key in keys:
            own = {c["source"].strip() for c in answers if c["exercise"].startswith(key)}
            hidden, *others = by_name(file.where, names)
            rank = (hidden, own <= stubs[key], *others)
            found[key].append(Candidate(file.where, file.when, only(key, cells), rank))
    for one in found.values():
        one.reverse()  # of two zip entries with the same name, the last one counts
        one.sort(key=lambda c: (c.when, c.where), reverse=True)
        one.sort(key=lambda c: c.rank)
    return found


class Upload:
    """The files of one upload, and the paths of those that are left out, by reason."""

    def __init__(self, path: Path, opened: ExitStack) -> None:
        self.path, self.opened = path, opened
        self.left_out = defaultdict[str, list[str]](list)
        self.nested = 0  # bytes of zips inside zips

    def leave_out(self, where: str, why: str | Exception) -> None:
        """Note that a file is not graded."""
        if isinstance(why, UnicodeDecodeError):
            why = f"cannot be read, a name or text is not {why.encoding}"
        elif isinstance(why, Exception):
            text = getattr(why, "strerror", None) or str(why) or type(why).__name__
            why = f"cannot be read, {text[:150]}"
        self.left_out[why].append(where)

    def notebooks(self, names: Collection[str]) -> Iterator[tuple[File, bytes]]:
        """Yield the notebooks with their content, the likeliest ones first."""
        chosen = []
        for file in self.files(self.path):
            parts, archive = PurePosixPath(file.where).parts, ARCHIVE.search(file.where)
            if "__MACOSX" in parts or parts[-1].startswith("._"):
                self.leave_out(file.where, RESOURCE)
            elif NOTEBOOK.search(file.where):
                chosen.append(file)
            else:
                self.leave_out(file.where, f"{archive[0]}, not a zip" if archive else OTHER)
        total = 0
        chosen.sort(key=lambda file: (by_name(file.where, names), file.where))
        for number, file in enumerate(chosen):
            if number >= MAX_NOTEBOOKS or total > MAX_TOTAL:
                limit = f"{MAX_NOTEBOOKS} notebooks or {MAX_TOTAL // 2**20} MiB"
                self.leave_out(file.where, f"beyond {limit}")
                continue
            try:
                data = file.read()
            except Exception as problem:  # of the file system, the zip, or the decompressor
                self.leave_out(file.where, problem)
                continue
            total += len(data)
            if len(data) > MAX_FILE:
                self.leave_out(file.where, f"larger than {MAX_FILE // 2**20} MiB")
            else:
                yield file, data

    def files(self, path: Path) -> Iterator[File]:
        """Yield all files, in a folder the shallow ones first. Links are not followed."""
        waiting, seen = deque([path]), 0
        while waiting:
            inner = waiting.popleft()
            seen += 1
            if seen > MAX_FILES:
                self.leave_out(inner.name, f"this and all after {MAX_FILES:,} files and folders")
                break
            where = inner.name if inner == path else inner.relative_to(path).as_posix()
            try:
                found = inner.lstat()
                if stat.S_ISLNK(found.st_mode):
                    self.leave_out(where, "link")
                elif stat.S_ISDIR(found.st_mode):
                    waiting.extend(sorted(inner.iterdir()))
                elif not stat.S_ISREG(found.st_mode):
                    self.leave_out(where, "neither a file nor a folder")
                elif ZIP.search(where) or (inner == path and zipfile.is_zipfile(inner)):
                    yield from self.zipped(inner, "" if inner == path else f"{where}/")
                else:
                    yield File(where, time.localtime(found.st_mtime)[:6], partial(read_file, inner))
            except (OSError, ValueError, OverflowError) as problem:
                self.leave_out(where, problem)

    def zipped(
        self, source: Path | io.BytesIO, folder: str, nesting: int = NESTING
    ) -> Iterator[File]:
        """Yield the files of a zip, and of zips in it, with "/" between the parts of a path."""
        try:
            archive = self.opened.enter_context(zipfile.ZipFile(source))
        except Exception as problem:  # each kind of damage has its own exception
            self.leave_out(folder.strip("/") or self.path.name, problem)
            return
        for info in archive.infolist():
            where = folder + info.filename.replace("\\", "/").lstrip("/")
            if where.endswith("/"):
                continue
            if stat.S_ISLNK(info.external_attr >> 16):
                self.leave_out(where, "link")
            elif info.flag_bits & 1:
                self.leave_out(where, "encrypted")
            elif not ZIP.search(where):
                yield File(where, info.date_time, partial(read_entry, archive, info))
            elif nesting and self.nested + info.file_size <= MAX_TOTAL:
                try:
                    inner = read_entry(archive, info)
                except Exception as problem:
                    self.leave_out(where, problem)
                else:
                    self.nested += len(inner)
                    yield from self.zipped(io.BytesIO(inner), f"{where}/", nesting - 1)
            else:
                self.leave_out(where, "zip inside a zip, too deep or too large")


def read_file(path: Path) -> bytes:
    """Return the content of a file, up to one byte more than the limit."""
    with path.open("rb") as stream:
        return stream.read(MAX_FILE + 1)


def read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return the content of a zip's entry, up to one byte more than the limit."""
    with archive.open(info) as stream:
        return stream.read(MAX_FILE + 1)


def by_name(where: str, names: Collection[str]) -> tuple[bool, bool, bool, int]:
    """Return whether a path is a hidden file, a copy and renamed, and how deep it is."""
    path = PurePosixPath(where)
    stem = NOTEBOOK.sub("", path.name)
    hidden = HIDDEN.search(where) is not None
    return hidden, COPY.search(stem) is not None, stem not in names, len(path.parts)


def why_not(one: Candidate, best: Candidate) -> str:
    """Return why a notebook was not taken."""
    for worse, mine, other in zip(WORSE, one.rank, best.rank, strict=True):
        if mine != other:
            return worse
    return "older" if one.when < best.when else "a second one"


def only(key: str, cells: list[Cell]) -> list[Cell]:
    """Return cells in which those of other notebooks than `key` count as the learner's own."""
    return [
        cell if cell["exercise"].startswith(key) else {**cell, "kind": "", "exercise": ""}
        for cell in cells
    ]


def code_cells(data: bytes, file_name: str = "") -> list[Cell]:
    """Return kind, exercise and source of the code cells. Raises an exception for anything else.

    Cells without tags are recognised by what they contain: a check by its call, and an answer by
    the name it defines, below the heading of its exercise if there is one.
    """
    found: list[Cell] = []
    sections, section = set(), ""
    for cell in build.parse(data)["cells"]:
        source = "".join(cell["source"]).replace("\r\n", "\n")
        source = source.encode("utf-8", "replace").decode()
        if cell["cell_type"] == "markdown":
            section = next((name for name in HEADING.findall(source) if name in NAMES), section)
            sections.add(section)
        if cell["cell_type"] != "code":
            continue
        tags = (cell.get("metadata") or {}).get("tags")
        tags = tags if isinstance(tags, list) else []
        kind = next((tag for tag in tags if tag in ("answer", "check")), "")
        name = next((tag for tag in tags if tag in NAMES), "")
        if not (kind and name):
            kind = name = ""
        found.append({"kind": kind, "exercise": name, "source": source, "section": section})
    for cell in found:
        call = None if cell["kind"] else CHECKED.search(cell["source"])
        if call and call[1] in NAMES and not defines(cell["source"], NAMES[call[1]]):
            cell |= {"kind": "check", "exercise": call[1]}
    keys = {name[:4] for name in (*sections, *(c["exercise"] for c in found))} - {""}
    keys = keys or set(re.findall(r"^(ex\d\d)", file_name))
    tagged = {cell["exercise"] for cell in found if cell["kind"] == "answer"}
    for name in NAMES:
        if name not in tagged and name[:4] in keys:
            for cell in found:
                here = cell["section"] == name or name not in sections
                if here and not cell["kind"] and defines(cell["source"], NAMES[name]):
                    cell |= {"kind": "answer", "exercise": name}
    return [{name: cell[name] for name in ("kind", "exercise", "source")} for cell in found]


def defines(source: str, name: str) -> bool:
    """Return True if a cell, even one with a syntax error, defines a name at its top level."""
    function = rf"(?:async\s+)?(?:def|class)\s+{name}\b"
    value = rf"(?:[\w, (\[*]*[, (\[*])?{name}\b[\w, )\]]*(?::[^=\n]+)?=(?!=)"
    return re.search(rf"^(?!\s)(?:{function}|{value})", source, re.M) is not None


def listed(names: list[str]) -> str:
    """Return the first three of the names, each cut at its beginning, and how many follow."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(n if len(n) < 120 else f"…{n[-118:]}" for n in names[:3]) + more


def clean(text: str, limit: int = 300) -> str:
    """Return text from a learner on one line, without characters that cannot be written."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:limit]).split())

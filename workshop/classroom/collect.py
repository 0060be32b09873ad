"""Finds what a class has handed in: folders, single notebooks, and zips as Moodle writes them.

    DIR/anna/ex03.ipynb              DIR/anna/ex03_horovod.ipynb      DIR/ex03_anna.ipynb
    DIR/anna.zip                     DIR/Anna Berg_12345_assignsubmission_file_/anything.zip
    class.zip with any of these inside, zips in zips too

What is inside a zip is written to a folder of its own under names made here; a name from a zip is
looked at and never used as a path.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from rn50lib.errors import UserError

MOODLE = re.compile(
    r"(?P<who>.+?)_(?P<number>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<rest>.*)"
)
NOTEBOOK = re.compile(r"(ex\d\d)(?:[_ -](.*))?", re.I)
ANSWER = re.compile(r"[A-Za-z_]\w{0,60}\.py")
MAX_FILE, MAX_ALL, MAX_ENTRIES, MAX_NESTED = 40 * 2**20, 400 * 2**20, 2000, 3
BORING = {"__macosx", ".ipynb_checkpoints", "__pycache__", ".ds_store"}


@dataclass
class Submission:
    """What one learner has handed in. `notebooks` is ex03 → file; `answers`, name → file, is what
    `rn50 workshop submit` adds for a reader: the answers that are graded stand in the notebooks."""

    learner: str
    notebooks: dict[str, Path] = field(default_factory=dict)
    answers: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """A file: where it stood, folder by folder, its time, and where its bytes are now."""

    parts: tuple[str, ...]
    when: float
    path: Path


class Collector:
    """Goes through everything once. `stems` are the names of the course's exercise notebooks, such
    as ex03_horovod."""

    def __init__(self, work: Path, stems: list[str]) -> None:
        self.work, self.stems = work, {stem[:4]: stem[5:] for stem in stems}
        self.submissions: dict[str, Submission] = {}
        self.numbers: dict[str, set[str]] = {}  # by name, the numbers that Moodle gives
        self.notes: list[str] = []
        self.count = self.bytes = 0

    def collect(self, source: Path) -> list[Submission]:
        """Raises UserError where there is nothing to grade."""
        if source.is_dir():
            files = list(self.folder(source, ()))
        elif zipfile.is_zipfile(source):
            files = list(self.archive(source, (), 1))
        else:
            raise UserError(f"{source} is neither a folder nor a zip: give what was handed in")
        self.numbers = {}
        for found in files:
            for part in found.parts:
                if match := MOODLE.fullmatch(part):
                    self.numbers.setdefault(match["who"], set()).add(match["number"])
        seen: dict[tuple[str, str], Found] = {}
        for found in files:
            self.take(found, seen)
        if not self.submissions:
            raise UserError(
                f"{source} holds no exercise notebook: expected are LEARNER/ex03.ipynb,"
                " ex03_LEARNER.ipynb, or zips with them"
            )
        return sorted(self.submissions.values(), key=lambda one: one.learner.casefold())

    def folder(self, place: Path, parts: tuple[str, ...]) -> Iterator[Found]:
        for entry in sorted(place.iterdir()):
            here = (*parts, entry.name)
            if entry.name.lower() in BORING or entry.name.startswith("."):
                continue
            if entry.is_symlink():
                self.notes.append(f"{'/'.join(here)} is a link, and was left out")
            elif entry.is_dir() and len(here) < 12:
                yield from self.folder(entry, here)
            elif entry.is_file() and entry.suffix.lower() == ".zip":
                yield from self.archive(entry, here, 1)
            elif entry.is_file():
                yield Found(here, entry.stat().st_mtime, entry)

    def archive(self, path: Path, parts: tuple[str, ...], depth: int) -> Iterator[Found]:
        """The files of a zip, zips inside it too. Problems become notes."""
        name = "/".join(parts) or path.name
        try:
            with zipfile.ZipFile(path) as opened:
                for info in opened.infolist():
                    yield from self.entry(opened, info, parts, depth, name)
        except (
            zipfile.BadZipFile,
            OSError,
            RuntimeError,
            NotImplementedError,
            ValueError,
        ) as error:
            self.notes.append(f"{name} cannot be unpacked: {error}")

    def entry(
        self, opened: zipfile.ZipFile, info: zipfile.ZipInfo, parts: tuple[str, ...], depth: int,
        name: str,
    ) -> Iterator[Found]:  # fmt: skip
        inner = PurePosixPath(info.filename.replace("\\", "/"))
        if info.is_dir() or any(part.lower() in BORING for part in inner.parts):
            return
        if inner.is_absolute() or ".." in inner.parts or ":" in info.filename.split("/")[0]:
            self.notes.append(f"{name}: {info.filename!r} leads out of the zip, and was refused")
            return
        if (info.external_attr >> 16) & 0o170000 == 0o120000:
            self.notes.append(f"{name}: {info.filename!r} is a link, and was left out")
            return
        suffix = inner.suffix.lower()
        if suffix not in (".ipynb", ".py", ".zip"):
            return
        self.count += 1
        limit = MAX_ALL if suffix == ".zip" else MAX_FILE
        if self.count > MAX_ENTRIES or self.bytes + info.file_size > MAX_ALL * 4:
            raise ValueError("it holds too much")
        with opened.open(info) as stream:
            data = stream.read(limit + 1)
        if len(data) > limit:
            self.notes.append(f"{name}: {info.filename!r} is too large, and was left out")
            return
        self.bytes += len(data)
        path = self.work / f"{self.count:05d}{suffix}"
        path.write_bytes(data)
        year, month, day, hour, minute, second = info.date_time
        when = float(f"{year:04d}{month:02d}{day:02d}{hour:02d}{minute:02d}{second:02d}")
        here = (*parts, *inner.parts)
        if suffix == ".zip" and depth < MAX_NESTED:
            yield from self.archive(path, here, depth + 1)
        elif suffix != ".zip":
            yield Found(here, when, path)

    # --- whose, and what --------------------------------------------------------------------------

    def take(self, found: Found, seen: dict[tuple[str, str], Found]) -> None:
        """File it under its learner."""
        name = found.parts[-1]
        rest = name
        if match := MOODLE.fullmatch(name):
            rest = match["rest"]
        stem, suffix = Path(rest).stem, Path(rest).suffix.lower()
        kind = NOTEBOOK.fullmatch(stem)
        if suffix == ".ipynb" and kind and kind[1].lower() in self.stems:
            key = kind[1].lower()
            who = self.learner(found.parts) or self.from_name(key, kind[2] or "")
        elif suffix == ".py" and "answers" in found.parts[:-1] and ANSWER.fullmatch(rest):
            key = f"answers/{rest}"
            who = self.learner(tuple(p for p in found.parts if p != "answers"))
        else:
            if suffix == ".ipynb":
                self.notes.append(f"{'/'.join(found.parts)} is no exercise of this course")
            return
        if not who:
            self.notes.append(f"{'/'.join(found.parts)} names no learner: put it into a folder"
                              " named after one")  # fmt: skip
            return
        one = self.submissions.setdefault(who, Submission(who))
        before = seen.get((who, key))
        if before is not None:
            older, newer = sorted((before, found), key=lambda item: item.when)
            one.notes.append(f"{key} was handed in twice; {'/'.join(newer.parts)} is newer")
            found = newer
        seen[who, key] = found
        if key.startswith("answers/"):
            one.answers[key.removeprefix("answers/")] = found.path
        else:
            one.notebooks[key] = found.path

    def learner(self, parts: tuple[str, ...]) -> str:
        """The learner that a path names: Moodle's name, else the outermost folder or zip."""
        for part in parts:
            if match := MOODLE.fullmatch(part):
                who = match["who"]
                both = len(self.numbers.get(who, ())) > 1
                return clean(f"{who} ({match['number']})" if both else who)
        if len(parts) < 2:
            return ""
        first = parts[0]
        return clean(Path(first).stem if first.lower().endswith(".zip") else first)

    def from_name(self, key: str, rest: str) -> str:
        """The learner of ex03_anna.ipynb, or of ex03_horovod_anna.ipynb."""
        title = self.stems[key]
        if rest == title:
            return ""
        return clean(rest.removeprefix(f"{title}_"))


def clean(name: str) -> str:
    """A learner's name on one line, without what cannot be shown."""
    kept = "".join(c if c.isprintable() else " " for c in name)
    return " ".join(kept.split())[:80].removeprefix("rn50-")

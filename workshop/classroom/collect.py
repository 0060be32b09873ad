"""Finds what a class has handed in, and whose it is.

    ours        rn50-anna.zip   anna/ex03.ipynb   anna.zip   ex03_anna.ipynb
    Moodle      Anna Berg_48151_assignsubmission_file_/…   or   …_assignsubmission_file_ex03.ipynb
    Canvas      bergann_12345_678_ex03.ipynb   bergann_LATE_12345_678_work.zip
    nbgrader    submitted/anna/ps1/ex03.ipynb   anna+ps1+2026-11-23 10:00:00 UTC/ex03.ipynb
    Gradescope  assignment_9_export/submission_123/ex03.ipynb, beside submission_metadata.yml

Whose it is says the outermost name alone, which the platform or the instructor has given. Names
inside of an upload are its learner's, and stand for nobody. What is wrong with an upload becomes a
note of its learner. What is inside a zip is written under names made here; a name from a zip is
looked at and never used as a path.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePosixPath
from typing import IO

import yaml

from rn50lib.errors import UserError
from workshop.classroom.roster import Roster

UTC = timezone.utc
MOODLE = re.compile(r"(?P<who>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<rest>.*)")
CANVAS = re.compile(r"(?P<who>[^_]+)(?:_LATE)?_(?P<id>\d+)_\d+_(?P<rest>.+\.(?:ipynb|zip))", re.I)
NBGRADER = re.compile(r"(?P<who>[^+]+)\+[^+]+\+\d{4}-\d\d-\d\d .+")
WRAPPER = re.compile(r"submitted|assignment_\d+_export")  # around the learners' folders
METADATA = "submission_metadata.yml"  # Gradescope's: who stands behind submission_123
NOTEBOOK = re.compile(r"(ex\d\d)(?:[_ -](.*))?", re.I)
MAX_FILE, MAX_ALL, MAX_ENTRIES, MAX_NESTED = 40 * 2**20, 400 * 2**20, 2000, 3  # of each learner
BORING = {"__macosx", ".ipynb_checkpoints", "__pycache__", ".ds_store"}
HANDED_IN, DAMAGED, MISSING = "handed in", "damaged", "missing"


@dataclass(frozen=True)
class Time:
    """When something was handed in, and how that is known."""

    when: datetime
    clock: str

    def __str__(self) -> str:
        return f"{self.when:%Y-%m-%d %H:%M:%S} UTC, {self.clock}"


@dataclass(frozen=True)
class Found:
    """A notebook: where it stood, folder by folder, its time, and where its bytes are now."""

    parts: tuple[str, ...]
    time: Time
    path: Path

    def __str__(self) -> str:
        return f"{'/'.join(self.parts)} ({self.time})"


@dataclass
class Submission:
    """What one learner has handed in: ex03 → file. `damage` is what of it cannot be read."""

    learner: str
    notebooks: dict[str, Found] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damage: str = ""

    @property
    def status(self) -> str:
        return DAMAGED if self.damage else HANDED_IN if self.notebooks else MISSING


class Collector:
    """Goes through everything once. `stems` are the names of the course's exercise notebooks, such
    as ex03_horovod."""

    def __init__(self, work: Path, stems: list[str], roster: Roster | None = None) -> None:
        self.work, self.stems = work, {stem[:4]: stem[5:] for stem in stems}
        self.roster = roster or Roster([])
        self.source = Path()
        self.submissions: dict[str, Submission] = {}
        self.notes: list[str] = []
        self.shown: dict[str, str] = {}  # the name on the pages, by the name as found
        self.numbers: dict[str, set[str]] = {}  # of one source: by name, the platform's numbers
        self.people: dict[str, list[dict[str, str]]] = {}  # Gradescope's, by submission_123
        self.problems: dict[tuple[tuple[str, ...], str], bool] = {}  # where, what → is it damage
        self.spent: Counter[tuple[str, str]] = Counter()
        self.count = 0

    def collect(self, *sources: Path) -> list[Submission]:
        """Raises UserError where there is nothing to grade."""
        for source in sources:
            now = datetime.now(UTC)
            self.source, self.problems, self.people, self.numbers = source, {}, {}, {}
            if source.is_dir():
                files = list(self.folder(source, ()))
            elif zipfile.is_zipfile(source):
                files = list(self.archive(source, (), Time(now, "now"), None, 1))
            else:
                raise UserError(f"{source} is neither a folder nor a zip: give what was handed in")
            for parts in [*(found.parts for found in files), *(one[0] for one in self.problems)]:
                if match := named(parts):
                    self.numbers.setdefault(match["who"], set()).add(match["id"])
            for found in files:
                self.take(found)
            for (parts, text), damaged in self.problems.items():
                self.file_problem(parts, text, damaged)
        if not self.submissions:
            raise UserError(
                f"{', '.join(map(str, sources))} holds no exercise notebook: expected are"
                " LEARNER/ex03.ipynb, ex03_LEARNER.ipynb, or zips with them"
                + "".join(f"; {note}" for note in self.notes[:3])
            )
        for name in self.roster.names():
            self.submissions.setdefault(name, Submission(name))
        return sorted(self.submissions.values(), key=lambda one: one.learner.casefold())

    def problem(self, parts: tuple[str, ...], text: str, damaged: bool = False) -> None:
        """Note it; whom it concerns is known when everything has been read."""
        self.problems[parts, text] = damaged

    # --- reading ----------------------------------------------------------------------------------

    def folder(self, place: Path, parts: tuple[str, ...]) -> Iterator[Found]:
        try:
            entries = sorted(place.iterdir())
        except OSError as problem:
            self.problem((*parts, ""), f"cannot be read: {problem.strerror}", damaged=True)
            return
        for entry in entries:
            here = (*parts, legible(entry.name))
            if entry.name.lower() in BORING or entry.name.startswith("."):
                continue
            try:
                if entry.is_symlink():
                    self.problem(here, "is a link, and was left out")
                elif entry.is_dir() and len(here) < 12:
                    outside = not parts and WRAPPER.fullmatch(entry.name)
                    yield from self.folder(entry, () if outside else here)
                elif entry.is_file():
                    changed = datetime.fromtimestamp(entry.stat().st_mtime, UTC)
                    with entry.open("rb") as stream:
                        yield from self.file(stream, here, Time(changed, "by the file's time"))
            except (OSError, ValueError, OverflowError) as problem:
                self.problem(here, f"cannot be read: {problem}", damaged=True)

    def archive(
        self, path: Path, parts: tuple[str, ...], last: Time, known: Time | None, depth: int
    ) -> Iterator[Found]:
        """The notebooks of a zip, zips inside it too. `known` is when it was handed in; `last` the
        time to take where nothing better is known."""
        try:
            with zipfile.ZipFile(path) as opened:
                time = made_at(opened) or known
                for info in opened.infolist():
                    if here := self.inside(parts, info):
                        try:
                            with opened.open(info) as stream:
                                yield from self.file(stream, here, last, time or stamp(info), depth)
                        except Exception as error:  # zlib's and LZMA's own among them
                            self.problem(here, f"cannot be unpacked: {error}", damaged=True)
        except Exception as error:
            self.problem(parts, f"cannot be unpacked: {error}", damaged=True)

    def inside(self, parts: tuple[str, ...], info: zipfile.ZipInfo) -> tuple[str, ...]:
        """Where an entry stands; empty for one that is left out."""
        inner = PurePosixPath(info.filename.replace("\\", "/"))
        if not inner.parts or info.is_dir() or any(part.lower() in BORING for part in inner.parts):
            return ()
        if inner.is_absolute() or ".." in inner.parts or ":" in info.filename.split("/")[0]:
            self.problem(parts, f"holds {info.filename!r}, which leads out of the zip: refused")
            return ()
        if (info.external_attr >> 16) & 0o170000 == 0o120000:
            self.problem(parts, f"holds {info.filename!r}, which is a link: left out")
            return ()
        inside = inner.parts[bool(not parts and WRAPPER.fullmatch(inner.parts[0])) :]
        return (*parts, *inside)

    def file(
        self, stream: IO[bytes], here: tuple[str, ...], last: Time, known: Time | None = None,
        depth: int = 0,
    ) -> Iterator[Found]:  # fmt: skip
        """A notebook, or those of a zip. Raises ValueError for one that is too large."""
        suffix = PurePosixPath(here[-1]).suffix.lower()
        if suffix not in (".ipynb", ".zip") and here != (METADATA,):
            return
        limit = MAX_ALL if suffix == ".zip" else MAX_FILE
        self.spent[here[0], "files"] += 1
        if self.spent[here[0], "files"] > MAX_ENTRIES or self.spent[here[0], "bytes"] > MAX_ALL:
            self.problem(here[:1], "holds more than is unpacked: too much", damaged=True)
            return
        data = stream.read(limit + 1)
        self.spent[here[0], "bytes"] += len(data)
        if len(data) > limit:
            raise ValueError("it is too large")
        self.count += 1
        path = self.work / f"{self.count:05d}{suffix}"
        path.write_bytes(data)
        if here == (METADATA,):
            self.read_metadata(path)
        elif suffix == ".ipynb":
            yield Found(here, known or last, path)
        elif depth < MAX_NESTED:
            yield from self.archive(path, here, last, known, depth + 1)
            path.unlink()

    def read_metadata(self, path: Path) -> None:
        """Gradescope's list of who stands behind each folder; a group is several."""
        try:
            for name, about in yaml.safe_load(path.read_bytes()).items():
                people = about[":submitters"]
                self.people[name] = [{k: str(v) for k, v in one.items() if v} for one in people]
        except (yaml.YAMLError, OSError, LookupError, TypeError, AttributeError, ValueError) as bad:
            self.problem((), f"{METADATA} cannot be read: {bad}")

    # --- whose, and what --------------------------------------------------------------------------

    def take(self, found: Found) -> None:
        """File it under its learner; of two, the newer one."""
        match = named(found.parts)
        rest = match["rest"] if match and len(found.parts) == 1 else found.parts[-1]
        kind = NOTEBOOK.fullmatch(Path(rest).stem)
        if not kind or kind[1].lower() not in self.stems:
            self.problem(found.parts, "is no exercise of this course")
            return
        key = kind[1].lower()
        learners = self.learners(found.parts)
        if not learners:
            self.problem(found.parts, "names no learner: put it into a folder named after one")
        inside = next((m for part in found.parts[1:] if (m := MOODLE.fullmatch(part))), None)
        for who in learners:
            one = self.submissions.setdefault(who, Submission(who))
            if inside:
                one.notes.append(one_line(
                    f"{found.parts[0]} holds names as Moodle writes them ({inside[0]}). They were"
                    " not believed; if it is a whole class's, grade that zip or folder itself"
                ))  # fmt: skip
            before = one.notebooks.get(key, found)
            older, newer = sorted((before, found), key=lambda each: (each.time.when, each.parts))
            one.notebooks[key] = newer
            if before is not found:
                why = "newer than" if newer.time.when > older.time.when else "as new as"
                one.notes.append(one_line(f"{key} is taken from {newer}; it is {why} {older}"))

    def file_problem(self, parts: tuple[str, ...], text: str, damaged: bool) -> None:
        """A note for whom it concerns; what is damaged is a hand-in."""
        text = one_line(f"{'/'.join(parts) or self.source.name} {text}")
        learners = self.learners(parts) if parts else []
        for who in learners:
            if damaged or who in self.submissions:
                one = self.submissions.setdefault(who, Submission(who))
                one.notes.append(text)
                one.damage = one.damage or (text if damaged else "")
            else:
                self.notes.append(text)
        if not learners:
            self.notes.append(text)

    def learners(self, parts: tuple[str, ...]) -> list[str]:
        """The learners, as shown, that the outermost name of a path stands for; a group is more
        than one."""
        first = parts[0]
        if match := named(parts):
            who, marks = match["who"], [match["who"]]
            if len(self.numbers.get(who, ())) > 1:  # several people of one name
                who, marks = f"{who} ({match['id']})", []
            if CANVAS.fullmatch(first):  # Moodle's number is a hand-in's, Canvas's a person's
                marks.append(match["id"])
            return [self.show(who, marks)]
        if first in self.people:
            people = self.people[first]
            return [self.show(one.get(":name", first), [*one.values()], str(one)) for one in people]
        if match := NBGRADER.fullmatch(first):
            return [self.show(match["who"], [match["who"]])]
        name, suffix = Path(first).stem, Path(first).suffix.lower()
        if suffix == ".ipynb" and len(parts) == 1:
            kind = NOTEBOOK.fullmatch(name)
            rest = (kind and kind[2]) or ""
            title = self.stems.get(kind[1].lower(), "") if kind else ""
            name = "" if rest == title else rest.removeprefix(f"{title}_")
        elif suffix != ".zip":
            name = first if len(parts) > 1 else ""
        name = name.removeprefix("rn50-")
        return [self.show(name, [name])] if name else []

    def show(self, who: str, marks: list[str], identity: str = "") -> str:
        """The one name on the pages of a learner: the roster's, else as it was found."""
        identity = identity or who
        if identity not in self.shown:
            known = self.roster.find(marks)
            made, number = known or one_line(who, 80) or "?", 2
            taken = {*self.shown.values(), *self.roster.names()}
            while not known and made in taken:
                made, number = f"{one_line(who, 80)} [{number}]", number + 1
            self.shown[identity] = made
            if self.roster.people and not known:
                self.notes.append(f"{made} is not on the roster")
        return self.shown[identity]


def named(parts: tuple[str, ...]) -> re.Match[str] | None:
    """Moodle's or Canvas's outermost name."""
    return (MOODLE.fullmatch(parts[0]) or CANVAS.fullmatch(parts[0])) if parts else None


def made_at(opened: zipfile.ZipFile) -> Time | None:
    """When `rn50 workshop submit` made this zip; None for other zips."""
    try:
        with opened.open("manifest.json") as stream:
            when = datetime.fromisoformat(json.loads(stream.read(2**20))["made"]).astimezone(UTC)
    except Exception:  # whatever a damaged zip raises
        return None
    return believed(when, "by its manifest")


def stamp(info: zipfile.ZipInfo) -> Time | None:
    """An entry's time, which zips write without a time zone."""
    try:
        when = datetime(*info.date_time, tzinfo=UTC)
    except ValueError:  # such as the 31st of month 15
        return None
    return believed(when, "by the zip's clock")


def believed(when: datetime, clock: str) -> Time | None:
    """A time, unless it is the zero of zips or still to come."""
    known = when.year > 1980 and when < datetime.now(UTC) + timedelta(days=1)
    return Time(when, clock) if known else None


def legible(name: str) -> str:
    """A file name that can be printed, also where its bytes are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def one_line(text: str, most: int = 500) -> str:
    """A text on one line, without what cannot be shown."""
    kept = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(kept.split())[:most]

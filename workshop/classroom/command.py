"""`rn50 workshop grade SUBMISSIONS -o class.html`: from what a class handed in to a page, tables of
marks, and a page for each learner."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50lib.errors import UserError
from workshop import paths
from workshop.checks import engine, table
from workshop.classroom import box, collect, marks, pages, points, probe, roster
from workshop.classroom.collect import Submission
from workshop.course import build

MOST_NOTES = 20  # of one learner
IMPORTS = ("numpy", "IPython.core.inputtransformer2", "PIL.Image")  # loaded once for all


@dataclass(frozen=True)
class Wanted:
    """The command line."""

    submissions: list[Path]
    out: Path
    points: Path
    overrides: Path
    roster: Path | None = None
    due: datetime | None = None
    marks: list[str] = field(default_factory=list)  # the platforms that get them
    jobs: int = 1
    limits: box.Limits = box.Limits()
    command: str = ""  # for the page

    @property
    def kept(self) -> Path:
        """What has been graded, a line for each submission, without names."""
        return self.out.with_name(f"{self.out.stem}-results.jsonl")

    @property
    def given(self) -> list[Path]:
        return [path.absolute() for path in (self.points, self.overrides, self.roster) if path]

    @property
    def written(self) -> list[Path]:
        tables = marks.files(self.out, self.marks).values()
        return [*pages.files(self.out), *tables, self.kept]

    @property
    def hidden(self) -> list[Path]:
        """What no answer may see, wherever it stands."""
        return [*self.submissions, *self.given, *self.written]


def grade(wanted: Wanted, say: Callable[[str], None]) -> int:
    """Grade everything; returns 0, whatever the learners' code did.

    Raises UserError where there is nothing to grade, or a file cannot be written.
    """
    begin = time.monotonic()
    root = paths.need_checkout()
    for source in wanted.submissions:
        if not source.exists():
            raise UserError(f"there is no {source}")
    if not wanted.out.parent.is_dir():
        raise UserError(f"-o {wanted.out}: there is no folder {wanted.out.parent}")
    if both := set(wanted.given) & set(wanted.written):
        raise UserError(f"-o {wanted.out} would write over {both.pop()}: give another name to one")
    worth, notes = points.load(wanted.points)
    people = roster.load(wanted.roster) if wanted.roster else roster.Roster([])
    if {"moodle", "canvas"} & set(wanted.marks) and not wanted.roster:
        raise UserError(
            f"--marks {wanted.marks[0]} needs --roster: a gradebook knows people by id and e-mail"
        )
    masters = [path for path in build.masters(root) if build.is_exercise(path)]
    with workplace() as folder:
        collector = collect.Collector(
            open_folder(folder, "in", 0o700), [path.stem for path in masters], people
        )
        handed_in = collector.collect(*wanted.submissions)
        if "gradescope" in wanted.marks and len(handed_in) != 1:
            raise UserError(f"--marks gradescope is for one learner, not {len(handed_in)}")
        overrides, more = points.overrides(wanted.overrides, [one.learner for one in handed_in])
        notes += more + collector.notes
        ways = probe.open_ways(open_folder(folder, "probe"), wanted.hidden)
        say(limits_said(ways))
        say(f"{len(handed_in)} learner{'s' * (len(handed_in) > 1)}, {wanted.jobs} at a time")
        results = []
        for own, told in graded(wanted, handed_in, masters, folder, say):
            one = result_of(told, own, people.person(own.learner), worth, overrides, wanted.due)
            results.append(one)
            say(line_of(one))
    results.sort(key=lambda one: one.learner.casefold())
    course = pages.Class(
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=time.monotonic() - begin, results=results, points=worth, notes=notes,
        open_ways=[probe.WAYS[way] for way in ways], command=wanted.command, limits=wanted.limits,
        due=wanted.due.isoformat() if wanted.due else "",
    )  # fmt: skip
    try:
        pages.write(course, wanted.out)
        marks.write(course, wanted.out, wanted.marks)
    except OSError as problem:
        raise UserError(f"{wanted.out} cannot be written: {problem}") from None
    for path in [*pages.files(wanted.out), *marks.files(wanted.out, wanted.marks).values()]:
        say(str(path))
    for note in notes:
        say(f"note: {note}")
    times = sorted(one.seconds for one in results)
    count = sum(one.status != collect.MISSING for one in results)
    say(
        f"{count} submissions graded in {course.seconds:.1f} s; per submission"
        f" {times[len(times) // 2]:.1f} s in the median, {times[-1]:.1f} s at most"
    )
    return 0


def limits_said(ways: list[str]) -> str:
    if not ways:
        return "Each answer runs closed in: own files, no network, limits on time and memory."
    open_ = "; ".join(probe.WAYS[way] for way in ways)
    return f"What this machine cannot enforce: {open_}."


def line_of(one: pages.Result) -> str:
    counts = [sum(e.outcome == outcome for e in one.exercises) for outcome in engine.OUTCOMES]
    told = ", ".join(f"{n} {o}" for n, o in zip(counts, engine.OUTCOMES, strict=True) if n)
    return f"{one.learner}: {told} ({one.points:g} points, {one.seconds:.1f} s)"


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder through which others can pass, and see nothing."""
    with tempfile.TemporaryDirectory(prefix="rn50-grade-") as folder:
        os.chmod(folder, 0o711)
        yield Path(folder)


def open_folder(folder: Path, name: str, mode: int = 0o711) -> Path:
    made = folder / name
    made.mkdir(mode=mode)
    return made


def graded(
    wanted: Wanted, handed_in: list[Submission], masters: list[Path], folder: Path,
    say: Callable[[str], None],
) -> Iterator[tuple[Submission, dict[str, Any]]]:  # fmt: skip
    """Each submission and its results: those of an earlier call where nothing has changed since,
    then the others, which are written down as they come."""
    books = {path.stem[:4]: build.build(masters[0].parents[2], path).text for path in masters}
    version = repr((code(masters[0].parents[2]), books, asdict(wanted.limits)))
    keys = [fingerprint(version, one) for one in handed_in]
    known = earlier(wanted.kept)
    left = [number for number, key in enumerate(keys) if key not in known]
    if len(left) < len(keys):
        say(
            f"{len(keys) - len(left)} of {len(keys)} are taken from {wanted.kept.name}, which an"
            " earlier call wrote: remove that file to grade everything anew"
        )
    yield from ((one, known[key]) for one, key in zip(handed_in, keys, strict=True) if key in known)
    for number, told in run(wanted, [handed_in[n] for n in left], books, folder):
        if not told.pop("problem"):
            with open(wanted.kept, "a", encoding="utf-8") as kept:
                kept.write(json.dumps({"key": keys[left[number]], **told}) + "\n")
        yield handed_in[left[number]], told


def code(root: Path) -> str:
    """A digest of everything that results depend on besides the answers."""
    paths_ = [
        p for name in ("rn50lib", "data_prep", "workshop") for p in (root / name).rglob("*.py")
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths_))).hexdigest()


def fingerprint(version: str, one: Submission) -> str:
    digest = hashlib.sha256(version.encode())
    for name, found in sorted(one.notebooks.items()):
        digest.update(name.encode() + hashlib.sha256(found.path.read_bytes()).digest())
    return digest.hexdigest()


def earlier(path: Path) -> dict[str, dict[str, Any]]:
    """What earlier calls have graded, by fingerprint. A line that was cut off is passed over."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError, LookupError):
            told = json.loads(line)
            found[told.pop("key")] = told
    return found


def run(
    wanted: Wanted, handed_in: list[Submission], masters: dict[str, str], folder: Path
) -> Iterator[tuple[int, dict[str, Any]]]:  # fmt: skip
    """The number and the results of each submission, as the grading server is done with it."""
    if not handed_in:
        return
    boxes, results = open_folder(folder, "boxes"), folder / "in"
    books = {name for one in handed_in for name in one.notebooks}
    needs = dict.fromkeys(item.needs for item in table.EXERCISES if item.notebook in books)
    order = {
        "submissions": [{k: str(f.path) for k, f in one.notebooks.items()} for one in handed_in],
        "results": str(results),
        "hidden": list(map(str, wanted.hidden)),
        "masters": masters,
        "imports": [*IMPORTS, *filter(None, needs)],
        "folder": str(boxes),
        "jobs": wanted.jobs,
        "limits": asdict(wanted.limits),
    }  # fmt: skip
    log = boxes / "server.txt"
    with open(log, "w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "workshop.classroom.server"], env=environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=boxes,
        )  # fmt: skip
    assert process.stdin and process.stdout
    waiting = set(range(len(handed_in)))
    try:
        with process.stdin as pipe:
            json.dump(order, pipe)
        for line in process.stdout:
            told = json.loads(line)
            number = told.pop("number")
            file = results / f"{number}.json"
            waiting.discard(number)
            if file.exists():
                told |= json.loads(file.read_text(encoding="utf-8")) | {"problem": ""}
            else:
                lost = (engine.ERROR, told["problem"])
                told["results"] = [
                    asdict(engine.Result(item.name, *lost)) for item in table.EXERCISES
                ]
                told["notes"] = [told["problem"]]
            yield number, told
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    if waiting:
        last = log.read_text(errors="replace").strip().splitlines()[-3:]
        raise UserError(
            f"the grading process ended before {handed_in[min(waiting)].learner}: {' '.join(last)}."
            " What was graded is kept: the same command goes on from there"
        )


def environment() -> dict[str, str]:
    """For the grading server: nothing of the instructor's that an answer could find."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    data, runs = str(paths.data_home()), str(paths.runs_home())
    env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    env |= {"RN50_DATA": data, "RN50_RUNS": runs, "PYTHONDONTWRITEBYTECODE": "1"}
    return launch.with_library(env)


def result_of(
    told: dict[str, Any], own: Submission, person: roster.Person, worth: dict[str, float],
    overrides: points.Overrides, due: datetime | None,
) -> pages.Result:  # fmt: skip
    """The outcomes as points, with what the instructor has decided instead."""
    exercises = []
    for item in told["results"]:
        name = item["exercise"]
        given, remark = overrides.get((own.learner, name), (None, ""))
        earned = round(item["share"] * worth[name], 2) if given is None else given
        if own.damage and name[:4] not in own.notebooks:
            item = item | {"outcome": engine.ERROR, "said": f"It was not found. {own.damage}."}
        exercises.append(pages.Line(**item, points=earned, most=worth[name], remark=remark))
    notes = [note for note in dict.fromkeys([own.damage, *own.notes, *told["notes"]]) if note]
    if len(notes) > MOST_NOTES:
        notes[MOST_NOTES:] = [f"and {len(notes) - MOST_NOTES} notes more"]
    given, remark = overrides.get((own.learner, ""), (None, ""))
    last = max((found.time for found in own.notebooks.values()), key=lambda t: t.when, default=None)
    late = max(0, math.ceil((last.when - due) / timedelta(days=1))) if last and due else None
    return pages.Result(
        own.learner, person, own.status, exercises, notes, told["seconds"],
        str(last or ""), late, given, remark,
    )  # fmt: skip

"""`rn50 workshop grade SUBMISSIONS -o class.html`: from what a class handed in to a page, a table
and a page for each learner."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rn50lib import launch
from rn50lib.errors import UserError
from workshop import paths
from workshop.checks import engine, table
from workshop.classroom import box, collect, pages, points, probe, roster
from workshop.classroom.collect import Submission
from workshop.course import build

MOST_NOTES = 20  # of one learner
IMPORTS = ("numpy", "IPython.core.inputtransformer2", "PIL.Image")  # loaded once for all


@dataclass(frozen=True)
class Wanted:
    """The command line."""

    submissions: list[Path]
    out: Path
    points: Path | None = None
    roster: Path | None = None
    jobs: int = 1
    full: bool = False
    limits: box.Limits = box.Limits()
    said: str = ""  # the command, for the page

    @property
    def kept(self) -> Path:
        """What has been graded, a line for each submission, without names."""
        return self.out.with_name(f"{self.out.stem}-results.jsonl")

    @property
    def hidden(self) -> list[Path]:
        """What no answer may see, wherever it stands."""
        given = [path.absolute() for path in (self.points, self.roster) if path]
        return [*self.submissions, *given, self.kept, *pages.files(self.out)]


def grade(wanted: Wanted, say: Callable[[str], None]) -> int:
    """Grade everything; returns 0, whatever the learners' code did.

    Raises UserError where there is nothing to grade, or a file cannot be written.
    """
    begin = time.monotonic()
    root = paths.need_checkout()
    for source in wanted.submissions:
        if not source.exists():
            raise UserError(f"there is no {source}")
    place = wanted.out.parent
    if not place.is_dir():
        raise UserError(f"-o {wanted.out}: there is no folder {place}")
    for given in filter(None, (wanted.points, wanted.roster)):
        if given.absolute() in [*pages.files(wanted.out), wanted.kept]:
            raise UserError(f"-o {wanted.out} would write over {given}: give another name to one")
    worth, notes = points.load(wanted.points or place / "points.csv")
    people = roster.load(wanted.roster) if wanted.roster else None
    masters = [path for path in build.masters(root) if build.is_exercise(path)]
    with workplace() as folder:
        collector = collect.Collector(
            open_folder(folder, "in", 0o700), [path.stem for path in masters], people
        )
        handed_in = collector.collect(*wanted.submissions)
        notes += collector.notes
        ways = probe.open_ways(open_folder(folder, "probe"), wanted.hidden)
        say(limits_said(ways))
        say(f"{len(handed_in)} learner{'s' * (len(handed_in) > 1)}, {wanted.jobs} at a time")
        results = []
        for own, told in graded(wanted, handed_in, masters, folder, say):
            results.append(result_of(told, own, worth))
            say(line_of(results[-1]))
    results.sort(key=lambda one: one.learner.casefold())
    course = pages.Class(
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=time.monotonic() - begin, results=results, points=worth, notes=notes,
        open_ways=[probe.WAYS[way] for way in ways], command=wanted.said, full=wanted.full,
        limits=asdict(time_for(wanted)),
    )  # fmt: skip
    for path in pages.write(course, wanted.out):
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


def time_for(wanted: Wanted) -> box.Limits:
    """The limits as given; ten times the seconds where lessons and their runs come along."""
    times = 10 if wanted.full else 1
    return replace(wanted.limits, seconds=wanted.limits.seconds * times)


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
    version = repr((code(masters[0].parents[2]), books, wanted.full, asdict(time_for(wanted))))
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
        "full": wanted.full,
        "limits": asdict(time_for(wanted)),
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
                lost = {
                    "outcome": engine.ERROR,
                    "said": told["problem"],
                    "then": "",
                    "seconds": 0.0,
                }
                told["results"] = [{"exercise": item.name, **lost} for item in table.EXERCISES]
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
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "RN50_GRADE_DEBUG")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    data, runs = str(paths.data_home()), str(paths.runs_home())
    env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    env |= {"RN50_DATA": data, "RN50_RUNS": runs, "PYTHONDONTWRITEBYTECODE": "1"}
    return launch.with_library(env)


def result_of(told: dict[str, Any], own: Submission, worth: dict[str, float]) -> pages.Result:
    exercises = []
    for item in told["results"]:
        most = worth[item["exercise"]]
        got = most if item["outcome"] == engine.PASSED else 0.0
        if own.damage and item["exercise"][:4] not in own.notebooks:
            item = item | {"outcome": engine.ERROR, "said": f"It was not found. {own.damage}."}
        exercises.append(pages.Line(**item, points=got, most=most))
    notes = [note for note in dict.fromkeys([own.damage, *own.notes, *told["notes"]]) if note]
    if len(notes) > MOST_NOTES:
        notes[MOST_NOTES:] = [f"and {len(notes) - MOST_NOTES} notes more"]
    return pages.Result(own.learner, own.status, exercises, notes, told["seconds"])

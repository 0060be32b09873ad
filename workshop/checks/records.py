"""The records of a learner, in `answers/ex03.json`: outcomes, tries, hints seen; and the progress.

The folder is `answers/` of the checkout, or `$RN50_RUNS/answers` if RN50_RUNS is elsewhere, as for
a class that shares one checkout. Grading does not use the records, which are the learner's own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.report import write_json
from workshop import catalogue, output, paths
from workshop.checks.engine import NOT_ATTEMPTED, Result

Record = dict[str, Any]


def answers_home() -> Path:
    """Return the folder of a learner's answers and records."""
    runs, root = paths.runs_home(), paths.checkout()
    if root is not None and runs == root / "runs":
        return root / "answers"
    return runs / "answers"


def load(notebook: str) -> dict[str, Record]:
    """Return the records of "ex03" by exercise; none without a readable file."""
    try:
        found = json.loads((answers_home() / f"{notebook}.json").read_text(encoding="utf-8"))
        return {name: dict(item) for name, item in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):  # what is damaged counts as empty
        return {}


def update(name: str, **values: Any) -> None:
    """Set fields in the record of an exercise; print a warning if that is impossible."""
    notebook = name[:4]
    found = load(notebook)
    found[name] = found.get(name, {}) | values
    try:
        write_json(answers_home() / f"{notebook}.json", found)
    except UserError as problem:
        print(f"Your progress is not saved ({problem}): set RN50_RUNS to a writable folder.")


def store(result: Result) -> None:
    """Record a result. A passed exercise stays passed."""
    before = load(result.exercise[:4]).get(result.exercise, {})
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    tries = int(before.get("tries", 0)) + (result.outcome != NOT_ATTEMPTED)
    fields = {"tries": tries, "passed_at": before.get("passed_at"), "at": now}
    if result.passed and not before.get("passed_at"):
        fields["passed_at"] = now
    update(result.exercise, **asdict(result), **fields)


@dataclass(frozen=True)
class Progress:
    """The progress in one exercise, with the help taken, as text."""

    item: catalogue.Exercise
    passed: bool
    state: str
    tries: int
    help_taken: str


def collect() -> list[Progress]:
    """Return the progress of every exercise, in order."""
    found = []
    for item in catalogue.EXERCISES:
        record = load(item.notebook).get(item.name, {})
        passed, tries = bool(record.get("passed_at")), record.get("tries", 0)
        state = "✓ passed" if passed else "✗ tried" if tries else "–"
        help_taken = "solution" if record.get("solution") else ""
        if not help_taken and (hints := record.get("hints", 0)):
            help_taken = f"{hints} of 3 hints"
        found.append(Progress(item, passed, state, tries, help_taken))
    return found


def progress(everything: bool = False) -> None:
    """Show the exercises tried so far, or all of them, with the help taken, and what is next.

    `workshop.progress()` and, with everything, `rn50 workshop status`.
    """
    found = collect()
    rows = [
        [one.item.name, one.state, one.tries, one.help_taken, one.item.goal]
        for one in found
        if everything or one.state != "–"
    ]
    left = [one.item for one in found if not one.passed]
    said = f"{len(found) - len(left)} of {len(found)} exercises passed"
    said += f"; records: {answers_home()}."
    if left:
        one = left[0]
        said += f" Next: {one.name} in exercises/, {one.minutes} minutes: you {one.goal}."
    else:
        said += " You have passed all exercises."
    if rows:
        output.table(rows, ("exercise", "", "tries", "help", "you …"), said)
    else:
        print(said)

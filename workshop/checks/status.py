"""The progress of a learner on this machine: `rn50 workshop status` and `workshop.progress()`.

The records are the learner's own files; grading does not use them and runs the answers again.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop import catalogue, output
from workshop.checks import records


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
        record = records.load(item.notebook).get(item.name, {})
        passed, tries = bool(record.get("passed_at")), record.get("tries", 0)
        state = "✓ passed" if passed else "✗ tried" if tries else "–"
        help_taken = "solution" if record.get("solution") else ""
        if not help_taken and (hints := record.get("hints", 0)):
            help_taken = f"{hints} of 3 hints"
        found.append(Progress(item, passed, state, tries, help_taken))
    return found


def progress(everything: bool = False) -> None:
    """Show the exercises tried so far, or all of them, with the help taken, and what is next."""
    found = collect()
    rows = [
        [one.item.name, one.state, one.tries, one.help_taken, one.item.goal]
        for one in found
        if everything or one.state != "–"
    ]
    left = [one.item for one in found if not one.passed]
    said = f"{len(found) - len(left)} of {len(found)} exercises passed"
    said += f"; records: {records.answers_home()}."
    if left:
        one = left[0]
        said += f" Next: {one.name} in exercises/, {one.minutes} minutes: you {one.goal}."
    else:
        said += " You have passed all exercises."
    if rows:
        output.table(rows, ("exercise", "", "tries", "help", "you …"), said)
    else:
        print(said)

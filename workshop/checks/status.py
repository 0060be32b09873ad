"""The progress of a learner on this machine: `rn50 workshop status` and `workshop.progress()`.

The records are the learner's own files; grading does not use them and runs the answers again.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop import catalogue, output
from workshop.checks import records


@dataclass(frozen=True)
class Progress:
    """The progress in one exercise, with the help taken until it was passed."""

    item: catalogue.Exercise
    passed: bool
    tries: int
    hints: int
    solution: bool

    @property
    def state(self) -> str:
        """Return '✓ passed', '✗ tried' or a dash."""
        return "✓ passed" if self.passed else "✗ tried" if self.tries else "–"

    @property
    def help_taken(self) -> str:
        """Return '2 hints, solution', or an empty string."""
        hints = f"{self.hints} hint{'s' if self.hints > 1 else ''}" if self.hints else ""
        return ", ".join(filter(None, [hints, "solution" if self.solution else ""]))


def collect() -> list[Progress]:
    """Return the progress of every exercise, in order."""
    found = []
    for item in catalogue.EXERCISES:
        record = records.load(item.notebook).get(item.name, {})
        taken = record.get("passed_with") or record
        found.append(
            Progress(
                item, bool(record.get("passed_at")), record.get("tries", 0),
                taken.get("hints", 0), bool(taken.get("solution")),
            )
        )  # fmt: skip
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
    after = "You have passed all exercises."
    if left:
        after = (
            f"Next: {left[0].name} in exercises/, {left[0].minutes} minutes: you {left[0].goal}."
        )
    count = f"{len(found) - len(left)} of {len(found)} exercises passed"
    said = f"{count}; records: {records.answers_home()}. {after}"
    if rows:
        output.table(rows, ("exercise", "", "tries", "help", "you …"), said)
    else:
        print(said)

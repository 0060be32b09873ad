"""The progress of a learner on this machine: `rn50 workshop status` and `workshop.progress()`.

The records are the learner's own files; grading does not use them and runs the answers again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workshop import output
from workshop.checks import records, table

Entry = dict[str, Any]

COLUMNS = ("exercise", "", "tries", "help", "you …")


def collect() -> dict[str, Any]:
    """Return the number passed, and for each exercise its state, tries and the help taken.

    Hints and solutions that are shown after an exercise was passed do not count.
    """
    exercises = [
        _entry(item, records.load(item.notebook).get(item.name, {})) for item in table.EXERCISES
    ]
    passed = sum(entry["passed"] for entry in exercises)
    return {"passed": passed, "exercises": exercises, "folder": str(records.answers_home())}


def _entry(item: table.Exercise, record: Mapping[str, Any]) -> Entry:
    passed = bool(record.get("passed_at"))
    with_ = record.get("passed_with")
    taken = with_ if passed and isinstance(with_, dict) else record
    return {
        "exercise": item.name,
        "notebook": item.notebook,
        "goal": item.goal,
        "kind": item.kind,
        "difficulty": item.difficulty,
        "minutes": item.minutes,
        "passed": passed,
        "tries": _whole(record.get("tries")),
        "hints": _whole(taken.get("hints")),
        "solution": bool(taken.get("solution")),
    }


def _whole(value: Any) -> int:
    """Return a count from a record that may have been edited; 0 for anything else."""
    return value if isinstance(value, int) and value > 0 else 0


def state(entry: Entry) -> str:
    """Return '✓ passed', '✗ tried' or a dash."""
    return "✓ passed" if entry["passed"] else "✗ tried" if entry["tries"] else "–"


def help_taken(entry: Entry) -> str:
    """Return '2 hints, solution', or an empty string."""
    parts = []
    if entry["hints"]:
        parts.append(f"{entry['hints']} hint{'s' if entry['hints'] > 1 else ''}")
    if entry["solution"]:
        parts.append("solution")
    return ", ".join(parts)


def rows(found: Mapping[str, Any]) -> list[list[Any]]:
    """Return a row for each exercise: its name, state, tries, the help taken and its goal."""
    return [
        [entry["exercise"], state(entry), entry["tries"], help_taken(entry), entry["goal"]]
        for entry in found["exercises"]
    ]


def summary(found: Mapping[str, Any]) -> str:
    """Return how many exercises were passed, where the records are, and which one is next."""
    count = f"{found['passed']} of {len(found['exercises'])} exercises passed"
    onward = "All of them: well done."
    for entry in found["exercises"]:
        if not entry["passed"]:
            onward = (
                f"Next: {entry['exercise']} in exercises/, {entry['minutes']} minutes: you"
                f" {entry['goal']}."
            )
            break
    return f"{count}; records: {found['folder']}. {onward}"


def progress() -> None:
    """Show which exercises have been passed, with how much help, and which one is next."""
    found = collect()
    output.table(rows(found), COLUMNS, summary(found))

"""What a learner has passed, as far as this machine knows: `rn50 workshop status` and the panel.

The records are the learner's own files, so this is an overview for the learner; grading trusts none
of it and runs the answers again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workshop import output
from workshop.checks import records, table

Entry = dict[str, Any]

ALONE, HINTS, SOLUTION = "without help", "with hints", "after the solution was shown"


def collect() -> dict[str, Any]:
    """The counts, and for each exercise its state, tries and the help that was taken.

    Hints and solutions count up to the moment in which an exercise was passed; whoever looks at
    the solution afterwards has passed without it.
    """
    exercises = [
        _entry(item, records.load(item.notebook).get(item.name, {})) for item in table.EXERCISES
    ]
    passed = [entry for entry in exercises if entry["passed"]]
    return {
        "passed": len(passed),
        "how": {how: sum(entry["how"] == how for entry in passed)
                for how in (ALONE, HINTS, SOLUTION)},
        "minutes_passed": sum(entry["minutes"] for entry in passed),
        "minutes": sum(entry["minutes"] for entry in exercises),
        "exercises": exercises,
        "folder": str(records.answers_home()),
    }  # fmt: skip


def _entry(item: table.Exercise, record: Mapping[str, Any]) -> Entry:
    passed = bool(record.get("passed_at"))
    with_ = record.get("passed_with")
    taken = with_ if passed and isinstance(with_, dict) else record
    hints, solution = _whole(taken.get("hints")), bool(taken.get("solution"))
    how = (SOLUTION if solution else HINTS if hints else ALONE) if passed else None
    tries = _whole(record.get("tries"))
    return {
        "exercise": item.name,
        "notebook": item.notebook,
        "goal": item.goal,
        "kind": item.kind,
        "difficulty": item.difficulty,
        "minutes": item.minutes,
        "passed": passed,
        "passed_at": str(record["passed_at"]) if passed else None,
        "how": how,
        "outcome": record.get("outcome"),
        "said": str(record.get("said", "")) if tries and not passed else "",
        "tries": tries,
        "hints": hints,
        "solution": solution,
    }


def _whole(value: Any) -> int:
    """A count from a record that anybody may have edited."""
    return value if isinstance(value, int) and value > 0 else 0


def state(entry: Entry) -> str:
    """'✓ passed', '✗ tried', or a dash."""
    if entry["passed"]:
        return "✓ passed"
    return "✗ tried" if entry["tries"] else "–"


def help_taken(entry: Entry) -> str:
    """'2 hints, solution', or nothing."""
    parts = []
    if entry["hints"]:
        parts.append(f"{entry['hints']} hint{'s' if entry['hints'] > 1 else ''}")
    if entry["solution"]:
        parts.append("solution")
    return ", ".join(parts)


def onward(found: Mapping[str, Any]) -> str:
    """Which exercise is next, in a sentence."""
    for entry in found["exercises"]:
        if not entry["passed"]:
            return (
                f"Next: {entry['exercise']}, in exercises/, {entry['minutes']} minutes. In it you"
                f" {entry['goal']}."
            )
    return "All of them: well done."


def text(found: Mapping[str, Any]) -> str:
    """The same for people: one line for each exercise, and where to go on."""
    rows = [
        [entry["exercise"], state(entry), entry["tries"], help_taken(entry), entry["goal"]]
        for entry in found["exercises"]
    ]
    columns = ["exercise", "", "tries", "help", "in it you"]
    count = f"{found['passed']} of {len(rows)} exercises passed, as {found['folder']} says."
    return f"{output.table_text(rows, columns)}\n\n{count} {onward(found)}"

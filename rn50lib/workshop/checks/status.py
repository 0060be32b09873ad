"""`rn50 workshop status`: what a learner has passed, as far as this machine knows."""

from __future__ import annotations

from typing import Any

from rn50lib.workshop import output
from rn50lib.workshop.checks import ask, records, table


def collect() -> dict[str, Any]:
    """The counts, and for each exercise its state, tries and hints."""
    exercises = []
    for item in table.EXERCISES:
        record = records.load(item.notebook).get(item.name, {})
        exercises.append(
            {
                "exercise": item.name,
                "passed": bool(record.get("passed_at")),
                "outcome": record.get("outcome"),
                "tries": int(record.get("tries", 0)),
                "hints": int(record.get("hints", 0)),
                "solution": bool(record.get("solution")),
            }
        )
    passed = sum(bool(entry["passed"]) for entry in exercises)
    return {"passed": passed, "exercises": exercises, "folder": str(records.answers_home())}


def text(found: dict[str, Any]) -> str:
    """The same for people: one line for each exercise, and where to go on."""
    rows = []
    for item, entry in zip(table.EXERCISES, found["exercises"], strict=True):
        state = ask.state(records.load(item.notebook).get(item.name, {}))
        help_ = f"{entry['hints']} hints" if entry["hints"] else ""
        if entry["solution"]:
            help_ += ", solution" if help_ else "solution"
        rows.append([item.name, state or "–", entry["tries"], help_, item.goal])
    columns = ["exercise", "", "tries", "help", "in it you"]
    left = [entry["exercise"] for entry in found["exercises"] if not entry["passed"]]
    count = f"{found['passed']} of {len(rows)} exercises passed, as {found['folder']} says."
    onward = f"Next: {left[0]}, in exercises/." if left else "All of them: well done."
    return f"{output.table_text(rows, columns)}\n\n{count} {onward}"

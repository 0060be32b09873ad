"""The records of a learner, in `answers/ex03.json`: outcomes, tries, hints seen.

The folder is `answers/` of the checkout, or `$RN50_RUNS/answers` if RN50_RUNS is elsewhere, as for
a class that shares one checkout.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.report import write_json
from workshop import paths
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

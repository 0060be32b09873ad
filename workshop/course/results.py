"""What became of a notebook: read from its executed file, and written as `course.json`.

Nothing is believed but the cells themselves: a notebook passed only if every code cell was
executed and none holds an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workshop.output import RESULT_MIME

PASSED, FAILED, TIME_LIMIT, NOT_RUN = "passed", "failed", "time limit", "not run"
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
EXCERPT_LINES = 14
ADDED = {"injected-parameters", "papermill-error-cell-tag"}  # tags of the cells that papermill adds


@dataclass(frozen=True)
class Error:
    """Why a notebook did not pass. `cell` counts from 1, None where no cell is to blame;
    `from_output` where the cell itself showed the error."""

    text: str
    cell: int | None = None
    excerpt: str = ""
    from_output: bool = False


@dataclass(frozen=True)
class Outcome:
    """One notebook of a course run. Times in seconds, the kernel's start left out."""

    name: str
    title: str
    status: str
    seconds: float
    budget: float | None
    limit: float
    parameters: dict[str, Any]
    sha256: str
    notebook: str  # executed .ipynb, relative to the course's folder
    page: str  # the same as HTML
    error: Error | None = None
    notes: list[dict[str, Any]] = field(default_factory=list)
    recorded: list[dict[str, Any]] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    reused: bool = False

    @property
    def passed(self) -> bool:
        return self.status == PASSED


@dataclass(frozen=True)
class CourseRun:
    """A run of the course, as the index shows it. Times as UTC, ISO 8601."""

    started: str
    seconds: float
    profile: str
    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    notebooks: list[Outcome]

    @property
    def passed(self) -> bool:
        return bool(self.notebooks) and all(item.passed for item in self.notebooks)

    def to_json(self) -> str:
        return json.dumps({"format": "rn50-course-1", **asdict(self)}, indent=4) + "\n"


def earlier(folder: Path) -> dict[str, Outcome]:
    """The outcomes by name that a former run left in `folder`; none where there is no such file."""
    try:
        data = json.loads((folder / "course.json").read_text(encoding="utf-8"))
        found = {}
        for item in data["notebooks"]:
            error = Error(**item["error"]) if item["error"] else None
            found[item["name"]] = Outcome(**{**item, "error": error})
        return found
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_cells(path: Path) -> list[dict[str, Any]]:
    """The cells of an executed notebook; none where it cannot be read."""
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))["cells"])
    except (OSError, ValueError, KeyError):
        return []


def is_added(cell: Mapping[str, Any]) -> bool:
    """Whether papermill put this cell in: it does not count in a notebook's cell numbers."""
    return not ADDED.isdisjoint(cell.get("metadata", {}).get("tags", []))


def number_of(cells: Sequence[Mapping[str, Any]], index: int) -> int:
    """The number of a cell, from 1, in the notebook as its author wrote it."""
    return sum(not is_added(cell) for cell in cells[: index + 1])


def text_of(value: Any) -> str:
    """A notebook's multi-line text, stored as a text or a list of lines."""
    return "".join(value) if isinstance(value, list) else str(value)


def problem(cells: list[dict[str, Any]]) -> Error | None:
    """The first thing that keeps an executed notebook from having passed, None if there is
    nothing."""
    code = [
        (number_of(cells, index), cell)
        for index, cell in enumerate(cells)
        if cell["cell_type"] == "code" and text_of(cell["source"]).strip()
    ]
    if not code:
        return Error("the notebook has no code to execute")
    for number, cell in code:
        for output in cell["outputs"]:
            if output["output_type"] == "error":
                trace = ANSI.sub("", "\n".join(output["traceback"])).splitlines()
                trace = [line for line in trace if line.strip("- ")]
                text = f"{output['ename']}: {output['evalue']}".strip()
                return Error(text, number, "\n".join(trace[-EXCERPT_LINES:]), True)
        if not isinstance(cell["execution_count"], int):
            return Error("this cell was not executed", number, excerpt_of(cell))
    return None


def excerpt_of(cell: dict[str, Any]) -> str:
    """The first lines of a cell."""
    return "\n".join(text_of(cell["source"]).splitlines()[:6])


def source_of(cells: Sequence[dict[str, Any]], number: int | None) -> str:
    """The first lines of the cell with this number, empty where there is none."""
    for index, cell in enumerate(cells):
        if not is_added(cell) and number_of(cells, index) == number:
            return excerpt_of(cell)
    return ""


def shown(cells: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The results of a kind ("note" or "recorded") that the notebook displayed, in order."""
    found = []
    for cell in cells:
        for output in cell.get("outputs", []):
            record = output.get("data", {}).get(RESULT_MIME)
            if isinstance(record, dict) and record.get("kind") == kind:
                found.append(record)
    return found

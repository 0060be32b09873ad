"""Run notebooks in order, each with papermill in its own kernel, and write `course.json`.

papermill ignores a misspelt parameter and has no time limit for a notebook; here an unknown
parameter is an error, and nbclient's `timeout_func` gives each cell the remaining time of the
notebook. A notebook passed only if every code cell was executed without an error.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50lib.errors import UserError
from workshop import paths, processes
from workshop.course import build, catalogue, kernels
from workshop.output import RESULT_MIME

PASSED, FAILED, TIME_LIMIT, NOT_RUN = "passed", "failed", "time limit", "not run"
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
EXCERPT_LINES = 14
ADDED = {"injected-parameters", "papermill-error-cell-tag"}  # tags of papermill's own cells
TYPES: dict[str, Callable[[str], Any]] = {
    "int": int, "float": float, "str": str,
    "bool": lambda text: {"true": True, "yes": True, "1": True,
                          "false": False, "no": False, "0": False}[text.lower()],
}  # fmt: skip

Cells = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Error:
    """Why a notebook did not pass; `cell` counts from 1."""

    text: str
    cell: int | None = None
    excerpt: str = ""


@dataclass(frozen=True)
class Outcome:
    """One notebook of a course run. Times are in seconds, without the kernel's start."""

    name: str
    title: str
    budget: float | None
    limit: float
    parameters: dict[str, Any]
    notebook: str  # the executed .ipynb, relative to the course's folder
    page: str  # the same as HTML
    status: str = NOT_RUN
    seconds: float = 0.0
    error: Error | None = None
    notes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if every cell ran."""
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
        """True if every notebook passed."""
        return bool(self.notebooks) and all(item.passed for item in self.notebooks)

    def to_json(self) -> str:
        """Return the text of `course.json`."""
        return json.dumps({"format": "rn50-course-1", **asdict(self)}, indent=4) + "\n"


# --- which notebooks, with which parameters -------------------------------------------------------


def find_notebooks(names: Sequence[str], root: Path | None, every: bool) -> list[Path]:
    """Return the notebooks with these numbers ("02"), names or paths. Raises UserError."""
    if every:
        if root is None:
            raise UserError("--all needs the checkout: run this inside it")
        return [root / "notebooks" / f"{item.name}.ipynb" for item in catalogue.existing(root)]
    folders = [root / name for name in build.FOLDERS] if root else []
    there = [path for folder in folders for path in sorted(folder.glob("*.ipynb"))]
    found = []
    for name in names:
        if name.endswith(".ipynb") and Path(name).exists():
            found.append(Path(name).absolute())
        elif matches := [path for path in there if is_meant(path, Path(name).stem)]:
            found.append(matches[0])
        else:
            known = ", ".join(path.stem for path in there) or "none"
            raise UserError(f"no notebook is named {name}: there are {known}")
    return found


def is_meant(path: Path, stem: str) -> bool:
    """Return True if `stem` is a notebook's number or name; a changed copy needs its full name."""
    numbered = path.stem.startswith(f"{stem}_") and build.CHANGED not in path.stem
    return path.stem == stem or numbered


def prepare(path: Path, given: Mapping[str, str], profile: str, limit: float | None) -> Outcome:
    """Return a notebook that is ready to run, with its parameters checked. Raises UserError."""
    book = read(path)
    if book is None:
        raise UserError(f"{path} cannot be read as a notebook")
    budget = book.metadata.get("rn50", {}).get("ci_seconds")
    text = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    title = re.search(r"^# (.*)", text, re.M)
    return Outcome(
        name=path.stem,
        title=title[1] if title else path.stem,
        budget=budget if profile == "ci" else None,
        limit=limit or catalogue.time_limit(budget, profile),
        parameters=check_parameters(given, known_parameters(book.cells, path), path.name),
        notebook=f"{path.stem}.ipynb",
        page=f"{path.stem}.html",
    )


def known_parameters(cells: Cells, path: Path) -> dict[str, str]:
    """Return name and type of each parameter that the tagged cell declares. Raises UserError."""
    for cell in cells:
        if "parameters" in cell["metadata"].get("tags", []):
            try:
                lines = ast.parse(cell["source"]).body
            except SyntaxError as wrong:
                raise UserError(f"{path}: the parameters cell: {wrong}") from None
            return {ast.unparse(line.target): ast.unparse(line.annotation)
                    for line in lines if isinstance(line, ast.AnnAssign)}  # fmt: skip
    return {}


def check_parameters(
    given: Mapping[str, str], known: Mapping[str, str], where: str
) -> dict[str, Any]:
    """Convert values to the declared types. Raises UserError for an unknown name."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            has = ", ".join(known) or "none"
            raise UserError(f"{where} has no parameter {name!r}{hint}: it has {has}")
        kind = known[name].removesuffix(" | None")
        try:
            none = text == "None" and kind != known[name]
            values[name] = None if none else TYPES[kind](text)
        except (KeyError, ValueError):
            wrong = f"parameter {name} is {known[name]}, and {text!r} is not"
            raise UserError(f"{where}: {wrong}") from None
    return values


# --- running --------------------------------------------------------------------------------------


class Clock:
    """The time of one notebook: nbclient asks before each code cell how long it may take."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.start: float | None = None  # of the first cell, when the kernel is up
        self.cell: Mapping[str, Any] = {}

    @property
    def seconds(self) -> float:
        """The notebook's time so far."""
        return 0.0 if self.start is None else time.monotonic() - self.start

    def left(self, cell: Mapping[str, Any]) -> float:
        """Return the seconds that are left for this cell."""
        if self.start is None:
            self.start = time.monotonic()
        self.cell = cell
        return max(0.1, self.limit - self.seconds)


def run_notebook(path: Path, job: Outcome, out: Path) -> Outcome:
    """Execute one notebook into the folder `out`; every process that it started is ended."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    target, folder = out / job.notebook, out / "files" / job.name
    folder.mkdir(parents=True, exist_ok=True)
    for old in (target, out / job.page):
        old.unlink(missing_ok=True)
    mark, clock = uuid.uuid4().hex, Clock(job.limit)
    env = {processes.MARK: mark, "RN50_DATA": str(paths.data_home()), "PYTHONUNBUFFERED": "1"}
    env |= {"RN50_RUNS": str(out / "runs")}
    env = kernels.with_kernelspec(launch.with_library({**os.environ, **env}), out / ".jupyter")
    os.environ.update(env)
    status, error = PASSED, None
    try:
        with stderr_to(folder / "kernel.log"):
            papermill.execute_notebook(
                path, target, job.parameters, kernel_name="python3", cwd=folder,
                progress_bar=False, autosave_cell_every=5,
                coalesce_streams=True,  # %%bash writes pieces of 100 characters
                start_timeout=catalogue.KERNEL_START_S, timeout_func=clock.left,
            )  # fmt: skip
    except CellTimeoutError:
        status, error = TIME_LIMIT, Error(f"stopped after its time limit of {job.limit:g} s")
    except DeadKernelError:
        error = Error("the kernel died (out of memory, or a library crashed: see `dmesg`)")
    except Exception as wrong:  # papermill's own error for a cell, or whatever a kernel start gives
        error = Error(f"{type(wrong).__name__}: {wrong}".splitlines()[0])
    finally:
        seconds = clock.seconds
        processes.end(mark)
    cells = getattr(read(target), "cells", [])
    if error and status == PASSED:
        status = FAILED
    if error:
        at = [i for i, cell in enumerate(cells) if cell.get("id") == clock.cell.get("id")]
        if at:
            excerpt = "\n".join(cells[at[0]]["source"].splitlines()[:6])
            error = replace(error, cell=number_of(cells, at[0]), excerpt=excerpt)
    if status != TIME_LIMIT:
        found = problem(cells, status == PASSED)
        status, error = (FAILED, found) if found else (status, error)
    return replace(
        job, status=status, seconds=round(seconds, 3), error=error, notes=notes_in(cells)
    )


@contextlib.contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Append what this process and its children write to stderr to a file."""
    saved = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


# --- what an executed notebook shows --------------------------------------------------------------


def read(path: Path) -> Any:
    """Return a notebook, or None if it cannot be read."""
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError, AttributeError, nbformat.ValidationError):
        return None


def number_of(cells: Cells, index: int) -> int:
    """Return the number of a cell, from 1, as its author counts: without papermill's cells."""
    tags = [cell["metadata"].get("tags", []) for cell in cells[: index + 1]]
    return sum(ADDED.isdisjoint(found) for found in tags)


def problem(cells: list[dict[str, Any]], executed: bool) -> Error | None:
    """Return the first error that a cell shows; if `executed`, also the first cell left out."""
    code = [(i, cell) for i, cell in enumerate(cells)
            if cell["cell_type"] == "code" and cell["source"].strip()]  # fmt: skip
    if executed and not code:
        return Error("the notebook has no code to execute")
    for index, cell in code:
        for output in cell["outputs"]:
            if output["output_type"] == "error":
                trace = ANSI.sub("", "\n".join(output["traceback"])).splitlines()
                trace = [line for line in trace if line.strip("- ")][-EXCERPT_LINES:]
                text = f"{output['ename']}: {output['evalue']}".strip()
                return Error(text, number_of(cells, index), "\n".join(trace))
        if executed and not isinstance(cell["execution_count"], int):
            return Error("this cell was not executed", number_of(cells, index))
    return None


def notes_in(cells: Cells) -> list[dict[str, Any]]:
    """Return the results that the notebook displayed with `session.note`, in order."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    records = [output.get("data", {}).get(RESULT_MIME) for output in outputs]
    return [item for item in records if isinstance(item, dict) and item.get("kind") == "note"]

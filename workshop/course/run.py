"""Run notebooks, each with papermill in its own kernel.

papermill ignores a misspelt parameter and has no time limit for a notebook; here an unknown
parameter is an error, and nbclient's `timeout_func` gives each cell the remaining time of the
notebook. A notebook passed only if every code cell was executed without an error.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50lib.errors import UserError
from rn50lib.files import write_file
from workshop import paths, processes
from workshop.course import build
from workshop.output import RESULT_MIME

PASSED, FAILED, TIME_LIMIT, NOT_RUN = "passed", "failed", "time limit", "not run"
KERNEL_START_S = 120
FLOOR_S = 90.0  # the shortest time limit; a limit is three times the budget
CPU_S = 300.0  # the budget of a notebook, except under profile ci
EXCERPT_LINES = 14


@dataclass(frozen=True)
class Outcome:
    """One notebook of a course run: `name`.ipynb and `name`.html. Times are in seconds."""

    name: str
    title: str
    limit: float
    parameters: dict[str, Any]
    status: str = NOT_RUN
    seconds: float = 0.0
    error: str = ""
    excerpt: str = ""  # the end of the traceback, or the cell that was stopped
    notes: list[dict[str, Any]] = field(default_factory=list)


def find_notebook(name: str) -> Path:
    """Return the notebook at a path, or with a number such as "02". Raises UserError."""
    if name.endswith(".ipynb"):
        return Path(name).absolute()
    return build.target(build.find(paths.need_checkout(), name))


def prepare(path: Path, given: Mapping[str, str], profile: str, limit: float | None) -> Outcome:
    """Return a notebook that is ready to run, with its parameters checked. Raises UserError."""
    book = build.read_notebook(path)
    text = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    title = re.search(r"^# (.*)", text, re.M)
    budget = book.metadata.get("rn50", {}).get("ci_seconds") if profile == "ci" else None
    return Outcome(
        name=path.stem,
        title=title[1] if title else path.stem,
        limit=limit or max(FLOOR_S, 3 * (budget or CPU_S)),
        parameters=parameters(book, given, path.name),
    )


def parameters(book: Any, given: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return values as the types that the cells with the tag `parameters` declare.

    Raises UserError for an unknown name or a value of a different type. papermill's own
    `inspect_notebook` overlooks types such as `int | None`.
    """
    import pydantic

    source = "\n".join(c.source for c in book.cells if "parameters" in c.metadata.get("tags", []))
    known = dict(re.findall(r"^(\w+): ([\w| ]+?) *=", source, re.M))
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            has = ", ".join(known) or "none in a cell with the tag `parameters`"
            raise UserError(f"{where} has no parameter {name!r}: it has {has}")
        try:
            kind = pydantic.TypeAdapter(known[name])
            values[name] = kind.validate_python(None if text == "None" else text)
        except (ValueError, NameError):  # NameError: of an unknown type
            wrong = f"parameter {name} is {known[name]}, and {text!r} is not"
            raise UserError(f"{where}: {wrong}") from None
    return values


def this_kernel(folder: Path) -> dict[str, str]:
    """Install this interpreter below `folder` as Jupyter's kernel `python3`; return the variable.

    A user's own `python3` may be a different environment with other versions.
    """
    words = [sys.executable, "-m", "ipykernel_launcher", "--log-level=CRITICAL"]
    spec = {"argv": [*words, "-f", "{connection_file}"], **build.KERNELSPEC}
    write_file(folder / "kernels" / "python3" / "kernel.json", json.dumps(spec))
    return {"JUPYTER_PATH": str(folder)}


def run_notebook(path: Path, job: Outcome, out: Path) -> Outcome:
    """Execute one notebook into the folder `out`; every process that it started is ended."""
    import nbformat
    import papermill
    from nbclient.exceptions import CellTimeoutError
    from nbconvert.preprocessors.coalescestreams import CoalesceStreamsPreprocessor
    from papermill.exceptions import PapermillExecutionError

    target, folder, mark = out / f"{job.name}.ipynb", out / "files" / job.name, uuid.uuid4().hex
    folder.mkdir(parents=True, exist_ok=True)
    env = {processes.MARK: mark, "RN50_DATA": str(paths.data_home()), "PYTHONUNBUFFERED": "1"}
    env |= {"RN50_RUNS": str(out / "runs"), **this_kernel(out / ".jupyter")}
    os.environ.update(launch.with_library({**os.environ, **env}))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the task of an interrupted cell
    status, error, excerpt = FAILED, "", ""
    begin = time.monotonic()
    try:
        papermill.execute_notebook(
            path, target, job.parameters, kernel_name="python3", cwd=folder,
            progress_bar=False, autosave_cell_every=5,
            start_timeout=KERNEL_START_S,
            timeout_func=lambda cell: max(0.1, begin + job.limit - time.monotonic()),
        )  # fmt: skip
        status = PASSED
    except PapermillExecutionError as wrong:
        error, excerpt = f"{wrong.ename}: {wrong.evalue}", str(wrong)
    except CellTimeoutError as wrong:
        status, error = TIME_LIMIT, f"stopped after its time limit of {job.limit:g} s"
        excerpt = str(wrong)
    except RuntimeError as wrong:  # nbclient's for a kernel that died or did not start
        error = f"{wrong} (out of memory, or a library crashed: see `dmesg`)"
    finally:
        seconds = round(time.monotonic() - begin, 3)
        processes.end(mark)
    notebook = nbformat.read(target, as_version=4)
    notebook, _ = CoalesceStreamsPreprocessor().preprocess(notebook, {})  # %%bash writes pieces
    nbformat.write(notebook, target)
    cells = notebook.cells
    code = [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]
    left_out = [cell for cell in code if cell.execution_count is None]
    if error.startswith("CalledProcessError"):  # of %%bash, which has printed the reason
        failed = [c for c in code if any(out.output_type == "error" for out in c.outputs)]
        printed = "".join(out.text for out in failed[0].outputs if out.output_type == "stream")
        error = "\n".join([error, *_last_lines(printed)])
    if status == PASSED and left_out:
        status, error, excerpt = FAILED, "this cell was not executed", left_out[0].source
    records = [out.get("data", {}).get(RESULT_MIME) or {} for cell in code for out in cell.outputs]
    notes = [record for record in records if record.get("kind") == "note"]  # of `session.note`
    excerpt = "\n".join(_last_lines(excerpt))
    return replace(job, status=status, seconds=seconds, error=error, excerpt=excerpt, notes=notes)


def _last_lines(text: str) -> list[str]:
    """Return the last lines of a text, without empty lines and rules."""
    return [line for line in text.splitlines() if line.strip("-= ")][-EXCERPT_LINES:]

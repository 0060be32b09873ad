"""`rn50 workshop grade DIR`: run a class's answers in fresh notebooks; write a CSV and a page.

DIR has one entry per learner, named after the learner: a folder, a zip or a notebook. Only answer
cells count, and what the learner defined in additional cells. An answer can forge its result.
`python -m workshop.course.grade JOB` runs one notebook.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rn50lib.errors import UserError
from rn50lib.files import write_file
from workshop import output, paths, processes
from workshop.checks import engine, table
from workshop.course import build, kernels, pages
from workshop.course.nbgrader import POINTS

Cell = dict[str, Any]
MAX_FILE, MAX_UPLOAD, MAX_CELL, MAX_LOG = 40 * 2**20, 400 * 2**20, 2**20, 2**20  # bytes
MAX_FILES = 2000  # per folder
START_S = 120  # for the kernel and the imports of a notebook, in addition to its exercises
KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")  # environment variables
BWRAP = ("bwrap --unshare-all --die-with-parent --new-session --cap-drop ALL"
         " --ro-bind / / --dev /dev --proc /proc").split()  # fmt: skip
DEFINITION = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
NOTHING = {item.name: engine.Result(item.name, engine.NOT_ATTEMPTED, "it was not handed in.")
           for item in table.EXERCISES}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Seconds per exercise, bytes per process, and the folders that answers must not read."""

    seconds: float
    memory: int
    hidden: tuple[Path, ...]
    bubblewrap: bool

    def __str__(self) -> str:
        where = "under bubblewrap, without network, files read-only"
        if not self.bubblewrap:
            where = "without bubblewrap (not installed or not allowed): network and files were open"
        limits = f"{self.seconds:g} s per exercise, {self.memory / 2**30:g} GiB per process"
        return f"Answers ran {where}. Limits: {limits}."


@dataclass
class Learner:
    """The work of one learner, and the results."""

    name: str
    cells: dict[str, list[Cell]] = field(default_factory=dict)  # by notebook, such as "ex03"
    notes: list[str] = field(default_factory=list)
    results: dict[str, engine.Result] = field(default_factory=NOTHING.copy)

    @property
    def points(self) -> list[float]:
        return [round(self.results[item.name].share * POINTS[item.difficulty], 2)
                for item in table.EXERCISES]  # fmt: skip


def grade(folder: Path, out: Path, settings: Settings, jobs: int) -> None:
    """Grade the uploads in `folder`; print each notebook's result and write `out` and its CSV.

    Raises UserError if there is nothing to grade or a file cannot be written.
    """
    root = paths.need_checkout()
    books = {path.stem[:4]: json.loads(build.build(root, path).text)
             for path in build.masters(root) if build.is_exercise(path)}  # fmt: skip
    learners = [read_upload(path, books) for path in sorted(folder.glob("[!.]*"))]
    if not learners or root.is_relative_to(folder):
        raise UserError(f"{folder}: name a folder that holds the uploads and nothing else")
    print(settings, flush=True)
    begin, pool = time.time(), ThreadPoolExecutor(jobs)
    work = [(one, key, pool.submit(run, books[key], cells, settings))
            for one in learners for key, cells in sorted(one.cells.items())]  # fmt: skip
    try:
        for one, key, future in work:
            results = future.result()
            one.results |= results
            good = sum(result.passed for result in results.values())
            print(f"{one.name}, {key}: {good} of {len(results)} passed", flush=True)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in psutil.Process().children():
            process.kill()
        raise
    most = sum(POINTS[item.difficulty] for item in table.EXERCISES)
    page = pages.environment().get_template("class.html").render(
        learners=learners, exercises=table.EXERCISES, most=most, marks=engine.MARKS,
        settings=settings, when=time.strftime("%d %B %Y, %H:%M"), seconds=time.time() - begin,
    )  # fmt: skip
    write_file(out, page)
    rows = [["learner", *NOTHING, "points", "of", "notes"]]
    for one in learners:
        texts = [f"'{text}" if text[:1] in ("=", "+", "-", "@") else text  # else a formula
                 for text in (one.name, "; ".join(one.notes))]  # fmt: skip
        points = [f"{value:g}" for value in (*one.points, sum(one.points), most)]
        rows.append([texts[0], *points, texts[1]])
    with out.with_suffix(".csv").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows(rows)


def read_upload(path: Path, books: dict[str, Any]) -> Learner:
    """Read the exercise notebooks of one upload; whatever is wrong with it becomes a note."""
    name = path.stem if path.suffix.lower() in (".zip", ".ipynb") else path.name
    one = Learner(clean(name.removeprefix("rn50-")) or "?")
    known = {mark: key for key, book in books.items() for cell in book["cells"]
             if exercise_tags(cell) for mark in (cell["id"], exercise_tags(cell))}  # fmt: skip
    size = 0
    for where, data in notebooks(path, one.notes):
        with noted(one.notes, where):
            if (size := size + len(data)) > MAX_UPLOAD:
                one.notes.append(f"only the first {MAX_UPLOAD // 2**20} MiB were read")
                break
            cells = code_cells(data)
            marks = (mark for cell in cells for mark in (cell["tags"], cell["id"]))
            key = next((known[mark] for mark in marks if mark in known), "")
            if not key:
                one.notes.append(f"{clean(where)} is not an exercise notebook of this course")
            elif key in one.cells:
                one.notes.append(f"{clean(where)} was ignored: it is a second {key}")
            else:
                one.cells[key] = cells
    if not one.cells:
        one.notes.append("no exercise notebook was found")
    return one


def notebooks(path: Path, notes: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the notebooks in a folder, a zip or a file. Nothing is unpacked to the disk."""
    with noted(notes, path.name):
        if path.is_symlink():
            raise ValueError("it is a link")
        if path.is_dir():
            for inner in sorted(path.glob("[!.]*"))[:MAX_FILES]:
                yield from notebooks(inner, notes)
        elif path.suffix.lower() == ".ipynb" and path.is_file():
            with path.open("rb") as stream:
                yield path.name, stream.read(MAX_FILE + 1)
        elif path.suffix.lower() == ".zip" and path.is_file():
            with zipfile.ZipFile(path) as opened:
                for info in opened.infolist()[:MAX_FILES]:
                    if info.filename.endswith(".ipynb") and "__MACOSX" not in info.filename:
                        with noted(notes, info.filename), opened.open(info) as stream:
                            yield info.filename, stream.read(MAX_FILE + 1)


@contextlib.contextmanager
def noted(notes: list[str], where: str) -> Iterator[None]:
    """Turn any error into a note, so that one upload cannot stop the others."""
    try:
        yield
    except Exception as problem:
        notes.append(clean(f"{where} cannot be read: {problem or type(problem).__name__}"))


def code_cells(data: bytes) -> list[Cell]:
    """Return id, tags and source of the code cells. Raises an exception for anything else."""
    if len(data) > MAX_FILE:
        raise ValueError(f"it is larger than {MAX_FILE // 2**20} MiB")
    found = []
    for cell in json.loads(data)["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])[:MAX_CELL].encode("utf-8", "replace").decode()
            found.append({"id": str(cell.get("id")), "tags": exercise_tags(cell), "source": source})
    return found


def exercise_tags(cell: Cell) -> tuple[str, ...]:
    """Return ("answer" or "check", exercise) for such a cell; () for any other."""
    tags = tuple(map(str, cell.get("metadata", {}).get("tags", ())))
    return tags[:2] if tags[:1] in (("answer",), ("check",)) else ()


def clean(text: str) -> str:
    """Return text from a learner on one line, without characters that cannot be written."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:300]).split())


def paste(book: dict[str, Any], cells: list[Cell]) -> list[Cell]:
    """Return the code cells of a fresh notebook with a learner's answers and definitions."""
    own = {cell["id"]: cell for cell in book["cells"] if cell["cell_type"] == "code"}
    ids = {exercise_tags(cell): id_ for id_, cell in own.items() if exercise_tags(cell)}
    answers: dict[str, str] = {}
    added: dict[str, list[str]] = {}  # before which cell
    helpers: list[str] = []
    for cell in cells:
        id_ = str(ids.get(cell["tags"], cell["id"]))
        if id_ not in own:
            helpers.append(definitions(cell["source"]))
        elif exercise_tags(own[id_]):
            answers[id_], added[id_], helpers = cell["source"], helpers, []
    made = []
    for id_, cell in own.items():
        kind, name = exercise_tags(cell) or ("", "")
        source = "".join(cell["source"])
        source = answers.get(id_, source) if kind == "answer" else source
        source = source if kind else definitions(source)
        parts = [*((helper, "", "") for helper in added.get(id_, ())), (source, kind, name)]
        made += [{"source": part, "metadata": {"kind": kind, "exercise": name}}
                 for part, kind, name in parts]  # fmt: skip
    return made


def definitions(source: str) -> str:
    """Return the imports, definitions and assignments of a cell, without calls of `workshop`."""
    try:
        return "\n".join(
            ast.unparse(node) for node in ast.parse(source).body if isinstance(node, DEFINITION)
            or isinstance(node, ast.Assign | ast.AnnAssign) and "workshop." not in ast.unparse(node)
        )  # fmt: skip
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def run(book: dict[str, Any], cells: list[Cell], settings: Settings) -> dict[str, engine.Result]:
    """Run one learner's notebook in its own process and return the result of each exercise."""
    made = paste(book, cells)
    limits = {name: settings.seconds * max(1.0, table.find(name).minutes / 20)
              for _, name in filter(None, map(exercise_tags, book["cells"]))}  # fmt: skip
    if made == paste(book, []):
        left = "the notebook was handed in unchanged."
        return {name: engine.Result(name, engine.NOT_ATTEMPTED, left) for name in limits}
    mark, why = uuid.uuid4().hex, "Python ended: out of memory, or the answer ended it."
    with tempfile.TemporaryDirectory(prefix="rn50-grade-", ignore_cleanup_errors=True) as place, \
         tempfile.TemporaryFile() as log:  # fmt: skip
        job = {"cells": made, "limits": limits, "memory": settings.memory}
        Path(place, "job.json").write_text(json.dumps(job), encoding="utf-8")
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env |= {"HOME": place, "TMPDIR": place, "RN50_RUNS": place, "RN50_CHECK": "record",
                "RN50_DATA": str(paths.data_home()), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "2",
                "CUDA_VISIBLE_DEVICES": "", processes.MARK: mark,
                "PYTHONPATH": str(Path(__file__).parents[2])}  # fmt: skip
        hidden = [word for path in settings.hidden for word in ("--tmpfs", str(path))]
        before = [*BWRAP, *hidden, "--bind", place, place, "--chdir", place]
        before = before if settings.bubblewrap else []
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "workshop.course.grade", "job.json"],
            cwd=place, env=kernels.with_kernelspec(env, Path(place)), stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(START_S + sum(limits.values()))
        except subprocess.TimeoutExpired:
            why = "the notebook reached its time limit."
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            processes.end(mark)  # a kernel has its own process group
        log.seek(0)
        lines = log.read(MAX_LOG).decode("utf-8", "replace").split("\n")
    why += f" {clean(lines[-2])}" if process.returncode == 1 and len(lines) > 1 else ""
    found = {name: engine.Result(name, engine.ERROR, why) for name in limits}
    for line in lines:
        with contextlib.suppress(Exception):  # whatever an answer printed
            told = json.loads(line)
            name, outcome, share = told["exercise"], told["outcome"], float(told["share"])
            if name in found and outcome in engine.OUTCOMES and 0 <= share <= 1:
                said, then = clean(told["said"]), clean(told["then"])
                found[name] = engine.Result(name, outcome, said, then, share)
    return found


def bubblewrap_works() -> bool:
    """Return True if bwrap is installed and allowed here, which it may not be in a container."""
    if not shutil.which("bwrap"):
        return False
    return subprocess.run([*BWRAP, "true"], capture_output=True).returncode == 0


def main(path: str) -> None:
    """Run the cells of a job and print a line for each check."""
    import nbformat
    from nbclient import NotebookClient

    job = json.loads(Path(path).read_text(encoding="utf-8"))
    for which, most in ((resource.RLIMIT_DATA, job["memory"]), (resource.RLIMIT_FSIZE, 2**30)):
        with contextlib.suppress(ValueError):  # a lower limit is in force already
            resource.setrlimit(which, (most, most))
    errors: dict[str, str] = {}  # of answer cells

    def seconds(cell: Any) -> int:
        return int(job["limits"].get(cell.metadata.exercise, START_S)) + 1

    def report(cell: Any, cell_index: int, execute_reply: Any) -> None:
        name, result = cell.metadata.exercise, None
        for shown in cell.outputs:
            if shown.output_type == "error":
                late = f"the time limit of {seconds(cell) - 1} s."
                said = f"{shown.ename}: {shown.evalue}"
                errors.setdefault(name, late if shown.ename == "KeyboardInterrupt" else said)
            result = shown.get("data", {}).get(output.RESULT_MIME) or result
        if cell.metadata.kind == "check":
            if not result or name in errors:
                said = errors.get(name, "a check without a result.")
                result = asdict(engine.Result(name, engine.ERROR, said))
            print(f"\n{json.dumps(result)}", flush=True)
        cell.outputs = []

    cells = [nbformat.v4.new_code_cell(**cell) for cell in job["cells"]]
    NotebookClient(
        nbformat.v4.new_notebook(cells=cells), kernel_name="python3", allow_errors=True,
        startup_timeout=START_S,
        timeout_func=seconds, interrupt_on_timeout=True, on_cell_executed=report,
    ).execute(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])

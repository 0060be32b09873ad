"""`rn50 workshop grade DIR`: run a class's answers in fresh notebooks; write a CSV and a page.

DIR has one entry per learner, named after the learner: a folder, a zip or a notebook. Only answer
cells count, with the functions, imports and constants that the learner added to other cells.
`python -m workshop.course.grade JOB` runs one notebook. An answer can forge its own result.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from rn50lib.errors import UserError
from rn50lib.files import write_file
from workshop import output, paths, processes
from workshop.checks import engine, table
from workshop.course import build, kernels, pages
from workshop.course.nbgrader import POINTS

Cell = dict[str, Any]
MAX_FILE, MAX_FILES, MAX_RESULTS = 40 * 2**20, 2000, 2**20  # bytes of a notebook; per upload
START_S = 60  # for the kernel and the imports of a notebook, in addition to its exercises
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")
DEFINITION = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Settings:
    """Seconds per exercise, bytes per process, and the folders that answers must not read."""

    seconds: float
    memory: int
    hidden: tuple[Path, ...]
    bubblewrap: bool


@dataclass
class Learner:
    """What one learner handed in, and how it did."""

    name: str
    cells: dict[str, list[Cell]] = field(default_factory=dict)  # by notebook, such as "ex03"
    notes: list[str] = field(default_factory=list)
    results: dict[str, engine.Result] = field(default_factory=dict)

    def points(self, item: table.Exercise) -> float:
        return round(self.results[item.name].share * POINTS[item.difficulty], 2)

    @property
    def errors(self) -> list[str]:
        return [f"{name}: {result.said}" for name, result in self.results.items()
                if result.outcome in (engine.WRONG, engine.ERROR)]  # fmt: skip

    @property
    def total(self) -> float:
        return round(sum(map(self.points, table.EXERCISES)), 2)


def grade(folder: Path, out: Path, seconds: float, memory: int, jobs: int) -> list[Learner]:
    """Grade the uploads in `folder`, print a line per learner, and write `out` and its CSV.

    Raises UserError if there is nothing to grade or the page cannot be written.
    """
    root, sheet = paths.need_checkout(), out.with_suffix(".csv")
    if root.is_relative_to(folder.absolute()):
        raise UserError(f"{folder} contains the course: name a folder with nothing but uploads")
    if not folder.is_dir() or out.suffix != ".html" or not out.absolute().parent.is_dir():
        raise UserError(f"grade {folder} -o {out}: name a folder of uploads and a new .html file")
    books = {path.stem[:4]: json.loads(build.build(root, path).text)
             for path in build.masters(root) if build.is_exercise(path)}  # fmt: skip
    entries = sorted(path for path in folder.iterdir() if path.name[:1] != ".")
    learners = [read_upload(path, books) for path in entries if path not in (out, sheet)]
    if not learners:
        raise UserError(f"{folder} is empty: put a folder, a zip or a notebook per learner into it")
    hidden = (folder.absolute(), root / "exercises" / "source")
    settings = Settings(seconds, memory, hidden, bubblewrap_works())
    print(how(settings), flush=True)
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
    for one in learners:
        for item in table.EXERCISES:
            missing = engine.Result(item.name, engine.NOT_ATTEMPTED, "it was not handed in.")
            one.results.setdefault(item.name, missing)
    most = sum(POINTS[item.difficulty] for item in table.EXERCISES)
    names = [item.name for item in table.EXERCISES]
    with sheet.open("w", encoding="utf-8-sig", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["learner", *names, "points", "of", "notes"])
        for one in learners:
            points = [f"{one.points(item):g}" for item in table.EXERCISES]
            notes = harmless("; ".join(one.notes))
            rows.writerow([harmless(one.name), *points, f"{one.total:g}", most, notes])
    page = pages.environment().get_template("class.html").render(
        learners=learners, exercises=table.EXERCISES, most=most, marks=engine.MARKS, sheet=sheet,
        how=how(settings), when=time.strftime("%d %B %Y, %H:%M"), seconds=time.time() - begin,
    )  # fmt: skip
    write_file(out, page)
    return learners


def how(settings: Settings) -> str:
    """Return a sentence on what limited the answers."""
    limits = f"{settings.seconds:g} s per exercise, {settings.memory / 2**30:g} GiB per process"
    if settings.bubblewrap:
        return f"Answers ran under bubblewrap: no network, files read-only; {limits}."
    return (f"Answers ran without bubblewrap, with network and with this account's files, because"
            f" `bwrap` is not installed or not allowed here; {limits}.")  # fmt: skip


# --- reading uploads ------------------------------------------------------------------------------


def read_upload(path: Path, books: dict[str, Any]) -> Learner:
    """Read the exercise notebooks of one upload; whatever is wrong with it becomes a note."""
    name = path.stem if path.suffix.lower() in (".zip", ".ipynb") else path.name
    one = Learner(clean(name.removeprefix("rn50-")) or "?")
    known = {mark: key for key, book in books.items() for cell in book["cells"]
             if exercise_tags(cell) for mark in (cell["id"], exercise_tags(cell))}  # fmt: skip
    for where, data in notebooks(path, one.notes):
        with noted(one.notes, where):
            cells = code_cells(data)
            keys = [known[mark] for cell in cells for mark in (cell["tags"], cell["id"])
                    if mark in known]  # fmt: skip
            if not keys:
                one.notes.append(f"{clean(where)} is not an exercise notebook of this course")
            elif keys[0] in one.cells:
                one.notes.append(f"{clean(where)} was ignored: it is a second {keys[0]}")
            else:
                one.cells[keys[0]] = cells
    if not one.cells:
        one.notes.append("no exercise notebook was found")
    return one


def notebooks(path: Path, notes: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the notebooks in a folder, a zip or a file. Nothing is unpacked to the disk."""
    with noted(notes, path.name):
        if path.is_symlink():
            raise ValueError("it is a link")
        if path.is_dir():
            for inner in sorted(path.iterdir())[:MAX_FILES]:
                if inner.name[:1] != ".":
                    yield from notebooks(inner, notes)
        elif path.suffix.lower() == ".ipynb" and path.is_file():
            with path.open("rb") as stream:
                yield path.name, limited(stream)
        elif path.suffix.lower() == ".zip" and path.is_file():
            with zipfile.ZipFile(path) as opened:
                for info in opened.infolist()[:MAX_FILES]:
                    if info.filename.endswith(".ipynb") and "__MACOSX" not in info.filename:
                        with noted(notes, info.filename), opened.open(info) as stream:
                            yield info.filename, limited(stream)


def limited(stream: IO[bytes]) -> bytes:
    """Return the content of a file. Raises ValueError for a large one."""
    data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ValueError(f"it is larger than {MAX_FILE // 2**20} MiB")
    return data


@contextlib.contextmanager
def noted(notes: list[str], where: str) -> Iterator[None]:
    """Turn any error into a note, so that one upload cannot stop the others."""
    try:
        yield
    except Exception as problem:
        notes.append(clean(f"{where} cannot be read: {problem or type(problem).__name__}"))


def code_cells(data: bytes) -> list[Cell]:
    """Return id, tags and source of the code cells. Raises an exception for anything else."""
    found = []
    for cell in json.loads(data)["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).encode("utf-8", "replace").decode()
            found.append({"id": str(cell.get("id")), "tags": exercise_tags(cell), "source": source})
    return found


def exercise_tags(cell: Cell) -> tuple[str, ...]:
    """Return ("answer" or "check", exercise) for such a cell; () for any other."""
    tags = tuple(map(str, cell.get("metadata", {}).get("tags", ())))
    return tags[:2] if tags[:1] in (("answer",), ("check",)) else ()


def clean(text: str, most: int = 300) -> str:
    """Return text from a learner on one line, without characters that cannot be written."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:most]).split())


def harmless(text: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


# --- running --------------------------------------------------------------------------------------


def paste(book: dict[str, Any], cells: list[Cell]) -> list[Cell]:
    """Return the code cells of the fresh notebook, with the answers and definitions of a learner."""
    own = {cell["id"]: cell for cell in book["cells"] if cell["cell_type"] == "code"}
    ids = {exercise_tags(cell): id_ for id_, cell in own.items() if exercise_tags(cell)}
    answers: dict[str, str] = {}
    added: dict[str, list[str]] = {}  # before which cell
    helpers: list[str] = []
    for cell in cells:
        id_ = ids.get(cell["tags"], cell["id"])
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
        made += [{"source": helper, "kind": "", "name": ""} for helper in added.get(id_, ())]
        made.append({"source": source, "kind": kind, "name": name})
    return made


def definitions(source: str) -> str:
    """Return the imports, definitions and assignments of a cell, without calls of `workshop`."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "\n".join(
        ast.unparse(node) for node in body if isinstance(node, DEFINITION)
        or (isinstance(node, ast.Assign | ast.AnnAssign) and "workshop." not in ast.unparse(node))
    )  # fmt: skip


def seconds_of(name: str, settings: Settings) -> float:
    """Return the time limit of an exercise: longer ones get more."""
    return settings.seconds * max(1.0, table.find(name).minutes / 20)


def run(book: dict[str, Any], cells: list[Cell], settings: Settings) -> dict[str, engine.Result]:
    """Run one learner's notebook in its own process and return the result of each exercise."""
    made = paste(book, cells)
    names = [cell["name"] for cell in made if cell["kind"] == "check"]
    if made == paste(book, []):
        left = "the notebook was handed in as it was."
        return {name: engine.Result(name, engine.NOT_ATTEMPTED, left) for name in names}
    limits = {name: seconds_of(name, settings) for name in names}
    job = {"cells": made, "limits": limits, "memory": settings.memory}
    mark = processes.new_mark()
    with tempfile.TemporaryDirectory(prefix="rn50-grade-", ignore_cleanup_errors=True) as place, \
         tempfile.TemporaryFile() as log:  # fmt: skip
        folder = Path(place)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        env |= {"HOME": place, "TMPDIR": place, "RN50_RUNS": place, "RN50_CHECK": "record",
                "RN50_DATA": str(paths.data_home()), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "2",
                "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1", processes.MARK: mark}
        env = kernels.with_kernelspec(env, folder)
        command = [*box(folder, settings), sys.executable, "-m", __spec__.name, "job.json"]
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        why = "Python ended: out of memory, or the answer ended it."
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
        lines = log.read(MAX_RESULTS).decode("utf-8", "replace").splitlines()
    found = {name: engine.Result(name, engine.ERROR, why) for name in names}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            told = json.loads(line)
            name, outcome, share = told["exercise"], told["outcome"], float(told["share"])
            if name in found and outcome in engine.OUTCOMES and 0 <= share <= 1:
                said, then = clean(told["said"]), clean(told["then"])
                found[name] = engine.Result(name, outcome, said, then, share)
    return found


def box(folder: Path, settings: Settings) -> list[str]:
    """Return the words before a command that isolate it; none without bubblewrap."""
    if not settings.bubblewrap:
        return []
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
             "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]  # fmt: skip
    for hidden in settings.hidden:
        words += ["--tmpfs", str(hidden)]
    return [*words, "--bind", str(folder), str(folder), "--chdir", str(folder)]


def bubblewrap_works() -> bool:
    """Return True if bwrap is installed and may be used here, which a container may forbid."""
    words = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        return subprocess.run(words, capture_output=True).returncode == 0
    except OSError:
        return False


# --- in the process of a notebook -----------------------------------------------------------------


def main(path: str) -> None:
    """Run the cells of a job and print a line for each check."""
    import nbformat
    from nbclient import NotebookClient

    job = json.loads(Path(path).read_text(encoding="utf-8"))
    limits = {resource.RLIMIT_DATA: job["memory"], resource.RLIMIT_FSIZE: 2**30,
              resource.RLIMIT_CORE: 0}  # fmt: skip
    for which, value in limits.items():
        _, most = resource.getrlimit(which)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(which, (value, value))
    errors: dict[str, str] = {}  # of the answers

    def report(cell: Any, cell_index: int, execute_reply: Any) -> None:
        kind, name = cell.metadata.kind, cell.metadata.name
        stopped = [f"{o.ename}: {o.evalue}" for o in cell.outputs if o.output_type == "error"]
        if any(text.startswith("KeyboardInterrupt") for text in stopped):
            stopped = [f"the time limit of {job['limits'].get(name, START_S):g} s."]
        if kind == "answer" and stopped:
            errors[name] = stopped[0]
        if kind == "check":
            said = errors.get(name) or (stopped or ["a check without a result"])[0]
            result = asdict(engine.Result(name, engine.ERROR, said))
            for shown in cell.outputs:
                record = shown.get("data", {}).get(output.RESULT_MIME, {})
                if record.get("exercise") == name and not errors.get(name):
                    result = record
            print(f"\n{json.dumps(result)}", flush=True)
        cell.outputs = []

    cells = []
    for given in job["cells"]:
        about = {"kind": given["kind"], "name": given["name"]}
        cells.append(nbformat.v4.new_code_cell(given["source"], metadata=about))
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=cells), kernel_name="python3", allow_errors=True,
        interrupt_on_timeout=True, on_cell_executed=report,
        timeout_func=lambda cell: int(job["limits"].get(cell.metadata.name, START_S)) + 1,
    )  # fmt: skip
    client.execute(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main(sys.argv[1])

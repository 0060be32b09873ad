"""`rn50 workshop grade DIR`: run a class's answers in fresh notebooks; write a CSV and a page.

DIR has one entry per learner, named after the learner: a folder, a zip or a notebook, read by
`uploads`. Only answer cells count, and what the learner defined in additional cells. An answer can
forge its result.
`python -m workshop.course.grade SECONDS GIB` runs one notebook.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rn50.common import Output
from rn50lib.errors import UserError
from workshop import catalogue, output, paths, processes
from workshop.checks import alone, engine
from workshop.course import build, pages, run, uploads
from workshop.course.nbgrader import POINTS
from workshop.course.uploads import MAX_FILE, Cell, clean, code_cells

START_S = 120  # for the kernel and the imports of a notebook, in addition to its exercises
KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")  # environment variables
# /run and /tmp hold sockets: of the session, Docker, ssh-agent, tmux. bwrap mounts at no link.
BWRAP = ("bwrap --unshare-all --die-with-parent --new-session --cap-drop ALL --ro-bind / /"
         f" --tmpfs {os.path.realpath('/run')} --tmpfs {os.path.realpath('/tmp')}"
         " --dev /dev --proc /proc").split()  # fmt: skip
NOTHING = {item.name: engine.Result(item.name, engine.NOT_ATTEMPTED, "it was not handed in.")
           for item in catalogue.EXERCISES}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Seconds per cell, GiB per process, and the folder of the uploads."""

    seconds: int
    memory: int
    uploads: Path
    bubblewrap: bool
    running: set[subprocess.Popen] = field(default_factory=set, compare=False)

    def __str__(self) -> str:
        where = "under bubblewrap, without network, files read-only"
        if not self.bubblewrap:
            where = "without bubblewrap (not installed or not allowed): network and files were open"
        limits = f"{self.seconds} s per cell, {self.memory} GiB per process"
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
                for item in catalogue.EXERCISES]  # fmt: skip


def grade(folder: Path, page: Output, table_csv: Output, settings: Settings, jobs: int) -> None:
    """Grade the uploads in `folder`; print each notebook's result and write the page and the CSV.

    Raises UserError if there is nothing to grade, a file cannot be written, or a notebook could not
    be run at all, which says nothing about its answers.
    """
    root = paths.need_checkout()
    fresh = {path.stem[:4]: code_cells(build.build(root, path).encode())
             for path in build.masters(root) if build.is_exercise(path)}  # fmt: skip
    learners = learners_of(folder, fresh)
    if not learners or root.is_relative_to(folder):
        raise UserError(f"{folder}: name a folder that holds the uploads and nothing else")
    print(settings, flush=True)
    for who, note in [(one.name, note) for one in learners for note in one.notes]:
        print(f"{who}: {note}")
    begin = time.time()
    work = [(one, key) for one in learners for key in sorted(one.cells)]
    pasted = [paste(fresh[key], one.cells[key]) for one, key in work]
    failures: list[str] = []
    graded, interrupted = 0, None
    with ThreadPoolExecutor(jobs) as pool:
        done = pool.map(run_answers, pasted, [settings] * len(work))
        try:
            for (one, key), (results, failure) in zip(work, done, strict=True):
                one.results |= results
                good = sum(result.passed for result in results.values())
                print(f"{one.name}, {key}: {good} of {len(results)} passed", flush=True)
                if failure:
                    one.notes.append(f"{key} was not graded: {failure}")
                    failures.append(f"{one.name}, {key}: {failure}")
                graded += 1
        except KeyboardInterrupt as error:  # what was graded is kept
            interrupted = error
            pool.shutdown(wait=False, cancel_futures=True)
            for process in [*settings.running]:
                process.kill()
    if interrupted and Path(page.path).exists():
        print(f"{page.path}: this earlier grading is kept")
        raise interrupted
    for one, key in work[graded:]:
        one.notes.append(f"{key} was not graded: interrupted")
    most = sum(POINTS[item.difficulty] for item in catalogue.EXERCISES)
    text = pages.render(
        "class.html", learners=learners, exercises=catalogue.EXERCISES, most=most,
        settings=settings, marks=engine.MARKS, when=time.strftime("%d %B %Y, %H:%M"),
        seconds=time.time() - begin,
    )  # fmt: skip
    rows = [["learner", *NOTHING, "points", "of", "notes"]]
    for one in learners:
        is_formula = one.name.startswith(("=", "+", "-", "@"))  # to Excel
        name = f"'{one.name}" if is_formula else one.name
        points = [f"{value:g}" for value in (*one.points, sum(one.points), most)]
        rows.append([name, *points, "; ".join(one.notes)])
    lines = io.StringIO(newline="")
    csv.writer(lines).writerows(rows)
    before = os.umask(0o077)  # marks are not for others on this machine
    try:
        page.write(text)
        table_csv.write(f"\ufeff{lines.getvalue()}")  # by which Excel recognises UTF-8
    finally:
        os.umask(before)
    if interrupted:
        raise interrupted
    if failures:
        raise UserError(
            f"{len(failures)} notebooks were not graded ({page.path} lists them): {failures[0]}"
        )


def learners_of(folder: Path, fresh: Mapping[str, list[Cell]]) -> list[Learner]:
    """Return the learners of the uploads in a folder. Two uploads of one name keep their suffix."""
    entries = sorted(folder.glob("[!.]*"))
    called = [  # without what Moodle adds
        re.sub(r"_\d+_assignsubmission_.+$", "", name)
        for name in (path.name if path.is_dir() else path.stem for path in entries)
    ]
    return [
        Learner(clean(name if called.count(name) == 1 else path.name), *uploads.read(path, fresh))
        for path, name in zip(entries, called, strict=True)
    ]


def paste(fresh: list[Cell], cells: list[Cell]) -> list[Cell]:
    """Return a learner's answers and definitions, in order, with the checks of a fresh notebook."""
    checks = {cell["exercise"]: cell for cell in fresh if cell["kind"] == "check"}
    last = {cell["exercise"]: cell for cell in cells if cell["kind"] == "check"}  # a copy, perhaps
    made = [{**cell, "source": definitions(cell["source"])} for cell in fresh if not cell["kind"]]
    for cell in cells:
        if cell["kind"] == "answer":
            made.append(cell)
        elif cell["kind"] == "check":
            if cell is last[cell["exercise"]]:
                made += filter(None, [checks.pop(cell["exercise"], None)])
        else:
            made.append({**cell, "source": definitions(cell["source"])})
    return [*made, *checks.values()]


def definitions(source: str) -> str:
    """Return the imports, definitions and assignments of a cell, without calls of `workshop`."""
    from IPython.core.inputtransformer2 import TransformerManager

    plain = re.sub(r"\A\s*%%(time|timeit|capture)\b.*", "", source)
    try:
        code = TransformerManager().transform_cell(plain)  # lines such as %matplotlib inline
        kept = (node for node in ast.parse(code).body if alone.is_kept(node, {"workshop"}))
        return "\n".join(map(ast.unparse, kept))
    except (SyntaxError, ValueError, RuntimeError, MemoryError):  # IPython's, of 500 magics
        return ""


def run_answers(pasted: list[Cell], settings: Settings) -> tuple[dict[str, engine.Result], str]:
    """Run one learner's notebook in its own process.

    Returns the result of each exercise, and why no cell was run, if so.
    """
    import nbformat

    names = [cell["exercise"] for cell in pasted if cell["kind"] == "check"]
    made = [nbformat.v4.new_code_cell(cell["source"], metadata=cell) for cell in pasted]
    mark, why = uuid.uuid4().hex, "Python ended: out of memory, or the answer ended it."
    with folder_of_an_answer() as place, tempfile.TemporaryFile() as log:
        nbformat.write(nbformat.v4.new_notebook(cells=made), Path(place, "given.ipynb"))
        data, library = os.path.realpath(paths.data_home()), str(Path(__file__).parents[2])
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env |= {"HOME": place, "TMPDIR": place, "RN50_RUNS": place, "RN50_CHECK": "record",
                "RN50_DATA": data, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "2",
                "CUDA_VISIBLE_DEVICES": "", processes.MARK: mark,
                "PYTHONPATH": library,
                **run.this_kernel(Path(place, "kernel"))}  # fmt: skip
        root, box = paths.need_checkout(), [*BWRAP]
        linked = (str(path) for path in Path(data).glob("*") if path.is_symlink())
        for path in (sys.prefix, sys.base_prefix, str(root), library, data, *linked):
            box += ["--ro-bind-try", os.path.realpath(path), os.path.realpath(path)]
        hidden = [root / name for name in ("exercises/source", "tests", ".git")]
        hidden = [settings.uploads, *(path for path in hidden if path.is_dir())]
        box += [word for path in hidden for word in ("--tmpfs", os.path.realpath(path))]
        box = [*box, "--bind", place, place, "--chdir", place] if settings.bubblewrap else []
        command = [sys.executable, "-m", __name__, str(settings.seconds), str(settings.memory)]
        process = subprocess.Popen(
            [*box, *command], cwd=place, env=env, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log,
        )  # fmt: skip
        settings.running.add(process)
        try:
            process.wait(START_S + settings.seconds * len(names))
        except subprocess.TimeoutExpired:
            why = "the notebook reached its time limit."
        finally:
            process.kill()
            process.wait()
            settings.running.remove(process)
            processes.end(mark)  # a kernel has its own process group
        log.seek(0)
        end = clean(log.read(MAX_FILE).decode("utf-8", "replace")[-200:])
        failure = "" if Path(place, "done.ipynb").exists() else end or why
        if not failure and Path(place, "done.ipynb").stat().st_size > MAX_FILE:
            why = f"the notebook printed more than {MAX_FILE >> 20} MiB."
        if failure:
            why = f"not graded: {failure}"
        elif process.returncode == 1:
            why += f" {end}"
        found = {name: engine.Result(name, engine.ERROR, why) for name in names}
        with contextlib.suppress(Exception):  # whatever an answer left there
            found |= results(Path(place, "done.ipynb"), names, settings.seconds)
    return found, failure


@contextlib.contextmanager
def folder_of_an_answer() -> Iterator[str]:
    """Yield a temporary folder and remove it; Python's own way fails in 1,000 nested folders."""
    place = os.path.realpath(tempfile.mkdtemp(prefix="rn50-grade-"))
    path = f"{os.defpath}:{os.environ.get('PATH', '')}"
    try:
        yield place
    finally:
        for words in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):  # neither follows links
            subprocess.run([*words, place], env={"PATH": path}, stderr=subprocess.DEVNULL)


def results(path: Path, names: list[str], seconds: int) -> dict[str, engine.Result]:
    """Return the results of the exercises `names` that an executed notebook shows."""
    found: dict[str, engine.Result] = {}
    if path.stat().st_size > MAX_FILE or not path.is_file():
        return found
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        kind, name = cell["metadata"].get("kind"), cell["metadata"].get("exercise")
        for shown in cell["outputs"] if name in names else ():
            told = shown.get("data", {}).get(output.RESULT_MIME)
            if shown["output_type"] == "error":
                said = clean(f"{shown['ename']}: {shown['evalue']}")
                if shown["ename"] == "KeyboardInterrupt":
                    said = f"the time limit of {seconds} s."
                found.setdefault(name, engine.Result(name, engine.ERROR, said))
            elif kind == "check" and told and told["outcome"] in engine.OUTCOMES:
                said, then = clean(told["said"]), clean(told["then"])
                share = min(1.0, max(0.0, float(told["share"])))
                # whatever else failed: nbgrader, too, counts the check alone
                found[name] = engine.Result(name, told["outcome"], said, then, share)
    return found


def bubblewrap_works() -> bool:
    """Return True if bwrap is installed and allowed here, which it may not be in a container."""
    if not shutil.which("bwrap"):
        return False
    return subprocess.run([*BWRAP, "true"], capture_output=True).returncode == 0


def main(seconds: str, memory: str) -> None:
    """Execute given.ipynb into done.ipynb, which is saved after each cell."""
    import papermill

    for kind, limit in (resource.RLIMIT_DATA, int(memory) * 2**30), (resource.RLIMIT_FSIZE, 2**30):
        hard = resource.getrlimit(kind)[1]  # a limit of the account or container stays
        limit = min(limit, 2**62 if hard == resource.RLIM_INFINITY else hard)
        resource.setrlimit(kind, (limit, limit))
    papermill.execute_notebook(
        "given.ipynb", "done.ipynb", kernel_name="python3", progress_bar=False, allow_errors=True,
        start_timeout=START_S, execution_timeout=int(seconds), interrupt_on_timeout=True,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])

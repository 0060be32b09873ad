"""Starts a script on several ranks, and on one, with a recorder in each process."""

from __future__ import annotations

import ast
import glob
import json
import os
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50lib import hardware
from rn50lib.distributed import launch_env
from rn50lib.errors import UserError
from workshop import output, programs
from workshop.errors import RunFailed
from workshop.try_script import report
from workshop.try_script.folder import copy_folder, make_read_only

STEPS = 5  # updates that are watched
SECONDS = 20.0  # that the script may go on after these, to see what it writes
TIME_LIMIT = 300.0
POLL_S = 0.2
LAUNCHERS = ("horovodrun", "torchrun", "python")

SITE = """\
import atexit, sys, traceback
from importlib import util

def load(name, file, folders=None):
    spec = util.spec_from_file_location(name, file, submodule_search_locations=folders)
    module = sys.modules[name] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def record(kind, error, trace):
    worker.record_end(1, "".join(traceback.format_exception(kind, error, trace)))
    atexit.unregister(worker.record_end)
    hook(kind, error, trace)

worker = load("workshop.try_script.launch_env", {launch_env!r})
if {alone} or worker.LaunchEnv.detect():
    worker.register()
    atexit.register(worker.record_end, 0)
    hook, sys.excepthook = sys.excepthook, record
load("workshop.try_script.recorder", {file!r}, [{folder!r}]).begin()
"""


@dataclass
class Seen:
    """What the recorders of one launch wrote down, and what the script printed last."""

    events: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    ended: bool = False  # the script has come to its own end


def try_script(
    script: str | os.PathLike,
    *arguments: object,
    np: int = 2,
    launcher: str = "auto",
    steps: int = STEPS,
    seconds: float = SECONDS,
    single: bool = True,
    folder: str | os.PathLike | None = None,
    env: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> report.Result:
    """Run a script of one's own on `np` ranks, watch its first `steps` updates, and tell which of
    the changes that a parallel script needs were there.

        result = workshop.try_script("train.py", "--epochs", 1)
        result.missing                    # [] where nothing is missing
        result["average"].status          # "seen", "missing" or "not seen"
        result["average"].evidence        # what was seen, in words

    The rows: "start", "share", "rate", "average", "alike", "writes". In a notebook the result shows
    itself as a table. The launcher is horovodrun, torchrun or python (the script starts its ranks
    itself); "auto" goes by what the script imports. After its last watched update the script may go
    on for `seconds`, so that one sees what it writes, and is ended then. With `single` it also runs
    on one rank, to compare the learning rates. It runs in a copy of `folder` (default: its own), so
    that yours does not change. `env` is added to the environment.

    Raises RunFailed, with the script's own traceback as `log`, if it fails; UserError for a script
    or a launcher that does not exist.
    """
    path = Path(script).absolute()
    if not path.is_file():
        raise UserError(f"there is no script {script}")
    if launcher not in ("auto", *LAUNCHERS):
        raise UserError(f"launcher {launcher!r}: there are auto, {', '.join(LAUNCHERS)}")
    if np < 2 or steps < 1:
        raise UserError("a script is tried on 2 ranks or more, for 1 step or more")
    say = say or progress_line()
    why = f"as you said (--launcher {launcher})"
    if launcher == "auto":
        launcher, why = choose_launcher(path)
    if launcher == "horovodrun" and find_spec("horovod") is None:
        raise UserError(f"{path.name} would need horovodrun ({why}); Horovod is not installed")
    say(f"{path.name} on {np} ranks by {launcher}: {why}")
    words = [str(word) for word in arguments]
    where = Path(folder).absolute() if folder is not None else path.parent
    job = Launch(path, words, where, launcher, steps, dict(env or {}), say)
    seen = job.run(np, seconds)
    alone, problem = None, ""
    if single and launcher != "python" and any(e["kind"] == "update" for e in seen.events):
        say("and on one rank, to compare the learning rates")
        try:
            alone = job.run(1, 0.0)
        except RunFailed as error:
            problem = f"{error}: {error.log.splitlines()[-1] if error.log else ''}"
    say(f"{path.name} has been watched")
    result = report.judge(seen.events, alone.events if alone else [], np, seen.ended)
    result.script, result.launcher, result.why = path.name, launcher, why
    result.output = seen.lines
    if problem:
        result.unseen.append(f"how it runs on one rank: {problem}")
    return result


def progress_line() -> Callable[[str], None]:
    """Shows a line where the last one stood, in a notebook; elsewhere nothing."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return output.Slot().line if shell is not None else lambda line: None


def choose_launcher(path: Path) -> tuple[str, str]:
    """The launcher for a script by what it imports, its neighbours' imports included."""
    names, spawns = imports(path, set())
    if any(name.split(".")[0] == "horovod" for name in names):
        return "horovodrun", "the script imports Horovod"
    if spawns:
        return "python", "the script starts its ranks itself, with spawn"
    if any(name.startswith(("torch.distributed", "torch.nn.parallel")) for name in names):
        return "torchrun", "the script imports torch.distributed"
    chosen = "horovodrun" if find_spec("horovod") else "torchrun"
    return chosen, "the script imports neither Horovod nor torch.distributed"


def imports(path: Path, known: set[Path]) -> tuple[set[str], bool]:
    """The modules that a file and the files beside it import, and whether `spawn` is called."""
    known.add(path)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return set(), False  # the script will say it itself
    names, spawns = set(), False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            spawns |= node.func.attr == "spawn"
    for name in sorted(names):
        beside = path.parent / f"{name.split('.')[0]}.py"
        if beside.is_file() and beside not in known:
            more, also = imports(beside, known)
            names, spawns = names | more, spawns or also
    return names, spawns


@dataclass(frozen=True)
class Launch:
    script: Path
    arguments: list[str]
    folder: Path
    launcher: str
    steps: int
    env: dict[str, str]
    say: Callable[[str], None]

    def command(self, np: int, script: str, logs: Path, work: Path) -> list[str]:
        end = [script, *(self.argument(word, work) for word in self.arguments)]
        worker = [sys.executable, "-u", *end]
        if self.launcher == "python":
            return worker
        if self.launcher == "torchrun":
            words, _ = programs.torchrun(np)
            logging = ["--log-dir", str(logs), "--tee", "3"]
            return [sys.executable, *words, *logging, "--no-python", *worker]
        words, _ = programs.horovodrun(np)
        return [sys.executable, *words, *launch.unparsed(worker)]

    def argument(self, word: str, work: Path) -> str:
        """Return an argument with its path in the copy, or absolute if it leads elsewhere."""
        if word.startswith(".."):
            word = os.path.normpath(self.folder / word)
        return re.sub(rf"{re.escape(str(self.folder))}(?=/|$)", str(work), word)

    def run(self, np: int, seconds: float) -> Seen:
        with tempfile.TemporaryDirectory(prefix="rn50-try-", ignore_cleanup_errors=True) as top:
            return self.run_in(Path(top).resolve(), np, seconds)

    def run_in(self, top: Path, np: int, seconds: float) -> Seen:
        records, workers, site, work = (top / x for x in ("records", "workers", "site", "work"))
        for path in (records, workers, site):
            path.mkdir()
        protected = [self.folder, *copy_folder(self.folder, work)]
        protected = [path for path in protected if not top.is_relative_to(path)]

        def prepare() -> None:
            make_read_only(protected)
            launch_env.end_with_parent()

        if self.script.is_relative_to(self.folder):
            script = work / self.script.relative_to(self.folder)
        else:
            script = self.script
        file = Path(__file__).parent / "recorder" / "__init__.py"
        text = SITE.format(file=str(file), folder=str(file.parent), launch_env=launch_env.__file__,
                           alone=self.launcher == "python")  # fmt: skip
        (site / "sitecustomize.py").write_text(text)
        lines: deque[str] = deque(maxlen=200)
        group = launch.WorkerGroup(
            self.command(np, str(script), top / "logs", work),
            self.environment(np, site, records, work),
            workers,
            show=lines.append,
            cwd=work,
            preexec_fn=prepare if sys.platform == "linux" else None,
        )
        try:
            ended = self.follow(group, records, np, seconds)
        finally:
            group.end()
        outcome = group.outcome() if ended else None
        if outcome is not None and outcome.failure:
            log = outcome.failure.replace(str(work), str(self.folder))
            raise RunFailed(f"{self.script.name} failed on {np} rank{'s' * (np > 1)}", log)
        printed = [line.replace(f"{work}/", "") for line in list(lines) or list(group.words)]
        return Seen(read(records, top, work), printed, ended)

    def environment(self, np: int, site: Path, records: Path, work: Path) -> dict[str, str]:
        threads = str(max(1, hardware.machine().cores // np))
        env = launch.with_library(dict(os.environ))
        return env | {
            "PYTHONPATH": os.pathsep.join([str(site), env["PYTHONPATH"]]),
            "PYTHONUNBUFFERED": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": env.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "120"),
            "RN50_TRY": str(records),
            "RN50_TRY_STEPS": str(self.steps),
            "RN50_TRY_FOLDER": str(work),
            "RN50_TRY_ORIGINAL": str(self.folder.resolve()),
            **({"HOME": self.argument(env["HOME"], work)} if "HOME" in env else {}),
            **dict.fromkeys(programs.THREADS, threads),
            **self.env,
        }

    def follow(self, group: launch.WorkerGroup, records: Path, np: int, seconds: float) -> bool:
        """Wait until the script has ended or was watched for long enough; return True if ended."""
        began, enough, told = time.monotonic(), None, 0.0
        while group.process.poll() is None:
            group.look()
            if group.failed():
                break
            counts = sorted((updates(path) for path in records.iterdir()), reverse=True)[:np]
            done = counts[-1] if len(counts) == np else 0
            now = time.monotonic()
            if now - told > programs.QUIET_S:
                told = now
                self.say(f"{done} of {self.steps} updates, {now - began:.0f} s")
            if done >= self.steps:
                enough = enough or now
                if now - enough >= seconds:
                    return False
            if now - began > TIME_LIMIT:
                self.say(f"ended after {TIME_LIMIT:.0f} s")
                return False
            time.sleep(POLL_S)
        group.wait([])
        return True


def read(records: Path, top: Path, work: Path) -> list[dict[str, Any]]:
    """What the recorders wrote down. Files of the script's folder have a path relative to it, and
    those that are empty (locks) or gone are left out, as are the launcher's own in `top`."""
    events = []
    for event in (json.loads(line) for path in records.iterdir() for line in path.open()):
        if event["kind"] == "file":
            path = Path(event["path"])
            inside = path.is_relative_to(work)
            if is_empty(path) or (path.is_relative_to(top) and not inside):
                continue
            event["path"] = str(path.relative_to(work) if inside else path)
        events.append(event)
    return events


def updates(path: Path) -> int:
    """How many updates a recorder has written down."""
    return sum(line.startswith(b'{"kind": "update"') for line in path.open("rb"))


def is_empty(path: Path) -> bool:
    """Whether a file holds nothing, as a lock does, or is gone, as what was only temporary."""
    if path.is_file():
        return path.stat().st_size == 0
    return not (path.is_dir() or list(path.parent.glob(f"{glob.escape(path.name)}*")))

"""Run a script on one or several ranks with a recorder in each process."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50lib import hardware
from rn50lib.distributed import launch_env
from workshop import programs
from workshop.errors import RunFailed
from workshop.observe.sandbox import copy_folder

POLL_S = 0.2
QUIET_S = 3.0  # progress is reported this often
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

worker = load("workshop.observe.launch_env", {launch_env!r})
if {alone} or worker.LaunchEnv.detect():
    worker.register()
    atexit.register(worker.record_end, 0)
    hook, sys.excepthook = sys.excepthook, record
load("workshop.observe.recorder", {file!r}, [{folder!r}]).begin()
"""


@dataclass
class ScriptRun:
    """A script and how to run it under observation, in a copy of `folder`.

    The first `steps` updates are recorded. Then the script may continue for `seconds`, so that its
    files are seen. After `limit` seconds it is ended in any case.
    """

    script: Path
    arguments: list[str]
    folder: Path
    launcher: str
    steps: int
    seconds: float
    limit: float = 300.0
    env: dict[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = lambda line: None

    def on_ranks(self, ranks: int) -> tuple[list[dict[str, Any]], bool]:
        """Run the script on `ranks` ranks; return the records, and whether it ended by itself.

        Raises RunFailed, with the traceback of the script as `log`, if a rank fails.
        """
        with tempfile.TemporaryDirectory(prefix="rn50-try-", ignore_cleanup_errors=True) as folder:
            top = Path(folder).resolve()
            records, workers, site, work = (
                top / name for name in ("records", "workers", "site", "work")
            )
            for path in (records, workers, site):
                path.mkdir()
            copy_folder(self.folder, work)

            file = Path(__file__).parent / "recorder" / "__init__.py"
            text = SITE.format(file=str(file), folder=str(file.parent),
                               launch_env=launch_env.__file__,
                               alone=self.launcher == "python")  # fmt: skip
            (site / "sitecustomize.py").write_text(text)
            group = launch.WorkerGroup(
                self.command(ranks, top / "logs", work),
                self.environment(ranks, site, records, work),
                workers,
                show=lambda line: None,
                cwd=work,
            )
            try:
                ended = self.follow(group, records, ranks)
            finally:
                group.end()
            failure = group.outcome().failure if ended else None
            if failure:
                log = failure.replace(str(work), str(self.folder))
                raise RunFailed(
                    f"{self.script.name} failed on {ranks} rank{'s' * (ranks > 1)}", log
                )
            return read(records, top, work), ended

    def command(self, ranks: int, logs: Path, work: Path) -> list[str]:
        """Return the command line that starts the copy of the script in `work`."""
        words = [self.in_copy(word, work) for word in [str(self.script), *self.arguments]]
        worker = [sys.executable, "-u", *words]
        if self.launcher == "python":
            return worker
        if self.launcher == "torchrun":
            start, _ = programs.torchrun(ranks)
            logging = ["--log-dir", str(logs), "--tee", "3"]
            return [sys.executable, *start, *logging, "--no-python", *worker]
        start, _ = programs.horovodrun(ranks)
        return [sys.executable, *start, *launch.unparsed(worker)]

    def in_copy(self, word: str, work: Path) -> str:
        """Return an argument with its path in the copy, or absolute if it leads elsewhere."""
        if word.startswith(".."):
            word = os.path.normpath(self.folder / word)
        return re.sub(rf"{re.escape(str(self.folder))}(?=/|$)", str(work), word)

    def environment(self, ranks: int, site: Path, records: Path, work: Path) -> dict[str, str]:
        """Return the environment of each rank, which names the recorder's folders."""
        threads = str(max(1, hardware.machine().cores // ranks))
        env = launch.with_library(dict(os.environ))
        return env | {
            "PYTHONPATH": os.pathsep.join([str(site), env["PYTHONPATH"]]),
            "PYTHONUNBUFFERED": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": env.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "120"),
            "RN50_TRY": str(records),
            "RN50_TRY_STEPS": str(self.steps),
            **({"HOME": self.in_copy(env["HOME"], work)} if "HOME" in env else {}),
            **dict.fromkeys(programs.THREADS, threads),
            **self.env,
        }

    def follow(self, group: launch.WorkerGroup, records: Path, ranks: int) -> bool:
        """Wait until the script has ended or was observed for long enough; True if it ended."""
        began = reported = time.monotonic()
        enough = None
        while group.process.poll() is None:
            group.look()
            if group.failed():
                break
            counts = sorted((updates(path) for path in records.iterdir()), reverse=True)[:ranks]
            done = counts[-1] if len(counts) == ranks else 0
            now = time.monotonic()
            if now - reported > QUIET_S:
                reported = now
                self.say(f"{done} of {self.steps} updates, {now - began:.0f} s")
            if done >= self.steps:
                enough = enough or now
                if now - enough >= self.seconds:
                    return False
            if now - began > self.limit:
                why = ": the ranks may wait for each other; do all make the same collective calls?"
                self.say(f"ended after {self.limit:.0f} s{why if not done else ''}")
                return False
            time.sleep(POLL_S)
        group.wait([])
        return True


def choose_launcher(script: Path) -> tuple[str, str]:
    """Return the launcher for what a script imports, and the reason."""
    text = script.read_text(encoding="utf-8", errors="replace")
    imports = "\n".join(re.findall(r"^\s*(?:import|from)\b.*", text, re.MULTILINE))
    if re.search(r"\bhorovod\b", imports):
        return "horovodrun", "the script imports Horovod"
    if re.search(r"\btorch(?:\.| import )(?:distributed|nn\.parallel)\b", imports):
        return "torchrun", "the script imports torch.distributed"
    chosen = "horovodrun" if find_spec("horovod") else "torchrun"
    return chosen, "the script imports neither Horovod nor torch.distributed"


def read(records: Path, top: Path, work: Path) -> list[dict[str, Any]]:
    """Return the recorded events, with paths relative to the script's folder.

    Files that are empty (locks) or gone are left out, as are the launcher's own in `top`.
    """
    events = []
    for event in (json.loads(line) for path in records.iterdir() for line in path.open()):
        if event["kind"] == "file":
            path = Path(event["path"])
            inside = path.is_relative_to(work)
            if not path.exists() or not path.stat().st_size:
                continue
            if path.is_relative_to(top) and not inside:
                continue
            event["path"] = str(path.relative_to(work) if inside else path)
        events.append(event)
    return events


def updates(path: Path) -> int:
    """Return how many updates a recorder has written down."""
    return sum(line.startswith(b'{"kind": "update"') for line in path.open("rb"))

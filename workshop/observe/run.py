"""Run a copy of a script on one or several ranks with a recorder in each process."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from rn50 import installed, launch
from rn50lib import lifetime
from rn50lib.distributed import launch_env
from rn50lib.errors import UserError
from workshop import programs
from workshop.errors import RunFailed

POLL_S, LIMIT_S = 0.2, 300.0
BYTES = 4 * 2**30  # a folder with more data than this is refused
LAUNCHERS = (*programs.LAUNCHERS, "python")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".git")

SITE = """\
import atexit, sys, traceback
import rn50_recorder
from rn50_recorder import launch_env, lifetime

def record(*error):
    atexit.unregister(lifetime.record_end)
    lifetime.record_end(1, "".join(traceback.format_exception(*error)))

me = launch_env.LaunchEnv.detect()
if {alone} or me:
    lifetime.register(me.rank if me else 0)
    atexit.register(lifetime.record_end, 0)
    sys.excepthook = record
rn50_recorder.Recorder()
"""


def run_ranks(
    script: Path, arguments: list[str], folder: Path, launcher: str,
    ranks: int, steps: int, seconds: float, added: dict[str, str], limit: float = LIMIT_S,
) -> tuple[list[dict[str, Any]], bool]:  # fmt: skip
    """Run a script in a copy of `folder`; return the events, and whether it ended by itself.

    After `steps` updates it may continue for `seconds`, so that its files are seen, but not for
    more than `limit` in all. `added` is added to the environment. Raises RunFailed, with the
    script's traceback or messages as `log`.
    """
    with tempfile.TemporaryDirectory(prefix="rn50-try-", ignore_cleanup_errors=True) as top:
        own, work = (Path(top).resolve() / name for name in ("own", "work"))
        copy_folder(folder, work)
        recorder = shutil.copytree(Path(__file__).parent / "recorder", own / "rn50_recorder")
        for file in (launch_env.__file__, lifetime.__file__):
            shutil.copy(file, recorder)
        (own / "sitecustomize.py").write_text(
            SITE.format(alone=launcher == "python"), encoding="utf-8"
        )
        env = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "120"} | launch.with_library(dict(os.environ))
        env |= programs.thread_limits(ranks) | {
            "PYTHONPATH": os.pathsep.join([str(own), env["PYTHONPATH"]]),
            "RN50_TRY": str(own),
            "RN50_TRY_STEPS": str(steps),
        }
        words = [in_copy(word, folder, work) for word in [str(script), *arguments]]
        line = command(launcher, ranks, words, own)
        printed: deque[str] = deque(maxlen=programs.KEPT_LINES)  # by the ranks
        group = launch.WorkerGroup(line, env | added, own, show=printed.append, cwd=work)
        try:
            ended = follow(group, own, ranks, steps, seconds, limit)
        finally:
            group.end()
        failure = group.outcome().failure if ended else ""
        # a thread of Gloo can abort a rank that the script spawned, at its very end
        if failure and not ("SIGABRT" in failure and recorded(own, steps) >= ranks):
            if failure.startswith("the launcher failed") and printed:  # a script that called exit
                failure = "\n".join(printed)
            elif "Traceback" not in failure:  # a rank that was killed: what it printed before
                failure = "\n".join([*printed, failure])
            log = failure.replace(str(work), str(folder))
            raise RunFailed(f"{script.name} failed on {ranks} ranks", log)
        return read(own, work), ended


def copy_folder(folder: Path, to: Path) -> None:
    """Copy a folder, and what links lead to, without environments, loops and unreadable files."""
    size = 0

    def left_out(where: str, names: list[str]) -> set[str]:
        nonlocal size
        gone, here = LEFT_OUT(where, names), Path(where).resolve()
        for path in (Path(where, name) for name in names):
            around = any(inner.is_relative_to(path.resolve()) for inner in (here, to))
            special = not (path.is_file() or path.is_dir())  # a pipe, a socket, a dangling link
            if (
                around or special or not os.access(path, os.R_OK)
                or (path / "pyvenv.cfg").exists()
            ):  # fmt: skip
                gone.add(path.name)
            else:
                size += path.stat().st_size
        if size > BYTES:
            advice = "run in a smaller folder and pass the data by its absolute path"
            raise UserError(f"{folder} has over {BYTES / 2**30:.0f} GiB to copy: {advice}")
        return gone

    try:
        shutil.copytree(folder, to, ignore=left_out)
    except shutil.Error as error:
        path, _, why = error.args[0][0]
        raise UserError(f"{path} cannot be copied: {why}; run in a folder without it") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be copied to {to}: {error.strerror}") from None


def check_inside(script: Path, folder: Path) -> None:
    """Raise UserError unless a script is in the folder that is copied for it."""
    if not script.parent.resolve().is_relative_to(folder):
        raise UserError(
            f"{script} is not in {folder}, of which `try` makes a copy to run in: change to the"
            " script's folder"
        )


def in_copy(word: str, folder: Path, work: Path) -> str:
    """Return an argument with its path in the copy, or absolute if it leads elsewhere."""
    if word.startswith(("..", "/")):  # through a link, it would lead to the original
        where, name = os.path.split(os.path.normpath(folder / word))
        word = os.path.join(os.path.realpath(where), name)
    return re.sub(rf"(^|[=:,]){re.escape(str(folder))}(?=/|$)", rf"\1{work}", word)


def choose_launcher(script: Path) -> str:
    """Return the launcher for what a script imports; python if it starts its ranks itself."""
    text = script.read_text(encoding="utf-8", errors="replace")
    joins = r"\binit_process_group\((?:[^()]|\([^()]*\))*\brank="  # with a rank of its own choice
    spawns = "torch.multiprocessing" in text and (
        re.search(r"\b(spawn|start_processes)\(", text)
        or (re.search(r"\bProcess\(", text) and re.search(joins, text))
    )
    if spawns and '"RANK"' not in text.replace("'", '"'):  # else it can also be started
        return "python"
    line = r"^\s*(?:import|from)\b.*"
    uses = r"\btorch(\.| import .*?\b)(distributed|nn\.parallel)\b|\binit_process_group\("
    wraps = r"\b(accelerate|lightning|pytorch_lightning)\b"  # these call it themselves
    imports = "\n".join(re.findall(line, text, re.MULTILINE))
    if not (re.search(uses, text) or re.search(rf"{wraps}|horovod|tensorflow", imports)):
        # its own modules may be where the framework is imported
        for name in set(re.findall(r"^\s*(?:import|from) +(\w+)", text, re.MULTILINE)):
            for file in (*script.parent.glob(f"{name}.py"), *script.parent.glob(f"{name}/**/*.py")):
                text += "\n" + file.read_text(encoding="utf-8", errors="replace")
        imports = "\n".join(re.findall(line, text, re.MULTILINE))
    distributed = re.search(uses, text) or re.search(wraps, imports)
    chosen = "horovod" not in imports and (distributed or "tensorflow" not in imports)
    return "torchrun" if chosen or not installed.has("horovod") else "horovodrun"


def command(launcher: str, ranks: int, words: list[str], own: Path) -> list[str]:
    """Return the command line that starts the copy of the script."""
    worker = [*lifetime.SUPERVISED, sys.executable, *words]
    if launcher == "python":
        return worker
    if launcher == "horovodrun":
        return launch.horovodrun(ranks, worker)
    return launch.torchrun(ranks, worker, own)


def follow(
    group: launch.WorkerGroup, own: Path, ranks: int, steps: int, seconds: float, limit: float
) -> bool:  # fmt: skip
    """Wait until the script has ended or was observed for long enough; True if it ended."""
    end, observed = time.monotonic() + limit, False
    while group.process.poll() is None and not group.failed():
        group.look(POLL_S)
        if not observed and recorded(own, steps) >= ranks:
            end, observed = min(end, time.monotonic() + seconds), True
        if time.monotonic() > end:
            return False
    group.wait([])
    return True


def recorded(own: Path, steps: int) -> int:
    """Return how many ranks have made so many updates."""
    texts = [path.read_bytes() for path in own.glob("*.jsonl")]
    return sum(
        text.count(b'{"kind": "update"') >= steps or b'{"kind": "sharded"' in text for text in texts
    )


def read(own: Path, work: Path) -> list[dict[str, Any]]:
    """Return the events, without files that are empty (locks) or gone.

    A line without its end is left out: its rank was killed while it wrote.
    """
    lines = [line for path in own.glob("*.jsonl") for line in path.open(encoding="utf-8")]
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    for event in events:
        if event["kind"] == "file":
            path = Path(event["path"])
            event["kind"] = "file" if path.exists() and path.stat().st_size else "no file"
            event["path"] = str(path).removeprefix(f"{work}/")
    return events

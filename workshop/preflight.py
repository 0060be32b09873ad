"""Whether a machine is ready for a class: what the doctor sees, and what a class needs beyond it.

The data of the course made once, for all to read and nobody to change; GPU leases in a folder that
all share; and notebook 02 really run, with its time.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib import lease_files
from rn50lib.hardware import machine
from rn50lib.tools import doctor
from rn50lib.tools.doctor.check import PROBLEM, Check, note, ok, problem
from workshop import places
from workshop.course import catalogue

TRIAL = "02"
PARTS = ("", "records", "tfrecord")  # of a data set, each with a mark when it is whole
SETS = ("roadsigns", "roadsigns-ci")
PREPARE = "run `rn50 workshop preflight --prepare` as the user who owns the data"


@dataclass(frozen=True)
class Machine:
    """What was found on one machine. `versions` by package; `seconds`: the preflight's own time."""

    name: str
    checks: tuple[Check, ...]
    versions: dict[str, str]
    seconds: float

    @property
    def ready(self) -> bool:
        return not any(check.status == PROBLEM for check in self.checks)

    def check(self, name: str) -> Check | None:
        """The finding of this name."""
        return next((check for check in self.checks if check.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        checks = [check.to_dict() for check in self.checks]
        told = {"machine": self.name, "ready": self.ready, "seconds": self.seconds}
        return told | {"versions": self.versions, "checks": checks}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Machine:
        """From `to_dict`'s. Raises KeyError or TypeError where it is something else."""
        checks = tuple(Check(**check) for check in told["checks"])
        return cls(told["machine"], checks, told["versions"], told["seconds"])


def here(quick: bool, needs_gpu: bool, versions: dict[str, str], say: Callable) -> Machine:
    """Look at this machine. `quick` imports no framework and runs no notebook."""
    begin = time.monotonic()
    data, _ = places.settle()
    found = [c for group in doctor.examine(quick) for c in group.checks if c.name != "data"]
    found += [gpu_there(needs_gpu), prepared(data), readable(data), leases()]
    if not quick:
        say(f"notebook {TRIAL} in profile ci …")
        found.append(trial())
    return Machine(socket.gethostname(), tuple(found), versions, round(time.monotonic() - begin, 1))


def gpu_there(needed: bool) -> Check:
    """The GPUs by name."""
    gpus = [gpu.name for gpu in machine().gpus]
    names = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
    if gpus:
        return ok("gpus", names, count=len(gpus), names=names)
    remedy = "see the lines on the driver; without --need-gpu the course runs on the processor"
    if needed:
        return problem("gpus", "no GPU that a run could use", remedy, count=0, names="none")
    return ok("gpus", "no GPU: the course runs on the processor", count=0, names="none")


# --- data -----------------------------------------------------------------------------------------


def prepared(data: Path) -> Check:
    """Whether the sets of the course, with their record files and shards, are made."""
    missing = [
        str(Path(name) / part)
        for name in SETS
        for part in PARTS
        if not (data / name / part / ".complete").exists()
    ]
    if missing:
        what = f"{data}: not made yet, or not whole: {', '.join(missing)}"
        return problem("prepared", what, PREPARE, home=str(data), missing=missing)
    return ok("prepared", f"{data}: the data of all notebooks is there", home=str(data))


def readable(data: Path) -> Check:
    """Whether every user may read all of the data, and none but its owner change it."""
    if not data.is_dir():
        return problem("readable", f"{data} is not there", PREPARE, home=str(data))
    closed, open_to_all = shut(data), []
    for name in SETS:
        for folder, _, files in os.walk(data / name):
            for path in (Path(folder), *(Path(folder, file) for file in files)):
                mode = path.stat().st_mode
                wanted = 0o005 if stat.S_ISDIR(mode) else 0o004
                if mode & wanted != wanted:
                    closed.append(path)
                if mode & 0o002:
                    open_to_all.append(path)
    facts = {"closed": len(closed), "open_to_all": len(open_to_all)}
    if closed:
        what = f"not every user may read {closed[0]}"
        what += f" and {len(closed) - 1} more" if len(closed) > 1 else ""
        return problem(
            "readable", what, f"chmod -R a+rX {data}, and a+x the folders above", **facts
        )
    if open_to_all:
        what = f"every user may change {open_to_all[0]}, and so spoil the others' data"
        return note("readable", what, f"chmod -R go-w {data}", **facts)
    return ok("readable", f"{data}: every user may read it, only its owner change it", **facts)


def shut(folder: Path) -> list[Path]:
    """This folder and those on the way to it, as far as others cannot pass them."""
    folder = folder.resolve()
    return [path for path in (folder, *folder.parents) if not path.stat().st_mode & 0o001]


def prepare(say: Callable) -> None:
    """Make the data of all notebooks where it is missing, and let every user read it.

    Raises UserError where that cannot be done.
    """
    from data_prep import im2rec, roadsigns, tfrecord
    from workshop import session

    data, _ = places.settle()
    for name in SETS:
        root = data / name
        say(f"{root} …")
        with redirect_stdout(sys.stderr):
            session.ensure_small(root) if name.endswith("-ci") else roadsigns.ensure(root)
            im2rec.ensure_records(root)
            tfrecord.ensure_tfrecord(root)
        for folder, _, files in os.walk(root):
            for path in (Path(folder), *(Path(folder, file) for file in files)):
                mode = path.stat().st_mode
                wanted = (mode | (0o555 if stat.S_ISDIR(mode) else 0o444)) & ~0o022
                if wanted != mode:
                    path.chmod(wanted)


# --- GPUs that several share ----------------------------------------------------------------------


def leases() -> Check:
    """Whether runs of different users can wait for each other's GPU."""
    if not machine().gpus:
        return ok("leases", "no GPU, so none is leased")
    folder = lease_files.home()
    try:
        lease_files.make(folder / "queue")
        mode = folder.stat().st_mode & (folder / "queue").stat().st_mode
        os.close(lease_files.open_shared(folder / "queue" / f".preflight-{os.getpid()}"))
        (folder / "queue" / f".preflight-{os.getpid()}").unlink()
    except OSError as error:
        return leases_shut(f"{folder}: {error.strerror or error}")
    if mode & 0o003 != 0o003:
        return leases_shut(f"{folder}: not every user may write there")
    return ok("leases", f"GPUs are leased in {folder}, one run at a time", place=str(folder))


def leases_shut(what: str) -> Check:
    remedy = f"chmod 1777 it and its folder queue, or set {lease_files.PLACE} to another for all"
    return problem("leases", f"runs of different users would collide: {what}", remedy)


# --- a notebook, really run -----------------------------------------------------------------------


def trial() -> Check:
    """Run notebook 02 in profile ci, with runs of its own, and tell the time."""
    lesson = catalogue.lesson(TRIAL)
    name = f"notebook{TRIAL}"
    with tempfile.TemporaryDirectory(prefix="rn50-preflight-") as folder:
        words = ["workshop", "run", TRIAL, "--profile", "ci", "--out", f"{folder}/out"]
        done = subprocess.run(
            [sys.executable, "-m", "rn50lib.cli", *words],
            env=os.environ | {"RN50_RUNS": f"{folder}/runs"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
            cwd=places.need_checkout(),
        )  # fmt: skip
        try:
            (told,) = json.loads(Path(folder, "out", "catalogue.json").read_text())["notebooks"]
        except (OSError, ValueError, KeyError):
            said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
            return problem(name, f"notebook {TRIAL} did not start: {said}", "run `rn50 doctor`")
    seconds = told["seconds"]
    facts: dict[str, Any] = {"seconds": seconds, "budget": lesson.ci_seconds}
    what = f"notebook {TRIAL} in profile ci took {seconds:.0f} s"
    again = f"rn50 workshop run {TRIAL} --profile ci"
    if told["status"] != "passed":
        why = told["error"]["text"] if told["error"] else "it does not say why"
        what = f"notebook {TRIAL} in profile ci: {told['status']}: {why}"
        return problem(name, what, f"see `{again}`", **facts)
    if seconds > lesson.ci_seconds:
        what += f", more than the {lesson.ci_seconds} s that are meant for it"
        return note(name, what, "close what else runs here, or plan more time", **facts)
    return ok(name, what, **facts)

"""Sets up `.venv` with all that the workbook needs; does only what is not done yet.

    python3 scripts/setup.py [--plan]      (`make setup`)

Standard library only. `ordinary.py` and `container.py` say what is done and why; a step whose stamp
stands is not repeated.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - before anything that an older Python cannot read
    sys.exit("error: Python 3.10 or later is needed; name one with `make PYTHON=python3.12`")

import argparse
import contextlib
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import container
import facts
import ordinary
import plan
import steps
from requirements import ROOT

PINS_RUN_ON = ((3, 11), (3, 12))  # NumPy 2.4 needs 3.11; nvidia-dali-cuda110 has no wheel for 3.13
ROOM_GB = 7  # environment 4, wheels being unpacked, Horovod's build


def main() -> int:
    """Run the program; returns the exit code."""
    arguments = parse()
    venv = Path(os.path.abspath(arguments.venv))
    use_base_python(venv)
    here = facts.gather()
    if not here.container:
        use_python_of_the_pins()
    try:
        todo = make_plan(arguments, here, venv)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.plan:
        print(plan.describe(todo, here, venv))
        return 0
    if venv.exists() and not os.access(venv, os.W_OK):
        print(f"{venv} belongs to the image and is used as it is.", flush=True)
        return 0
    start = time.monotonic()
    venv.parent.mkdir(parents=True, exist_ok=True)
    with locked(venv):
        code = apply(arguments, here, todo, venv)
    if code == 0:
        if time.monotonic() - start > 2:
            print(f"Ready after {time.monotonic() - start:.0f} s.", flush=True)
        (plan.state(venv) / "seconds").write_text(f"{time.monotonic() - start:.1f}\n")
    return code


def parse() -> argparse.Namespace:
    """The command line; make hands its variables on through the environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", default=str(ROOT / ".venv"), help="where (default: .venv)")
    parser.add_argument("--plan", action="store_true", help="print what would be done; do nothing")
    parser.add_argument(
        "--dali",
        default=os.environ.get("DALI", ""),
        help="cuda110, cuda120, cuda130, none, or a requirement (default: by driver)",
    )
    parser.add_argument(
        "--with",
        dest="with_",
        metavar="NAMES",
        default=os.environ.get("WITH", ""),
        help="in a container, frameworks to add that it lacks: 'torch tensorflow dali'",
    )
    parser.add_argument("--retry", action="store_true", help="try again what failed before")
    return parser.parse_args()


def make_plan(arguments: argparse.Namespace, here: facts.Facts, venv: Path) -> plan.Plan:
    """The plan for this machine. Raises ValueError for a --dali of an unknown form."""
    if here.container:
        return container.make(here, venv, arguments.dali, tuple(arguments.with_.split()))
    return ordinary.make(here, venv, arguments.dali)


def apply(arguments: argparse.Namespace, here: facts.Facts, todo: plan.Plan, venv: Path) -> int:
    """Make or adopt the environment, then run the steps that are not done; the exit code."""
    log = plan.state(venv) / "setup.log"
    stamps = steps.Stamps(plan.state(venv))
    fresh = not usable(venv, here, todo)
    if fresh:
        free = shutil.disk_usage(venv.parent).free / 1e9
        if free < ROOM_GB and not here.container:
            print(f"error: {ROOM_GB} GB are needed at {venv.parent}, {free:.1f} GB are free")
            return 2
        headline(here, todo, venv)
        if not create(venv, here, todo):
            return 1
    plan.state(venv).mkdir(exist_ok=True)
    done = stamps.read()
    if all(settled(step, done, arguments.retry) for step in todo.steps):
        if arguments.retry:
            print(f"Nothing to do: {', '.join(step.name for step in todo.steps)} are done.")
    elif not fresh:
        headline(here, todo, venv)
    before = distributions(venv) if here.container else {}
    queue = list(todo.steps)
    while queue:
        step = queue.pop(0)
        if settled(step, done, arguments.retry):
            if done[step.name].startswith("failed:"):
                print(f"note: {step.name} failed earlier ({log}): {step.remedy}")
            continue
        for name, text in todo.files.items():
            (plan.state(venv) / name).write_text(text)
        ok = steps.run(step.name, step.commands, log, step.remedy, step.fatal)
        if not ok and step.fatal:
            return 1
        stamps.write(step, failed=not ok)
        if step.name.startswith("apt") and ok:  # what stands on it can be planned now
            todo = make_plan(arguments, facts.gather(), venv)
            queue = [s for s in todo.steps if not s.name.startswith("apt")]
    if here.container:
        report_added(venv, before)
    return 0


def settled(step: plan.Step, done: dict[str, str], retry: bool) -> bool:
    """Whether a step needs no run: done, or failed before and not to be tried again."""
    if retry and step.name == "horovod" and any(name.startswith("HOROVOD_") for name in os.environ):
        return False  # to be built in another way
    return done.get(step.name) in (step.stamp, *([] if retry else [f"failed:{step.stamp}"]))


def headline(here: facts.Facts, todo: plan.Plan, venv: Path) -> None:
    """Say where, on what, from which versions, and what is kept."""
    print(f"Setting up {venv} ({here.words}; {todo.source})")
    for note in todo.notes:
        print(f"  {note}")
    if todo.kept:
        asked = [f"{name} {version}" for name, version in sorted(todo.kept.items())]
        print(f"  Kept from the base Python ({len(asked)}): {', '.join(asked)}")
    sys.stdout.flush()


def report_added(venv: Path, before: dict[str, str]) -> None:
    """Say what the environment holds of its own that it did not hold before."""
    added = {n: v for n, v in distributions(venv).items() if before.get(n) != v}
    if added:
        names = ", ".join(f"{name} {version}" for name, version in sorted(added.items()))
        print(f"  Added in {venv.name} ({len(added)}): {names}", flush=True)


def distributions(venv: Path) -> dict[str, str]:
    """Name -> version of what is installed in the environment itself."""
    found = {}
    for folder in venv.glob("lib/python3*/site-packages/*.dist-info"):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        found[name] = version
    return found


# --- the environment ------------------------------------------------------------------------------


def usable(venv: Path, here: facts.Facts, todo: plan.Plan) -> bool:
    """Whether an environment of this Python and kind is there already."""
    if is_conda(venv):
        return True
    try:
        text = (venv / "pyvenv.cfg").read_text()
    except OSError:
        return False
    lines = (line.partition("=") for line in text.splitlines())
    config = {name.strip(): value.strip() for name, _, value in lines}
    return (
        config.get("version") == here.python
        and config.get("include-system-site-packages") == str(todo.system_site).lower()
        and (venv / "bin" / "python").exists()
        and (todo.system_site or any(venv.glob("lib/python3*/site-packages/pip")))
    )


def is_conda(venv: Path) -> bool:
    """Whether this is the active conda environment, which is used as it is."""
    return (venv / "conda-meta").is_dir() and Path(sys.prefix) == venv.resolve()


def create(venv: Path, here: facts.Facts, todo: plan.Plan) -> bool:
    """Make the environment anew; what was there before under that name is removed."""
    command = [sys.executable, "-m", "venv", "--clear", str(venv)]
    # Inside a container its own pip serves, seen through the system's site-packages.
    command[3:3] = ["--system-site-packages", "--without-pip"] if todo.system_site else []
    commands = [command]
    remedy = "Debian and Ubuntu need the package python3-venv: `apt-get install python3-venv`"
    if importlib.util.find_spec("ensurepip") is None and not todo.system_site and here.may_apt:
        name = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        commands[:0] = [["apt-get", "-q", "update"], ["apt-get", "-q", "install", "-y", name]]
    # The log starts outside, because --clear empties the folder.
    log = venv.with_name(f"{venv.name}-create.log")
    log.unlink(missing_ok=True)
    if not steps.run("virtual environment", commands, log, remedy, fatal=True):
        return False
    log.unlink(missing_ok=True)
    if here.base_sites:  # the base Python is itself a virtual environment
        site = next(venv.glob("lib/python3*/site-packages"))
        (site / "rn50_base_sites.pth").write_text("\n".join(here.base_sites) + "\n")
    return True


@contextlib.contextmanager
def locked(venv: Path) -> Iterator[None]:
    """Let one set-up at a time work on an environment; a second one waits and says so."""
    import fcntl

    with venv.with_name(f"{venv.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is working on this environment; waiting for it.", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- which Python ---------------------------------------------------------------------------------


def use_base_python(venv: Path) -> None:
    """Start over with the Python under `.venv` if `.venv` itself runs this (it may be active)."""
    base = getattr(sys, "_base_executable", sys.executable)
    if Path(sys.prefix) == venv.resolve() and base != sys.executable:
        os.execv(base, [base, *sys.argv])


def use_python_of_the_pins() -> None:
    """Start over with a Python for which the pinned versions have wheels, if this is none."""
    if sys.version_info[:2] in PINS_RUN_ON:
        return
    for major, minor in PINS_RUN_ON:
        python = shutil.which(f"python{major}.{minor}")
        if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            os.execv(python, [python, *sys.argv])
    have = ".".join(map(str, sys.version_info[:2]))
    sys.exit(
        f"error: the pinned versions need Python 3.11 or 3.12, and this is {have}:"
        " install one of them, or name it with `make PYTHON=/path/to/python3.12`"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nStopped; `make setup` goes on from here.")

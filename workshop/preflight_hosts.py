"""`rn50 workshop preflight`: one machine or many, asked over ssh, in a table or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rn50lib.errors import UserError
from rn50lib.tools.benchmark.table import aligned
from rn50lib.tools.doctor.check import OK, Check, problem, size
from workshop import places, preflight
from workshop.preflight import Machine

LIMIT_S = 900.0  # for one host; notebook 02 has a limit of its own
AT_ONCE = 16
HANDED_ON = ("RN50_DATA", "RN50_LEASES")  # so that all look at the same places
HEAD = ("machine", "ready", "GPU", "driver", "data", "disk", "/dev/shm", "lab port", "notebook 02")


def main(args: argparse.Namespace, versions: dict[str, str]) -> int:
    """Ask, print, and return the exit status. Raises UserError for a wrong command."""
    if args.prepare and args.hosts:
        raise UserError("--prepare makes data here: run it on the machine that holds the data")
    if args.prepare:
        preflight.prepare(say)
    if args.hosts:
        folder = args.dir or str(places.need_checkout())
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(lambda host: ask(host, folder, args), args.hosts))
    else:
        found = [preflight.here(args.quick, args.need_gpu, versions, say)]
    ready = all(item.ready for item in found)
    if args.json:
        machines = [item.to_dict() for item in found]
        print(json.dumps({"ready": ready, "machines": machines}, indent=2))
    else:
        print("\n".join(lines(found)))
    return 0 if ready else 1


def ask(host: str, folder: str, args: argparse.Namespace) -> Machine:
    """What a host says of itself; where it says nothing, that is the problem."""
    given = [f"{name}={os.environ[name]}" for name in HANDED_ON if os.environ.get(name)]
    words = ["env", *given, f"{folder}/.venv/bin/rn50", "workshop", "preflight", "--json"]
    words += ["--quick"] * args.quick + ["--need-gpu"] * args.need_gpu
    # ssh hands one string to the shell over there, so the words are quoted for it
    command = [*shlex.split(args.ssh), host, shlex.join(words)]
    say(f"{host} …")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
        )
        (told,) = json.loads(done.stdout)["machines"]
        item = Machine.from_dict(told)
        return Machine(host, item.checks, item.versions, item.seconds)
    except subprocess.TimeoutExpired:
        why = f"no answer within {LIMIT_S:g} s"
    except OSError as error:
        raise UserError(f"--ssh {args.ssh}: it does not start: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        why = f"it answered with status {done.returncode}: {said}"
    remedy = f"try `{shlex.join([*shlex.split(args.ssh), host, 'true'])}`, and look at --dir"
    return Machine(host, (problem("reached", why, remedy),), {}, 0.0)


# --- for people -----------------------------------------------------------------------------------


def lines(found: Sequence[Machine]) -> list[str]:
    """The table, then what is to be seen to on each machine, then the verdict."""
    shown = [list(HEAD), *(row(item) for item in found)]
    told = [line.rstrip() for line in aligned(shown)]
    for item in found:
        open_points = [check for check in item.checks if check.status != OK]
        if open_points:
            told += ["", item.name, *(f"  {check}" for check in open_points)]
    told += ["", *unlike(found)]
    ready = sum(item.ready for item in found)
    return [*told, f"{ready} of {len(found)} machine{'s' * (len(found) > 1)} ready for a class"]


def row(item: Machine) -> list[str]:
    """A machine in the table; a dash where nothing is known."""
    trial, data = item.check(f"notebook{preflight.TRIAL}"), item.check("prepared")
    seconds = fact(trial, "seconds")
    free, shm = fact(item.check("runs"), "free"), fact(item.check("shared-memory"), "size")
    port = item.check("port")
    return [
        item.name,
        "yes" if item.ready else "no",
        str(fact(item.check("gpus"), "names") or "-"),
        str(fact(item.check("driver"), "driver") or "-"),
        "-" if data is None else "yes" if data.status == OK else "no",
        size(free) if free else "-",
        size(shm) if shm else "-",
        "-" if port is None else "free" if port.status == OK else "taken",
        "-" if trial is None else f"{seconds:.0f} s" if trial.status != "problem" else "failed",
    ]


def fact(check: Check | None, name: str) -> Any:
    """A number behind a finding; None where there is none."""
    return None if check is None else check.facts.get(name)


def unlike(found: Sequence[Machine]) -> list[str]:
    """A line for each package that is not of one version on all machines that told theirs."""
    told = [item for item in found if item.versions]
    names = dict.fromkeys(name for item in told for name in item.versions)
    different = []
    for name in names:
        by_version: dict[str, list[str]] = {}
        for item in told:
            by_version.setdefault(item.versions.get(name, "none"), []).append(item.name)
        if len(by_version) > 1:
            where = "; ".join(f"{v} on {', '.join(hosts)}" for v, hosts in by_version.items())
            different.append(f"note:    {name} differs: {where}")
    return [*different, ""] if different else []


def say(line: str) -> None:
    """What is going on; not on stdout, which may be JSON."""
    print(line, file=sys.stderr, flush=True)

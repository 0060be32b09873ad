"""Run a command and report where its ranks wait, its threads and its memory.

    python watch.py [--idle SECONDS] COMMAND ...

If the Python stack of no rank has changed for SECONDS (5), the command is ended as hanging, and the
line at which each rank was is printed. Linux only.
"""

import argparse
import contextlib
import linecache
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SITE = """
import faulthandler, os, signal
faulthandler.register(signal.SIGUSR1, open(os.path.join({folder!r}, str(os.getpid())), "w"),
                      all_threads=False)
"""
RANK = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
MB, POLL_S = 2**20, 0.2


def tree(pid):
    """Return a process and all that it started, the first last."""
    with contextlib.suppress(psutil.Error):
        return [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    return []


def running_threads(pid):
    """Return how many threads of a process run or wait for a core."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return sum(stat.rpartition(")")[2].split()[0] == "R" for stat in stats)


def handles(pid, folder):
    """Return True if a process has the handler: one that calls exec loses it, the signal ends it."""
    with contextlib.suppress(OSError):
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        return (folder / str(pid)).exists() and int(caught[1], 16) & 1 << signal.SIGUSR1 - 1
    return False


def stacks(processes, folder, script):
    """Return {process: Python stack} of those that are in the script."""
    asked = [process for process in processes if handles(process.pid, folder)]
    sizes = [(folder / str(process.pid)).stat().st_size for process in asked]
    for process in asked:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGUSR1)
    time.sleep(POLL_S)
    found = [(folder / str(process.pid)).read_text()[size:]
             for process, size in zip(asked, sizes, strict=True)]  # fmt: skip
    return {process: stack for process, stack in zip(asked, found, strict=True)
            if any(f'{name}", line' in stack for name in script)}  # fmt: skip


def where(process, stack, script):
    """Return the line of the script at which a process is, with its rank."""
    for file, number in re.findall(r'File "(.*?)", line (\d+)', stack):
        if Path(file).name in script:
            rank = next(filter(None, map(process.environ().get, RANK)), "?")
            line = linecache.getline(file, int(number)).strip()
            return f"rank {rank} is at {Path(file).name}:{number}: {line}"


def main():
    parser = argparse.ArgumentParser(description="Run a command and report what its processes do.")
    parser.add_argument(
        "--idle", type=float, default=5.0, help="seconds until it counts as hanging"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="watch-"))
    (folder / "sitecustomize.py").write_text(SITE.format(folder=str(folder)))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    job = subprocess.Popen(args.command, env={**os.environ, "PYTHONPATH": path})
    script = [Path(word).name for word in args.command if word.endswith(".py")]
    threads, memory, before, since = [], {}, {}, time.monotonic()
    while job.poll() is None and time.monotonic() - since < args.idle:
        processes, total = tree(job.pid), 0
        for process in processes:
            with contextlib.suppress(psutil.Error, OSError):
                total += running_threads(process.pid)
                memory.setdefault(process.pid, []).append(process.memory_full_info())
        threads.append(total)
        now = stacks(processes, folder, script)
        if not now or now != before:
            since, before = time.monotonic(), now
    hangs = job.poll() is None
    if hangs:
        print(f"watch: no rank has moved for {args.idle:g} s", flush=True)
        for line in sorted(where(process, stack, script) for process, stack in before.items()):
            print(f"watch: {line}", flush=True)
        for group in (before, processes):  # the launcher last: it passes on what the ranks printed
            for process in group:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs([psutil.Process(job.pid)] if job.poll() is None else [], timeout=3)
    wanted = sorted(filter(None, threads)) or [0]
    cores = len(os.sched_getaffinity(0))
    print(f"watch: {wanted[len(wanted) * 9 // 10]} threads at a time want one of {cores} cores")
    for pid, seen in memory.items():
        grown, shared = seen[-1].uss - seen[0].uss, (seen[0].pss - seen[0].uss)
        if grown > 20 * MB and seen[0].uss < shared and seen[0].rss > 100 * MB:  # a fork
            sizes = " ".join(f"{m.pss / MB:.0f}" for m in seen[:: max(1, len(seen) // 8)])
            print(f"watch: process {pid}: PSS in MB over time: {sizes}; {grown / MB:.0f} MB that it"
                  " shared with its parent became its own")  # fmt: skip
    return 124 if hangs else job.returncode


if __name__ == "__main__":
    sys.exit(main())

"""Report where a command's ranks wait, its threads, memory and disk reads: watch.py COMMAND ...

If no rank's Python stack changes for 5 seconds, the ranks either hang or do something slow: their
positions are printed, and the command continues. `watch.py --end SECONDS COMMAND ...` ends it if
none changes for that long. Linux only.
"""

import contextlib
import linecache
import os
import re
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

# every Python process runs this when it starts, then writes its stack whenever it gets the signal
SITE = """
import faulthandler, os, signal
stacks = open(os.path.join({folder!r}, str(os.getpid())), "w")
faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)
"""
RANK = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
IDLE_S, MB = 5, 2**20
limit = float(sys.argv[2]) if sys.argv[1] == "--end" else float("inf")
command = sys.argv[3:] if sys.argv[1] == "--end" else sys.argv[1:]
folder = Path(tempfile.mkdtemp(prefix="watch-"))


def running_threads(pid):
    """Return how many threads of a process run or wait for a core."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return sum(stat.rpartition(")")[2].split()[0] == "R" for stat in stats)


def position(process):
    """Return the stack and where it is in the script, None outside of it; ask for the next."""
    path, status = folder / str(process.pid), Path(f"/proc/{process.pid}/status").read_text()
    caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)  # exec removes the handler
    if not path.exists() or not caught & 1 << signal.SIGUSR1 - 1:
        return None
    stack = path.read_text().rpartition("Stack (")[2]
    process.send_signal(signal.SIGUSR1)
    for file, number in re.findall(r'File "(.*?)", line (\d+)', stack):
        if any(file.endswith(word) for word in command if word.endswith(".py")):
            rank = next(filter(None, map(process.environ().get, RANK)), "?")
            line = linecache.getline(file, int(number)).strip()
            return stack, f"watch: rank {rank} is at {Path(file).name}:{number}: {line}"


(folder / "sitecustomize.py").write_text(SITE.format(folder=str(folder)))
path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
job = psutil.Popen(command, env={**os.environ, "PYTHONPATH": path})
threads, memory, before, since, reported = [0], {}, {}, time.monotonic(), False
while job.poll() is None:
    time.sleep(0.2)
    processes, now, running = [*job.children(recursive=True), job], {}, 0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):  # it may have ended
            running += running_threads(process.pid)
            memory.setdefault(process.pid, []).append(process.memory_full_info())
            now[process] = position(process)
    now = {process: found for process, found in now.items() if found}
    threads.append(running)
    if not now or now != before:
        if reported and now:
            print("watch: the ranks move again", flush=True)
        since, before, reported = time.monotonic(), now, False
    elif time.monotonic() - since > IDLE_S and not reported:
        lines = sorted(line for _, line in before.values())
        print(f"watch: no rank has moved for {IDLE_S} s", *lines, sep="\n", flush=True)
        reported = True
    if now and time.monotonic() - since > max(limit, IDLE_S):
        break
if job.poll() is None:
    for group in (before, processes):  # the launcher last: it passes on what the ranks printed
        for process in group:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs([job], timeout=3)
busy, cores = sorted(threads)[len(threads) * 9 // 10], len(os.sched_getaffinity(0))
print(f"watch: {busy} threads compete for {cores} cores")
blocks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock  # of 512 bytes
print(f"watch: {blocks // 2048} MB were read from the disk, not from memory")
for pid, seen in memory.items():
    grown = max(sample.uss for sample in seen) - seen[0].uss  # the last one may be of its end
    shared = seen[0].pss - seen[0].uss
    if grown > 20 * MB and seen[0].uss < shared and seen[0].rss > 100 * MB:  # a fork
        print(f"watch: process {pid}: {grown // MB} MB of shared memory became private;", end=" ")
        print("PSS (# is 10 MB):")
        for sample in seen[:: max(1, len(seen) // 6)]:
            print(f"watch: {sample.pss // MB:4} MB {'#' * (sample.pss // (10 * MB))}")
sys.exit(job.returncode)

"""Contestants in turns: each once per round, in a different order each time.

Then medians, and ratios with their range: all on the same machine in the same minutes.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import multiprocessing
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIGNS = Path(os.environ.get("RN50_DATA", ROOT / "data")) / "roadsigns"
CORES = sorted(os.sched_getaffinity(0))
PACKAGES = {  # of peers: the module, and what pip installs
    "simplejpeg + OpenCV": ("cv2", "opencv-python-headless"),
    "torchvision": ("torchvision", "--no-deps torchvision==0.28.0"),
    "dynamic DALI": ("nvidia.dali.experimental.dynamic", "nvidia-dali-cuda120==2.4.0"),
    "SPDL": ("spdl", "spdl opencv-python-headless"),
    "ONNX Runtime": ("onnxruntime", "onnx onnxruntime onnxscript"),
    "OpenVINO": ("openvino", "onnx onnxscript openvino"),
}


interrupted = False  # did Ctrl-C end the rounds?


# --- contestants ----------------------------------------------------------------------------------


def new_process() -> ProcessPoolExecutor:
    """Return an executor with one new process, which starts at the first task.

    Ctrl-C ends this program, not what the process has begun: see `end_processes`.
    """
    ignore = (signal.SIGINT, signal.SIG_IGN)
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), signal.signal, ignore)


def end_processes() -> None:
    """End the processes, also in the middle of a compilation, whose result is not needed."""
    for process in multiprocessing.active_children():
        process.kill()


def alone(function: Callable, *args: object):
    """Return what a module's function returns in a new process."""
    with new_process() as pool:
        return pool.submit(function, *args).result()


def output(command: Iterable[object], cores: int | None = None) -> str:
    """Run a command on the first `cores` cores, or on all; return its standard output."""
    words = ["taskset", "-c", ",".join(map(str, CORES[:cores])), *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: this failed: {' '.join(words)}\n{done.stderr}")
    return done.stdout


def timed(
    work: Callable[[], object],
    cpu: bool,
    calls: int = 1,
    wait: Callable[[], object] | None = None,
) -> float:
    """Return the seconds of one call, or the processor seconds; `wait` ends what calls began."""
    clock = processor_seconds if cpu else time.perf_counter
    begin = clock()
    for _ in range(calls):
        work()
    if wait:
        wait()
    return (clock() - begin) / calls


def processor_seconds() -> float:
    """Return those of this process and of its children that have ended."""
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(who)[:2]) for who in both)


def import_torchvision():
    """Return torchvision; exit with the remedy if it is missing or does not fit PyTorch's build."""
    try:
        import torchvision
    except ModuleNotFoundError:
        sys.exit(f"error: this needs `pip install {PACKAGES['torchvision'][1]}`")
    except RuntimeError as error:  # its operators are for a different build, such as CUDA
        sys.exit(f"error: torchvision and PyTorch are of different builds ({error}): install"
                 " torchvision from the index that this PyTorch comes from")  # fmt: skip
    return torchvision


# --- the comparison -------------------------------------------------------------------------------


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags that all comparisons have."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", nargs="+", help="contestants by name, or by a part of it")
    return parser


def set_environment(threads: int = 1) -> None:
    """Set what all contestants inherit: threads, and the allocator setting of `rn50 run`.

    As there, your own settings stay.
    """
    from rn50.allocator import ALLOCATOR
    from rn50.launch import with_library

    os.environ.setdefault("GLIBC_TUNABLES", ALLOCATOR)
    os.environ |= {"OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3"}
    os.environ |= with_library(dict(os.environ))


def draw_signs(root: Path) -> int:
    """Draw the built-in road signs in `root` unless they are there; return the training images."""
    from data_prep.roadsigns import ensure

    sizes = [file.stat().st_size for file in ensure(root).glob("train/*/*.jpg")]
    print(f"{len(sizes):,} JPEGs of about 500 x 375 and {statistics.mean(sizes) / 1000:.0f} KB")
    return len(sizes)


def chosen(names: Iterable[str], args: argparse.Namespace) -> list[str]:
    """Return the names that --only keeps and whose packages are installed.

    A NAME that no contestant has keeps those whose names contain it.
    """
    names, found = list(names), []
    for name in names:
        parts = [part for part in args.only or () if part not in names]
        if not args.only or name in args.only or any(part in name for part in parts):
            module, package = PACKAGES.get(name, ("json", ""))
            if installed(module):
                found.append(name)
            else:
                print(f"{name}: left out: `pip install {package}`")
    return found or sys.exit("error: --only: no contestant has such a part in its name")


def installed(module: str) -> bool:
    """Return True if a module is there; its packages, if any, are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def run_rounds(contestants: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contestant in each round, after an uncounted one.

    Prints the date, the processor and how busy it is, before and after. Ctrl-C, or the SIGINT of a
    time limit, ends the rounds: those that are complete are returned, and `print_table` then ends
    the program.
    """
    global interrupted
    from rn50lib.hardware import machine

    here, load = machine(), os.getloadavg()[0]
    print(f"{datetime.date.today()}, {here.processor}, {here.bfloat16 or 'no bfloat16'},"
          f" {here.cores} cores of {os.cpu_count()}, load {load:.1f}", flush=True)  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    try:
        for number in range(rounds + 1):
            for name in random.Random(number).sample(list(seconds), len(seconds)):
                value = contestants[name]()
                os.sync()  # no contestant pays for what another left to be written
                if number:
                    seconds[name].append(value)
    except KeyboardInterrupt:
        complete = min(map(len, seconds.values()))
        if not complete:
            raise
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # `timeout` sends it twice
        print(f"interrupted after {complete} of {rounds} rounds")
        interrupted = True
        seconds = {name: values[:complete] for name, values in seconds.items()}
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    return seconds


def print_table(
    seconds: dict[str, list[float]],
    pairs: Iterable[tuple[str, str]],
    what: str,
    count: int = 1,
) -> None:
    """Print medians and rates, and the speed of `own` over `peer` for the pairs that took part."""
    width = max(map(len, seconds))
    for name, values in seconds.items():
        middle = statistics.median(values)
        print(f"{name:{width}}  {middle:9.4g} s  {count / middle:9,.1f} img/s")
    for own, peer in pairs:
        if own in seconds and peer in seconds:
            ratios = [a / b for a, b in zip(seconds[peer], seconds[own], strict=True)]
            middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
            print(f"SUMMARY {what}: {own} / {peer} = {middle:.2f} ({low:.2f} to {high:.2f}),"
                  f" n = {len(ratios)}", flush=True)  # fmt: skip
    if interrupted:
        sys.exit(130)

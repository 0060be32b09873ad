"""All that waits for a GPU, in one go: what to run on a machine that is lent for half an hour.

    python3 scripts/gpu_day.py --wheels WHEELS [--minutes 29] [--out gpu_day.json]

It needs no network: pip takes what it has not from the folder WHEELS (docs/platforms.md says how to
fill it); --python takes an environment that is there already. Standard library only.

The file holds each step's command, seconds, status, figures and last lines, and is written anew
after every step. A step that fails or takes too long does not stop the others; called again with
the same file, the program runs those that have not passed. --cpu tries all of it, small, without a
GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from requirements import ROOT

PICTURES = (
    "import sys, pathlib, loader_images\n"
    "loader_images.make(pathlib.Path(sys.argv[1]), int(sys.argv[2]))"
)
GPU_TESTS = [
    "tests/launch/test_hardware.py",
    "tests/backends/test_speed.py",
    "-k",
    "real_gpu or TestGpu",
]
SYNTHETIC = ["--loader", "synthetic", "--num-classes", "1000"]
QUERY = "--query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm"
PACKAGES = ("torch", "tensorflow", "horovod", "numpy", "nvidia-dali")
GRACE_S = 10  # from SIGTERM to SIGKILL


@dataclass(frozen=True)
class Step:
    """A command with a time limit; `figures` is the JSON file that it leaves, "-" its output."""

    name: str
    limit: float
    command: list[str]
    figures: str = ""


def plan(python: str, cpu: bool, work: Path) -> list[Step]:
    """The steps in their order. `python` runs the project; large files go to the folder `work`."""
    pictures, signs, run = (str(work / name) for name in ("pictures", "roadsigns", "run"))
    data = os.environ.get("RN50_DATA") or str(ROOT / "data")
    dtypes = ["float16", "bfloat16", "float32", "tf32"]
    if cpu:
        dtypes.remove("tf32")
        draw, book, epochs = [signs, "--train", "96", "--val", "48"], ["--profile", "ci"], "2"
        need, own = [], [*book, "--dtype", "float32"]
    else:
        signs = f"{data}/roadsigns"  # which the notebooks take, too
        draw, need = [signs], ["RN50_REQUIRE_CAPABILITIES=gpu,torch"]  # so that no test is skipped
        own, book, epochs = ["--dtype", "float16"], ["--profile", "gpu"], "9"

    def rn50(name: str, limit: float, *words: str, figures: str = "") -> Step:
        return Step(name, limit, [python, "-m", "rn50", *words], figures)

    def bench(name: str, batches: str, *flags: str) -> Step:
        file = str(work / f"{name.replace(' ', '-')}.json")
        size = ["-b", batches, "-i", "30", "--image-shape", "224"]
        if cpu:
            size = ["-b", "2,4", "-i", "3", "--image-shape", "32", "--network", "tiny"]
        words = ["benchmark", "-n", "1", "-e", "2", "-w", "1", *size, *flags, "-o", file]
        return rn50(name, 180, *words, figures=file)

    def train(dtype: str, *flags: str) -> Step:
        name = " ".join(["train", dtype, *(flag.lstrip("-") for flag in flags)])
        return bench(name, "128,256", "--dtype", dtype, "--no-val", *SYNTHETIC, *flags)

    def dali(data_format: str) -> Step:
        flags = ["--data-root", pictures, "--data-format", data_format, "--loader", "dali"]
        return bench(f"dali {data_format}", "128,256", *flags, "--dtype", "float16", "--no-val")

    def infer(dtype: str) -> Step:
        batches = "1,2,4,8,16,32,64,128,256"
        return bench(f"infer {dtype}", batches, "--dtype", dtype, "--only-inference", *SYNTHETIC)

    def notebook(number: str) -> Step:
        folder = str(work / f"notebook-{number}")
        words = ["workshop", "run", number, *book, "--time-limit", "280", "--out", folder]
        return rn50(f"notebook {number}", 300, *words, figures=f"{folder}/course.json")

    own += ["-n", "1", "--data-root", signs, "--recipe", "roadsigns"]
    saved = ["--run-dir", run, "--model-prefix", f"{run}/model", "--report", f"{run}.json"]
    scored = [f"{run}/model", epochs, *own, "--report", f"{run}-score.json"]
    return [
        rn50("doctor", 60, "doctor", "--json", figures="-"),
        Step("tests", 180, ["env", *need, python, "-m", "pytest", "-q", *GPU_TESTS]),
        *map(train, dtypes),
        *([] if cpu else [train("float16", "--cuda-graphs"), train("float16", "--compile")]),
        Step("pictures", 90, [python, "-c", PICTURES, pictures, "24" if cpu else "7680"]),
        Step("records", 60, [python, "-m", "data_prep.tfrecord", pictures]),
        dali("files"),
        dali("tfrecord"),
        *map(infer, dtypes),
        Step("signs", 120, [python, "-m", "data_prep.roadsigns", *draw]),
        rn50("run", 240, "run", *own, "-e", epochs, "--resume", *saved, figures=f"{run}.json"),
        rn50("score", 60, "score", *scored, figures=f"{run}-score.json"),
        *map(notebook, ("02", "05", "06")),
    ]


def perform(step: Step, limit: float, log: Path) -> dict[str, Any]:
    """Run one step in a process group of its own, which is ended with it; what came of it."""
    start, status = time.monotonic(), "ok"
    figures = log if step.figures == "-" else Path(step.figures or os.devnull)
    if step.figures:
        figures.unlink(missing_ok=True)  # an earlier try's
    paths = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with log.open("w") as out:
        try:
            child = subprocess.Popen(
                step.command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:  # no environment: the set-up has failed
            return {"status": "failed", "tail": [str(error)]}
        try:
            status = "ok" if child.wait(limit) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "time limit"
        finally:
            end(child)
    found: dict[str, Any] = {
        "status": status,
        "exit": child.returncode,
        "seconds": round(time.monotonic() - start, 1),
        "tail": log.read_text(errors="replace").splitlines()[-3 if status == "ok" else -30 :],
    }
    if step.figures:
        try:
            found["figures"] = json.loads(figures.read_text())
        except (OSError, ValueError) as error:
            found["figures"] = None
            found["status"] = status if status != "ok" else f"no figures: {error}"
    return found


def end(child: subprocess.Popen) -> None:
    """End what is left of a step's process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(GRACE_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def machine(python: str) -> dict[str, Any]:
    """What the figures belong to."""

    def said(*command: str) -> list[str]:
        try:
            return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        except OSError:
            return []

    packages = said(python, "-m", "pip", "list", "--format=freeze")
    return {
        "gpus": said("nvidia-smi", QUERY, "--format=csv"),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python": said(python, "--version"),
        "packages": [line for line in packages if line.startswith(PACKAGES)],
        "commit": said("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
    }


def resumed(file: Path, cpu: bool) -> dict[str, Any]:
    """What the file holds of an earlier call; an empty day where it is not there yet."""
    if not file.exists():
        return {"cpu": cpu, "machine": {}, "steps": {}}
    try:
        day = dict(json.loads(file.read_text()))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {file}: not a file of this program ({error}): name another with --out")
    if day.get("cpu") != cpu:
        sys.exit(f"error: {file}: the day of another kind (--cpu): name another with --out")
    return day


def main() -> int:
    """Returns 0 where every step has passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--wheels", type=Path, help="folder of wheels for the set-up, not a network"
    )
    parser.add_argument("--python", help="Python of an environment that has the project: no set-up")
    parser.add_argument("--minutes", type=float, default=29, help="for all steps together (29)")
    parser.add_argument("--out", type=Path, default=Path("gpu_day.json"), help="gpu_day.json")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "gpu_day", help="large files")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="steps by the start of a name")
    parser.add_argument("--cpu", action="store_true", help="everything small, without a GPU")
    args = parser.parse_args()
    for path in (args.wheels, args.python):
        if path and not Path(path).exists():
            parser.error(f"{path}: there is no such folder or program")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a step's processes end, too
    over = time.monotonic() + 60 * args.minutes
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    python = os.path.abspath(args.python or ROOT / ".venv" / "bin" / "python")
    steps = plan(python, args.cpu, work)
    if not args.python:
        if args.wheels:
            os.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(args.wheels.resolve())}
        setup = [sys.executable, str(ROOT / "scripts" / "setup.py"), "--venv", str(ROOT / ".venv")]
        steps.insert(0, Step("setup", 480, setup))
    if args.only:
        steps = [step for step in steps if step.name.startswith(tuple(args.only))]
    day = resumed(args.out, args.cpu)

    def note(step: Step, found: dict[str, Any]) -> None:
        print(f"{step.name}: {found['status']} {found.get('seconds', '')}", flush=True)
        day["steps"][step.name] = {"command": step.command, **found}
        beside = args.out.with_suffix(".new")
        beside.write_text(json.dumps(day, indent=1) + "\n")
        beside.replace(args.out)

    for step in steps:
        if day["steps"].get(step.name, {}).get("status") == "ok":
            continue
        left = over - time.monotonic()
        if left < GRACE_S:
            note(step, {"status": "not begun: no time was left"})
            continue
        note(step, {"status": "begun"})
        found = perform(step, min(step.limit, left), work / f"{step.name.replace(' ', '-')}.log")
        day["machine"] = day["machine"] or machine(python)
        note(step, found)
    passed = sum(found["status"] == "ok" for found in day["steps"].values())
    print(f"{passed} of {len(day['steps'])} steps passed: {args.out}")
    return int(passed < len(day["steps"]))


if __name__ == "__main__":
    sys.exit(main())

"""`rn50 doctor`: a list of what this machine has and lacks, with remedies.

The exit status is 0 if training can run, 1 if something that it needs is broken. Frameworks are
imported in separate processes, because they can crash or hang on a broken driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_prep.command_line import Parser
from rn50 import launch
from rn50.autoconfig import data_home, default_data_root
from rn50.installed import has
from rn50lib import hardware
from rn50lib.errors import UserError
from rn50lib.hardware import Driver, Gpu

OK, NOTE, PROBLEM = "ok", "note", "problem"
GIB = 2**30
SHARED = Path("/dev/shm")
SETUP = "run `make setup`"
PROBE_S = 90.0  # limit for importing a framework from a cold disk
# Each sets `facts`. Horovod comes last, so that its crash does not hide the framework.
PROBES = {
    "torch": """
import torch
assert torch.nn.functional.conv2d(torch.ones(2, 8, 16, 16), torch.ones(8, 8, 3, 3)).min() > 0
facts = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": 0}
try:
    facts["gpus"] = torch.cuda.device_count()
    for index in range(facts["gpus"]):
        one = torch.ones(64, 64, device=f"cuda:{index}")
        assert (one @ one).sum().item() == 64 ** 3
except Exception as error:
    facts["gpu_problem"] = str(error).strip().split("\\n")[0]
""",
    "tensorflow": """
import tensorflow as tf
facts = {"version": tf.__version__, "gpus": len(tf.config.list_physical_devices("GPU")),
         "cuda": tf.sysconfig.get_build_info()["is_cuda_build"]}
try:
    assert float(tf.reduce_sum(tf.ones((2, 2)))) == 4
except Exception as error:
    if not facts["gpus"]:
        raise
    facts["gpu_problem"] = str(error).strip().split("\\n")[0]
""",
    "nvidia.dali": """
import nvidia.dali as dali
pipeline = dali.pipeline_def(lambda: dali.fn.random.uniform(range=(0.0, 1.0), shape=(3,)))(
    batch_size=2, num_threads=1, device_id=None)
pipeline.build()
assert pipeline.run()[0].as_array().shape == (2, 3)
facts = {"version": dali.__version__}
""",
}
PRINT = "import json; print(json.dumps(facts), flush=True)\n"
HOROVOD = """
try:
    import horovod.FRAMEWORK as hvd
    facts = {"horovod": [n for n in ("gloo", "mpi", "nccl") if getattr(hvd, n + "_built")()]}
except Exception as error:
    facts = {"horovod_problem": str(error).strip().split("\\n")[0] or type(error).__name__}
"""


@dataclass(frozen=True)
class Check:
    """A finding. `name` is for programs, `what` and `remedy` are for people."""

    name: str
    status: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.status + ':':8} {self.what}" + (f" — {self.remedy}" if self.remedy else "")


Finding = tuple[Any, str, str, str]  # does it apply? status, what, remedy


def judge(name: str, fine: str, *findings: Finding) -> Check:
    """Return the first finding that applies, else that all is `fine`."""
    for applies, status, what, remedy in findings:
        if applies:
            return Check(name, status, what, remedy)
    return Check(name, OK, fine)


def examine(quick: bool = False) -> Iterator[tuple[str, list[Check]]]:
    """Yield (heading, findings) for each group; `quick` imports no framework."""
    codes = {name: code + PRINT for name, code in PROBES.items() if has(name) and not quick}
    for name in {"torch", "tensorflow"} & set(codes) if has("horovod") else ():
        codes[name] += HOROVOD.replace("FRAMEWORK", name) + PRINT
    with ThreadPoolExecutor(max_workers=3) as pool:
        running = {name: pool.submit(probe, code) for name, code in codes.items()}
        yield "machine", [*check_machine()]
        yield "memory and disk", [*check_space()]
        try:
            driver = hardware.driver()
            gpu_checks = list(check_gpus(driver))
        except UserError as error:
            driver = Driver()
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
            gpu_checks = [Check("driver", NOTE if hidden else PROBLEM, str(error))]
        gpus = hardware.gpus()
        yield "GPU", gpu_checks
        found = {name: answer.result() for name, answer in running.items()}
        yield "frameworks", [check_framework(name, found.get(name), gpus) for name in PROBES]
        yield "communication", [*check_communication(found, gpus)]


def probe(code: str, limit_s: float = PROBE_S) -> dict[str, Any]:
    """Run Python code in a process; return what it printed, and `problem` if it failed."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"problem": f"it gave no answer within {limit_s:g} s"}
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        with contextlib.suppress(ValueError):  # other output, or cut off by a crash
            found |= json.loads(line) if line.startswith("{") else {}
    status = done.returncode
    if status < 0:
        found["problem"] = f"it crashed with signal {-status} ({signal.Signals(-status).name})"
    elif status:
        found["problem"] = (done.stderr.strip().splitlines() or [f"exit status {status}"])[-1]
    return found


def size(count: float) -> str:
    """Return bytes as '64 MiB' or '3.4 GiB'."""
    return f"{count / GIB:.3g} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"


# --- machine, memory, disk ------------------------------------------------------------------------


def check_machine() -> Iterator[Check]:
    """Check the platform, and count the cores that runs will use."""
    name = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    tested = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    yield judge("system", name, (not tested, NOTE, name, "see docs/platforms.md for differences"))
    usable, total = hardware.usable_cores(), os.cpu_count() or 1
    what = f"{usable} of the machine's {total} core(s) usable"
    remedy = "start the container or job with more cores (docker: --cpus)"
    yield judge("cores", what, (usable < total, NOTE, what, remedy))


def check_space() -> Iterator[Check]:
    """Check the memory, the shared memory of loader workers, and the folders of data and runs."""
    usable = hardware.usable_memory()
    what = f"{size(usable)} of memory (the machine has {size(hardware.total_memory())})"
    yield judge(
        "memory", what,
        (usable < 2 * GIB, PROBLEM, f"{what}; training needs at least 2 GiB",
         "give the container more (docker: --memory) or use a larger machine"),
        (usable < 4 * GIB, NOTE, f"{what}, which is tight", "if a run is killed, lower -b"),
    )  # fmt: skip
    if SHARED.is_dir():  # macOS has no such limit
        free = shutil.disk_usage(SHARED).free
        what = f"{SHARED}: {size(free)} free"
        yield judge("shared-memory", what, (
            free < GIB, NOTE, f"{what}; loader workers may die with a bus error",
            "start the container with --ipc=host, or use --data-nthreads 0",
        ))  # fmt: skip
    (root, _), home = default_data_root(), data_home()
    drawn = root.parent != home or (root / ".complete").exists()
    folders = [("RN50_RUNS", "runs", launch.runs_home())]
    if drawn:
        yield Check("data", OK, f"runs without --data-root use {root}")
    else:
        folders.insert(0, ("RN50_DATA", "data", home))
    for variable, name, folder in folders:
        free, why = room(folder)
        what = f"{name} go to {folder}: {why or size(free) + ' free'}"
        status = PROBLEM if why or name == "data" else NOTE
        remedy = f"set {variable} to a folder with room"
        yield judge(name, what, (why or free < GIB, status, what, remedy))


def room(folder: Path) -> tuple[int, str]:
    """Return the free bytes at `folder`, and why a file cannot be created there ('' if it can)."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".rn50-doctor-"):
            return shutil.disk_usage(folder).free, ""
    except NotADirectoryError:
        return 0, f"{folder} is a file"
    except OSError as error:
        return 0, error.strerror or str(error)


# --- GPUs -----------------------------------------------------------------------------------------


def check_gpus(driver: Driver) -> Iterator[Check]:
    """Check the driver and each visible GPU."""
    container = Path("/.dockerenv").exists() or os.environ.get("NVIDIA_BUILD_ID")
    gpus = hardware.gpus()
    what = f"driver {driver.version}, for CUDA {driver.cuda[0]}.{driver.cuda[1]} and earlier"
    remedy = "reinstall the driver until `nvidia-smi` works; in a container, use --gpus all"
    if "mismatch" in driver.problem.lower():
        remedy = "the driver was updated while it was loaded: restart the machine"
    yield judge(
        "driver", what,
        (driver.problem, NOTE, f"the driver provides no GPU: {driver.problem}", remedy),
        (not driver.gpus, NOTE, "no NVIDIA driver: runs use the processor",
         "if the machine has a GPU, start the container with --gpus all" if container else ""),
        (driver.cuda[0] < 12, NOTE, f"{what}: too old for the builds that set-up installs",
         "install driver 525 or later; until then runs use the processor"),
    )  # fmt: skip
    for gpu in gpus:
        used, (major, minor) = used_memory(gpu), gpu.capability
        what = f"GPU {gpu.index}: {gpu.name}, {size(gpu.memory)}, capability {major}.{minor}"
        yield judge(f"gpu{gpu.index}", what, (
            used > gpu.memory / 10, NOTE, f"{what}; {size(used)} of it are in use",
            "shut down the notebook kernels that hold it, or use a smaller -b",
        ))  # fmt: skip
    if len(gpus) < len(driver.gpus):
        what = f"{len(driver.gpus) - len(gpus)} of {len(driver.gpus)} GPU(s)"
        remedy = "set CUDA_VISIBLE_DEVICES to the indexes or UUIDs to use, or unset it"
        yield Check("hidden", NOTE, f"{what} are hidden from this process", remedy)


def used_memory(gpu: Gpu) -> int:
    """Return the bytes of a GPU's memory that processes hold, 0 if the driver does not say."""
    import pynvml as nvml

    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlInit()
        return nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)).used
    return 0


# --- frameworks and communication -----------------------------------------------------------------


def check_framework(module: str, found: dict[str, Any] | None, gpus: tuple[Gpu, ...]) -> Check:
    """Check PyTorch, which training needs, TensorFlow or DALI, which are optional.

    `found` is what the probe printed, None if the module was not imported.
    """
    name = module.removeprefix("nvidia.")
    title = {"torch": "PyTorch", "tensorflow": "TensorFlow", "dali": "DALI"}[name]
    needed = PROBLEM if name == "torch" else NOTE
    if found is None:
        remedy = SETUP + " (Linux)" * (name == "dali")
        absent = (not has(module), needed, f"{title} is not installed", remedy)
        return judge(name, f"{title} is installed; not imported", absent)
    problem = "" if "version" in found and name != "dali" else found.get("problem")
    title, there = f"{title} {found.get('version', '')}".rstrip(), found.get("gpus", 0)
    on_gpu = gpus and "gpus" in found
    why = found.get("gpu_problem", "check CUDA_VISIBLE_DEVICES")
    return judge(
        name, f"{title}: {f'computes on {there} GPU(s)' if on_gpu else 'imports and computes'}",
        (problem, needed, f"{title} does not run: {problem}",
         f"{SETUP} again, after deleting .venv"),
        (on_gpu and not found["cuda"], needed, f"{title}, built for CPU only, cannot use the GPU",
         f"{SETUP} again, or set CUDA_VISIBLE_DEVICES= to train on the processor"),
        (on_gpu and (there < len(gpus) or "gpu_problem" in found),
         NOTE if there and "gpu_problem" not in found else needed,
         f"{title} sees {there} of {len(gpus)} GPU(s): {why}",
         "update the driver, install a build for its CUDA and this GPU, or set"
         " CUDA_VISIBLE_DEVICES= to train on the processor"),
    )  # fmt: skip


def check_communication(found: dict[str, dict[str, Any]], gpus: tuple[Gpu, ...]) -> Iterator[Check]:
    """Check Horovod's build, and that this machine's name has an address, which Gloo needs."""
    rebuild = "on Linux, `make horovod` builds it (needs g++ and make)"
    probed = {name: found[name] for name in ("torch", "tensorflow") if name in found}
    broken = [f"{name}: {facts.get('horovod_problem') or facts['problem']}"
              for name, facts in probed.items()
              if "version" in facts and {"horovod_problem", "problem"} & set(facts)]  # fmt: skip
    built = [name for name, facts in probed.items() if "horovod" in facts]
    ways = sorted({way for name in built for way in probed[name]["horovod"]})
    what = f"Horovod for {' and '.join(built)}, over {' and '.join(ways)}"
    yield judge(
        "horovod", what if built else "Horovod is installed; not imported",
        (not has("horovod"), NOTE, "Horovod is not installed; PyTorch's DDP is used instead",
         rebuild),
        (broken, NOTE, f"Horovod does not work with {'; '.join(broken)}", rebuild),
        (built and gpus and "nccl" not in ways, NOTE, f"{what}: without NCCL it is slow on GPUs",
         "install the CUDA toolkit and NCCL's headers and run `make horovod`, or use --comm ddp"),
    )  # fmt: skip
    host, known = socket.gethostname(), False
    with contextlib.suppress(OSError):
        known = bool(socket.getaddrinfo(host, None))
    yield judge("localhost", "this machine's name has an address", (
        not known, NOTE, f"this machine's name, {host}, has no address",
        f"add `127.0.0.1 {host}` to /etc/hosts, or several workers may not find each other",
    ))  # fmt: skip


# --- the command ----------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    parser = Parser(
        prog="rn50 doctor",
        description="Report what this machine has, what is missing, and how to fix it.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.add_argument("--quick", action="store_true", help="import no framework: under a second")
    args = parser.parse_args(argv)
    begin, rows = time.perf_counter(), []
    for group, checks in examine(args.quick):
        rows += [{"group": group, **asdict(check)} for check in checks]
        if not args.json:
            print("\n".join([group, *(f"  {check}" for check in checks)]), flush=True)
    broken = ", ".join(row["name"] for row in rows if row["status"] == PROBLEM)
    if args.json:
        seconds = round(time.perf_counter() - begin, 2)
        found = {"can_train": not broken, "seconds": seconds, "checks": rows}
        print(json.dumps(found, indent=2))
    else:
        notes = f"({sum(row['status'] == NOTE for row in rows)} note(s))"
        can = f"Training cannot run here until this is fixed: {broken}" if broken else ""
        print(f"{can or 'Training can run here'} {notes}.")
    return 1 if broken else 0

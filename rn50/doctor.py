"""`rn50 doctor`: a list of what this machine has and lacks, with remedies.

The exit status is 0 if training can run, 1 if something that it needs is broken. Frameworks are
imported in separate processes, because they can crash or hang on a broken driver.
"""

from __future__ import annotations

import contextlib
import importlib.util
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

from rn50 import launch
from rn50.autoconfig import data_home, default_data_root
from rn50.parser import Parser
from rn50lib import hardware
from rn50lib.errors import UserError
from rn50lib.hardware import Driver, Gpu

OK, NOTE, PROBLEM = "ok", "note", "problem"
GIB = 2**30
SETUP = "run `make setup`"
PROBE_S = 90.0  # limit for importing a framework from a cold disk
# Each prints JSON lines. Horovod comes last, so that its crash does not hide the framework.
PROBES = {
    "torch": """
import torch
assert torch.nn.functional.conv2d(torch.ones(2, 8, 16, 16), torch.ones(8, 8, 3, 3)).min() > 0
facts = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": 0}
if facts["cuda"]:
    try:
        torch.cuda.init()
        facts["gpus"] = torch.cuda.device_count()
        for index in range(facts["gpus"]):
            one = torch.ones(64, 64, device=f"cuda:{index}")
            assert (one @ one).sum().item() == 64 ** 3
    except Exception as error:
        facts["gpu_problem"] = str(error).strip().split("\\n")[0]
""",
    "tensorflow": """
import tensorflow as tf
assert float(tf.reduce_sum(tf.ones((2, 2)))) == 4
facts = {"version": tf.__version__, "gpus": len(tf.config.list_physical_devices("GPU")),
         "cuda": tf.sysconfig.get_build_info()["is_cuda_build"]}
""",
    "nvidia.dali": """
import nvidia.dali as dali
pipeline = dali.Pipeline(batch_size=2, num_threads=1, device_id=None)
with pipeline:
    pipeline.set_outputs(dali.fn.random.uniform(range=(0.0, 1.0), shape=(3,)))
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


def examine(quick: bool = False) -> Iterator[tuple[str, list[Check]]]:
    """Yield (heading, findings) for each group; `quick` imports no framework."""
    codes = {name: code + PRINT for name, code in PROBES.items() if has(name) and not quick}
    for name in {"torch", "tensorflow"} & set(codes) if has("horovod") else ():
        codes[name] += HOROVOD.replace("FRAMEWORK", name) + PRINT
    with ThreadPoolExecutor(max_workers=3) as pool:
        running = {name: pool.submit(probe, code) for name, code in codes.items()}
        yield "machine", [check_system(), check_cores()]
        room = [check_memory(), check_shared_memory(), check_data_folder(), check_runs_folder()]
        yield "memory and disk", room
        try:
            driver = hardware.driver()
            gpu_checks = list(check_gpus(driver))
        except UserError as error:
            driver = Driver()
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
            gpu_checks = [Check("driver", NOTE if hidden else PROBLEM, str(error))]
        gpus = hardware.visible(driver.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        yield "GPU", gpu_checks
        found = {name: answer.result() for name, answer in running.items()}
        yield "frameworks", [check_framework(name, found.get(name), gpus) for name in PROBES]
        yield "communication", [check_horovod(found, gpus), check_host_name()]


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


def has(module: str) -> bool:
    """Return True if a module is installed, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def size(count: float) -> str:
    """Return bytes as '64 MiB' or '3.4 GiB'."""
    return f"{count / GIB:.3g} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"


# --- machine, memory, disk ------------------------------------------------------------------------


def check_system() -> Check:
    """Say if the workbook has been tried on this platform."""
    name = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    wsl = "microsoft" in platform.release().lower()
    if (platform.system(), platform.machine()) == ("Linux", "x86_64") and not wsl:
        return Check("system", OK, name)
    what = f"{name}{' in WSL2' if wsl else ''}: the workbook has not been tried here yet"
    return Check("system", NOTE, what, "see docs/platforms.md for the differences")


def check_cores(root: Path = hardware.ROOT) -> Check:
    """Count the cores that runs will use."""
    usable, total = hardware.usable_cores(root), os.cpu_count() or 1
    what = f"{usable} of the machine's {total} core(s) usable"
    if usable == total:
        return Check("cores", OK, what)
    quota = hardware.cpu_quota(root)
    what += f" (affinity mask: {hardware.affinity()}, quota: {quota or 'none'})"
    return Check("cores", NOTE, what, "start the container or job with more cores (docker: --cpus)")


def check_memory(root: Path = hardware.ROOT) -> Check:
    """Compare the usable memory with what the road-signs recipe needs."""
    usable = hardware.usable_memory(root)
    what = f"{size(usable)} of memory (the machine has {size(hardware.total_memory())})"
    if usable < 2 * GIB:
        remedy = "give the container more (docker: --memory) or use a larger machine"
        return Check("memory", PROBLEM, f"{what}; training needs at least 2 GiB", remedy)
    if usable < 4 * GIB:
        return Check("memory", NOTE, f"{what}, which is tight", "if a run is killed, lower -b")
    return Check("memory", OK, what)


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Check:
    """Check the room in shared memory, through which loader workers pass batches."""
    if not folder.is_dir():  # macOS has no such limit
        return Check("shared-memory", OK, "shared memory is not limited")
    free = shutil.disk_usage(folder).free
    if free < GIB:
        what = f"{folder}: {size(free)} free; loader workers may die with a bus error"
        remedy = "start the container with --ipc=host, or use --data-nthreads 0"
        return Check("shared-memory", NOTE, what, remedy)
    return Check("shared-memory", OK, f"{folder}: {size(free)} free")


def check_data_folder() -> Check:
    """Find the default data set, or check that there is room to draw the road signs."""
    root, _ = default_data_root()
    if root.parent != data_home() or (root / ".complete").exists():
        return Check("data", OK, f"runs without --data-root use {root}")
    free, why = room(data_home())
    if why or free < GIB:
        what = f"the road signs need 1 GiB in {data_home()}: {why or size(free) + ' free'}"
        return Check("data", PROBLEM, what, "set RN50_DATA to a folder with room")
    return Check("data", OK, f"the first run draws the road signs into {data_home()}")


def check_runs_folder() -> Check:
    """Check that reports and checkpoints can be written."""
    free, why = room(launch.runs_home())
    what = f"runs go to {launch.runs_home()}: {why or size(free) + ' free'}"
    if why or free < GIB:
        return Check("runs", PROBLEM if why else NOTE, what, "set RN50_RUNS to a folder with room")
    return Check("runs", OK, what)


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


def check_gpus(driver: Driver, root: Path = Path("/")) -> Iterator[Check]:
    """Check the driver and each visible GPU."""
    if driver.problem:
        remedy = "reinstall the driver until `nvidia-smi` works; in a container, use --gpus all"
        if "mismatch" in driver.problem.lower():
            remedy = "the driver was updated while it was loaded: restart the machine"
        elif "MIG" in driver.problem:
            remedy = "create slices (`nvidia-smi mig -lgip` lists them) or run `nvidia-smi -mig 0`"
        yield Check("driver", NOTE, f"the driver provides no GPU: {driver.problem}", remedy)
        return
    if not driver.gpus:
        container = (root / ".dockerenv").exists() or os.environ.get("NVIDIA_BUILD_ID")
        remedy = "if the machine has a GPU, start the container with --gpus all"
        what = "no NVIDIA GPU in this container" if container else "no NVIDIA driver"
        yield Check("driver", NOTE, f"{what}: runs use the processor", remedy if container else "")
        return
    what = f"driver {driver.version}, for CUDA {driver.cuda[0]}.{driver.cuda[1]} and earlier"
    if driver.cuda[0] < 12:
        remedy = "install driver 525 or later; until then runs use the processor"
        yield Check("driver", NOTE, f"{what}: too old for the builds that set-up installs", remedy)
    else:
        yield Check("driver", OK, what)
    gpus = hardware.visible(driver.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    yield from map(check_gpu, gpus)
    if len(gpus) < len(driver.gpus):
        what = f"{len(driver.gpus) - len(gpus)} of {len(driver.gpus)} GPU(s) or MIG slices"
        remedy = "set CUDA_VISIBLE_DEVICES to the indexes or UUIDs to use, or unset it"
        yield Check("hidden", NOTE, f"{what} are hidden from this process", remedy)


def check_gpu(gpu: Gpu) -> Check:
    """Describe a GPU, and how much of its memory other processes hold."""
    import pynvml as nvml

    used = 0
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlInit()
        used = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)).used
    major, minor = gpu.capability
    what = f"GPU {gpu.index}: {gpu.name}, {size(gpu.memory)}, capability {major}.{minor}"
    if used > gpu.memory / 10:
        what += f"; {size(used)} of it are in use"
        remedy = "shut down the notebook kernels that hold it, or use a smaller -b"
        return Check(f"gpu{gpu.index}", NOTE, what, remedy)
    return Check(f"gpu{gpu.index}", OK, what)


# --- frameworks and communication -----------------------------------------------------------------


def check_framework(module: str, found: dict[str, Any] | None, gpus: tuple[Gpu, ...]) -> Check:
    """Check PyTorch, which training needs, TensorFlow or DALI, which are optional.

    `found` is what the probe printed, None if the module was not imported.
    """
    name = module.removeprefix("nvidia.")
    title = {"torch": "PyTorch", "tensorflow": "TensorFlow", "dali": "DALI"}[name]
    needed = PROBLEM if name == "torch" else NOTE
    if not has(module):
        return Check(name, needed, f"{title} is not installed", SETUP)
    if found is None:
        return Check(name, OK, f"{title} is installed; not imported")
    if "problem" in found and not ("version" in found and name != "dali"):  # or it is Horovod's
        what = f"{title} does not run: {found['problem']}"
        return Check(name, needed, what, f"{SETUP} again, after deleting .venv")
    title = f"{title} {found['version']}"
    if not gpus or "gpus" not in found:
        return Check(name, OK, f"{title}: imports and computes")
    if not found["cuda"]:
        remedy = f"{SETUP} again, or set CUDA_VISIBLE_DEVICES= to train on the processor"
        return Check(name, needed, f"{title}, built for CPU only, cannot use the GPU", remedy)
    if "gpu_problem" in found:
        what = f"{title} does not compute on the GPU: {found['gpu_problem']}"
        return Check(name, NOTE, what, "update the driver, or install a build for its CUDA")
    if found["gpus"] < len(gpus):
        what = f"{title} sees {found['gpus']} of {len(gpus)} GPU(s)"
        return Check(name, NOTE, what, "check its CUDA libraries and CUDA_VISIBLE_DEVICES")
    return Check(name, OK, f"{title}: computes on {found['gpus']} GPU(s)")


def check_horovod(found: dict[str, dict[str, Any]], gpus: tuple[Gpu, ...]) -> Check:
    """Check what Horovod was built for, as `horovodrun --check-build` does."""
    name, rebuild = "horovod", "build it with `make horovod` (needs g++ and make)"
    if not has(name):
        return Check(name, NOTE, "Horovod is not installed; one process trains without it", rebuild)
    built = {}
    for framework in {"torch", "tensorflow"} & set(found):
        facts = found[framework]
        problem = facts.get("horovod_problem") or facts.get("problem")
        if problem and "version" in facts:
            what = f"Horovod does not work with {framework}: {problem}"
            return Check(name, NOTE, what, rebuild)
        if "horovod" in facts:
            built[framework] = facts["horovod"]
    if not built:
        return Check(name, OK, "Horovod is installed; not imported")
    ways = sorted(set().union(*built.values()))
    what = f"Horovod for {' and '.join(sorted(built))}, over {' and '.join(ways)}"
    if gpus and "nccl" not in ways:
        remedy = "run `HOROVOD_GPU_OPERATIONS=NCCL make horovod`, or use --comm ddp"
        return Check(name, NOTE, f"{what}: without NCCL it is slow on GPUs", remedy)
    return Check(name, OK, what)


def check_host_name() -> Check:
    """Check that this machine's own name has an address, which Gloo needs."""
    host = socket.gethostname()
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        remedy = f"add `127.0.0.1 {host}` to /etc/hosts, or several workers may not find each other"
        return Check("localhost", NOTE, f"this machine's name, {host}, has no address", remedy)
    return Check("localhost", OK, "this machine's name has an address")


# --- the command ----------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """Run `rn50 doctor`; return the exit status."""
    parser = Parser(
        prog="rn50 doctor",
        description="What this machine has, what is missing, and what to do about it.",
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

"""The optional parts: input pipelines, communication between workers, notebooks, a container."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from rn50lib import platforms
from rn50lib.tools.doctor.check import SETUP, Check, note, ok
from rn50lib.tools.doctor.gpu import Gpus
from rn50lib.tools.doctor.probe import Answer, has, run, version

DALI = ("nvidia-dali-cuda110", "nvidia-dali-cuda120", "nvidia-dali-cuda130")
NOTEBOOKS = ("jupyterlab", "papermill", "ipykernel", "ipywidgets", "matplotlib", "nbconvert")
LAB_PORT = 8888

DALI_PROBE = """
import json
import nvidia.dali as dali
pipeline = dali.Pipeline(batch_size=2, num_threads=1, device_id=None)
with pipeline:
    pipeline.set_outputs(dali.fn.random.uniform(range=(0.0, 1.0), shape=(3,)))
pipeline.build()
assert pipeline.run()[0].as_array().shape == (2, 3)
print(json.dumps({"version": dali.__version__}))
"""


# --- input ----------------------------------------------------------------------------------------


def decoders() -> Check:
    """What decodes JPEGs without DALI."""
    turbo = False
    if has("PIL"):
        from PIL import features

        turbo = bool(features.check_feature("libjpeg_turbo"))
    fast, crc = version("simplejpeg"), version("google-crc32c")
    facts = {"libjpeg_turbo": turbo, "simplejpeg": fast, "crc32c": crc}
    if not turbo:
        what = "Pillow decodes without libjpeg-turbo, several times slower"
        return note(
            "jpeg",
            what,
            "install Pillow's own wheel: pip install --force-reinstall pillow",
            **facts,
        )
    return ok(
        "jpeg", "Pillow with libjpeg-turbo" + (f", simplejpeg {fast}" if fast else ""), **facts
    )


def wheel_for(cuda: tuple[int, int] | None) -> str:
    """The DALI package for a driver: as `make setup` chooses."""
    if cuda is None or cuda[0] <= 11:
        return DALI[0]
    return DALI[1] if cuda[0] == 12 else DALI[2]


def dali(answer: Answer | None, gpus: Gpus) -> Check:
    """DALI: which package, whether it fits the driver, whether a pipeline runs."""
    found = [name for name in DALI if version(name)]
    wanted = wheel_for(gpus.cuda)
    if not has("nvidia.dali"):
        here = platforms.this()
        if here is not None and not here.dali:
            return note(
                "dali",
                f"DALI has no wheel for this platform ({here.name}); the native loader serves",
            )
        return note(
            "dali", "DALI is not installed; the native loader serves", f"pip install {wanted}"
        )
    name = found[0] if found else "nvidia-dali"
    words = f"{name} {version(name) or ''}".strip()
    facts = {"package": name, "version": version(name), "wanted": wanted}
    if len(found) > 1:
        what = f"several DALI packages share one folder: {', '.join(found)}"
        return note(
            "dali", what, f"pip uninstall -y {' '.join(found)}, then pip install {wanted}", **facts
        )
    if answer is not None and answer.problem:
        return note(
            "dali",
            f"{words} does not run: {answer.problem}",
            f"pip install --force-reinstall {wanted}",
            **facts,
        )
    if found and gpus.visible and name != wanted and DALI.index(name) > DALI.index(wanted):
        what = f"{words} is built for a newer CUDA than the driver serves: no decoding on the GPU"
        return note("dali", what, f"pip uninstall -y {name}, then pip install {wanted}", **facts)
    if found and gpus.visible and name != wanted and "NVIDIA_BUILD_ID" not in os.environ:
        what = f"{words} runs; {wanted} fits this driver better"
        return note(
            "dali",
            what,
            f"`make setup DALI={wanted.removeprefix('nvidia-dali-')}` installs it",
            **facts,
        )
    return ok(
        "dali",
        words + (" is installed; not imported" if answer is None else ": a pipeline runs"),
        **facts,
    )


# --- communication --------------------------------------------------------------------------------


def horovod(answers: Mapping[str, Answer | None], gpus: Gpus) -> Check:
    """What `horovodrun --check-build` tells, in plain words: for which frameworks, over what."""
    rebuild = "`make horovod` builds it (it needs g++ and make)"
    if not has("horovod"):
        what = "Horovod is not installed; training in one process does not need it"
        return note("horovod", what, rebuild)
    words = f"Horovod {version('horovod') or ''}".strip()
    built, broken = built_extensions(answers)
    facts = {"version": version("horovod"), "built": built, "broken": broken}
    missing = [name for name in ("PyTorch", "TensorFlow") if name not in built]
    over = sorted({way for ways in built.values() for way in ways})
    carriers = f", over {' and '.join(over)}" if over else ""
    if not built:
        why = next(iter(broken.values()), "its extensions are not there")
        what = f"{words} works with neither PyTorch nor TensorFlow: {why}"
        return note("horovod", what, rebuild, **facts)
    words += f": for {' and '.join(built)}{carriers}"
    for name in missing:
        if name in broken or (name == "PyTorch" and has("torch")) or has(name.lower()):
            why = broken.get(name, "the extension has not been built")
            return note("horovod", f"{words}; not for {name}: {why}", rebuild, **facts)
    if gpus.visible and "NCCL" not in over and over:
        what = f"{words}, without NCCL: gradients of GPUs would go through host memory"
        remedy = (
            "`HOROVOD_GPU_OPERATIONS=NCCL make horovod` (it needs the CUDA toolkit and NCCL's"
            " headers), or let PyTorch's DDP exchange them"
        )
        return note("horovod", what, remedy, **facts)
    return ok("horovod", words, **facts)


def built_extensions(
    answers: Mapping[str, Answer | None],
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """(framework: what it communicates over), (framework: why its extension fails).

    Where the framework was imported, its extension was too, and it tells what it was built with;
    otherwise its file is read.
    """
    built: dict[str, list[str]] = {}
    broken: dict[str, str] = {}
    for framework, name in (("torch", "PyTorch"), ("tensorflow", "TensorFlow")):
        answer = answers.get(framework)
        if answer is None:
            ways = ways_in_file(framework)
            if ways is not None:
                built[name] = ways
        elif "horovod_gloo" in answer.facts:
            titles = {"gloo": "Gloo", "mpi": "MPI", "nccl": "NCCL"}
            built[name] = [t for key, t in titles.items() if answer.facts[f"horovod_{key}"]]
        elif "horovod_problem" in answer.facts:
            broken[name] = answer.facts["horovod_problem"]
        elif (
            "version" in answer.facts and answer.problem
        ):  # it went down after the framework's import
            broken[name] = answer.problem
    return built, broken


def ways_in_file(framework: str) -> list[str] | None:
    """What an extension links to, read from its file, as an ELF file names its libraries in plain
    text; None where it has not been built."""
    spec = importlib.util.find_spec("horovod")
    for place in spec.submodule_search_locations or [] if spec else []:
        for file in Path(place, framework).glob("mpi_lib*.so"):
            code = file.read_bytes()
            found = {"MPI": b"libmpi.so", "Gloo": b"GlooContext", "NCCL": b"ncclAllReduce"}
            return [name for name, mark in found.items() if mark in code]
    return None


def mpi() -> Check:
    """Open MPI or another mpirun."""
    if shutil.which("mpirun") is None:
        what = "no mpirun: Horovod starts its workers over Gloo instead"
        return note(
            "mpi", what, "`apt-get install openmpi-bin libopenmpi-dev`, then `make horovod`"
        )
    said, _, status = run(["mpirun", "--version"], limit_s=20)
    if status != 0:
        return note("mpi", f"mpirun does not run (status {status})", "install openmpi-bin again")
    return ok("mpi", said.strip().splitlines()[0] if said.strip() else "mpirun")


def torch_distributed(answer: Answer | None, gpus: Gpus) -> Check | None:
    """What PyTorch itself can communicate over; None where it was not asked."""
    if answer is None or "version" not in answer.facts:
        return None
    facts = answer.facts
    ways = [name for name in ("gloo", "nccl") if facts[name]]
    if gpus.visible and not facts["nccl"]:
        return note("ddp", "this PyTorch has no NCCL: several GPUs cannot work together", SETUP)
    if not ways:
        return note("ddp", "this PyTorch cannot run several workers", SETUP)
    titles = {"gloo": "Gloo", "nccl": f"NCCL {facts.get('nccl_version', '')}".strip()}
    return ok("ddp", f"PyTorch's own workers: {' and '.join(titles[way] for way in ways)}")


def localhost() -> Check:
    """Whether two processes of this machine can talk over its loopback interface."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"x")
                    accepted.settimeout(5)
                    assert accepted.recv(1) == b"x"
    except OSError as error:
        what = (
            f"no connection over 127.0.0.1 ({error}): notebooks need it, and so do several workers"
        )
        return note("localhost", what, "look at the firewall and at `ip addr show lo`")
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        what = f"ports on 127.0.0.1 work; the machine's own name, {name}, has no address"
        remedy = f"add `127.0.0.1 {name}` to /etc/hosts, or Gloo may not find its own workers"
        return note("localhost", what, remedy, hostname=name)
    return ok(
        "localhost",
        "ports on 127.0.0.1 work, and the machine's own name has an address",
        hostname=name,
    )


# --- notebooks ------------------------------------------------------------------------------------


def notebooks() -> Check:
    """What opens, runs and draws the notebooks."""
    found = {name: version(name) for name in NOTEBOOKS}
    missing = [name for name, number in found.items() if number is None]
    if missing:
        return note(
            "notebooks", f"missing for the notebooks: {', '.join(missing)}", SETUP, versions=found
        )
    return ok(
        "notebooks", ", ".join(f"{name} {number}" for name, number in found.items()), versions=found
    )


def lab_port(port: int = LAB_PORT) -> Check:
    """Whether JupyterLab's usual port is free."""
    try:
        with socket.create_server(("127.0.0.1", port)):
            return ok("port", f"port {port} is free for JupyterLab")
    except OSError:
        return note("port", f"port {port} is taken", f"`make lab PORT={port + 1}`", port=port)


# --- container ------------------------------------------------------------------------------------


def container(environ: Mapping[str, str] = os.environ) -> tuple[Check, tuple[str, ...]] | None:
    """Inside an NVIDIA container: what it is, and a table of what runs natively there."""
    build = environ.get("NVIDIA_BUILD_ID")
    if not build:
        return None
    product = environ.get("NVIDIA_PRODUCT_NAME", "")
    what = f"{' '.join(filter(None, ('NVIDIA container', product)))}, build {build}"
    what += ": its own frameworks are used"
    rows = platforms.ngc_rows(product)
    return ok("container", what, build=build, product=product), tuple(platforms.as_text(rows))

"""Python packages and frameworks: which versions, do they import, do they see the GPUs.

The probes below run in processes of their own and print what they find as JSON lines.
"""

from __future__ import annotations

import sys

from rn50lib.tools.doctor.check import SETUP, Check, note, ok, problem
from rn50lib.tools.doctor.gpu import OLDEST_DRIVER, Gpus, built_for
from rn50lib.tools.doctor.probe import Answer, has, version

LIBRARIES = {  # distribution: what is imported
    "numpy": "numpy",
    "pillow": "PIL.Image",
    "psutil": "psutil",
    "safetensors": "safetensors.numpy",
    "tqdm": "tqdm",
}

LIBRARIES_PROBE = f"import {', '.join(LIBRARIES.values())}; print('{{}}')"

# Horovod's answers come from the processes that have the framework loaded anyway. They follow the
# framework's own, so that a crash in Horovod does not take those along.
TORCH_PROBE = """
import json, time
begin = time.perf_counter()
import torch
ones = torch.ones(2, 8, 16, 16)
assert torch.nn.functional.conv2d(ones, ones[:, :, :3, :3]).sum().item() > 0
facts = {"version": torch.__version__, "cuda": torch.version.cuda,
         "seconds": time.perf_counter() - begin, "gloo": False, "nccl": False}
if torch.distributed.is_available():
    facts["gloo"] = torch.distributed.is_gloo_available()
    facts["nccl"] = torch.distributed.is_nccl_available()
if facts["cuda"]:
    facts["architectures"] = torch.cuda.get_arch_list()
    try:
        torch.cuda.init()
        facts["gpus"] = torch.cuda.device_count()
        for index in range(facts["gpus"]):
            one = torch.ones(64, 64, device=f"cuda:{index}")
            assert (one @ one).sum().item() == 64 ** 3
        facts["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as error:
        facts["gpu_problem"] = str(error).strip().split("\\n")[0]
print(json.dumps(facts), flush=True)
"""

TENSORFLOW_PROBE = """
import json, time
begin = time.perf_counter()
import tensorflow as tf
assert float(tf.reduce_sum(tf.ones((2, 2)))) == 4
facts = {"version": tf.__version__, "seconds": time.perf_counter() - begin,
         "cuda": bool(tf.sysconfig.get_build_info().get("is_cuda_build")),
         "gpus": len(tf.config.list_physical_devices("GPU"))}
print(json.dumps(facts), flush=True)
"""

HOROVOD_PROBE = """
facts = {}
try:
    import horovod.FRAMEWORK as hvd
    for name in ("gloo", "mpi", "nccl"):
        facts["horovod_" + name] = bool(getattr(hvd, name + "_built")())
except Exception as error:
    facts["horovod_problem"] = str(error).strip().split("\\n")[0] or type(error).__name__
print(json.dumps(facts), flush=True)
"""


def libraries(answer: Answer) -> Check:
    """What rn50lib itself needs."""
    missing = [name for name in LIBRARIES if version(name) is None]
    if missing:
        return problem("libraries", f"missing: {', '.join(missing)}", SETUP, missing=missing)
    found = {name: version(name) for name in LIBRARIES}
    if answer.problem:
        what = f"the base libraries do not import: {answer.problem}"
        return problem("libraries", what, "delete .venv and run `make setup` again", versions=found)
    names = ", ".join(f"{name} {found[name]}" for name in found)
    return ok("libraries", names, versions=found)


def torch(answer: Answer | None, gpus: Gpus) -> Check:
    """PyTorch, the framework that trains. `answer` None: it was not to be imported."""
    installed = version("torch")
    if installed is None and not has("torch"):
        return problem("torch", "PyTorch is not installed, and training needs it", SETUP)
    if answer is None:
        return ok(
            "torch",
            f"PyTorch {installed or '(version not told)'} is installed; not imported",
            version=installed,
        )
    facts = {key: value for key, value in answer.facts.items() if not key.startswith("horovod")}
    if "version" not in facts:
        what = f"PyTorch {installed or ''} does not import: {answer.problem}"
        return problem("torch", what, "delete .venv and run `make setup` again", **facts)
    cuda = facts["cuda"]
    name = f"PyTorch {facts['version']}" + (
        f", built for CUDA {cuda}" if cuda else ", built for the processor only"
    )
    if not gpus.visible:
        return ok("torch", f"{name}: imports and computes", **facts)
    if not cuda:
        remedy = f"{SETUP} again: it takes the CUDA builds where the driver serves CUDA 12 or later"
        return note("torch", f"{name}: the GPU is not used", remedy, **facts)
    what, remedy = gpu_trouble(facts, gpus)
    if what:
        return note("torch", f"{name}: {what}", remedy, **facts)
    return ok("torch", f"{name}: computes on {facts['gpus']} GPU(s)", **facts)


def gpu_trouble(facts: dict, gpus: Gpus) -> tuple[str, str]:
    """Why a CUDA build of PyTorch does not use the GPUs here, and the remedy; two empty texts if
    it does."""
    major = int(str(facts["cuda"]).split(".")[0])
    if gpus.cuda and major > gpus.cuda[0]:
        least = OLDEST_DRIVER.get(major, "of that generation")
        serves = f"driver {gpus.driver.version} serves CUDA {gpus.cuda[0]}.{gpus.cuda[1]} at most"
        remedy = f"install driver {least} or later, or a PyTorch built for CUDA {gpus.cuda[0]}"
        return f"{serves}, so the GPU is not used", remedy
    left_out = [
        g for g in gpus.visible if not built_for(facts.get("architectures", []), g.capability)
    ]
    if left_out:
        gpu = left_out[0]
        major, minor = gpu.capability
        what = f"it has no code for the {gpu.name} (capability {major}.{minor})"
        older = gpu.capability < (7, 5)
        return what, (
            "CUDA 13 dropped Volta and earlier: install a PyTorch built for CUDA 12.6"
            if older
            else "install a newer PyTorch"
        )
    if facts.get("gpu_problem"):
        return (
            f"it does not compute on the GPU: {facts['gpu_problem']}",
            "see that `nvidia-smi` works here, then try again",
        )
    if facts.get("gpus", 0) < len(gpus.visible):
        what = f"it sees {facts.get('gpus', 0)} of {len(gpus.visible)} GPU(s)"
        return what, "compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES"
    return "", ""


def tensorflow(answer: Answer | None, gpus: Gpus) -> Check:
    """TensorFlow, which no training in this version needs."""
    installed = version("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")
    keras = version("tf-keras")
    words = f"TensorFlow {installed or ''}".strip() + (f" with tf-keras {keras}" if keras else "")
    if not has("tensorflow"):
        return note("tensorflow", "TensorFlow is not installed; PyTorch trains without it", SETUP)
    if answer is None:
        return ok(
            "tensorflow", f"{words} is installed; not imported", version=installed, tf_keras=keras
        )
    facts = {key: value for key, value in answer.facts.items() if not key.startswith("horovod")}
    facts["tf_keras"] = keras
    if "version" not in facts:
        return note(
            "tensorflow",
            f"{words} does not import: {answer.problem}",
            f"{SETUP} again; PyTorch trains without it",
            **facts,
        )
    if gpus.visible and not facts["cuda"]:
        return note(
            "tensorflow",
            f"{words}, built for the processor only: it does not use the GPU",
            f"{SETUP} again",
            **facts,
        )
    if gpus.visible and facts["gpus"] < len(gpus.visible):
        what = f"{words}: it sees {facts['gpus']} of {len(gpus.visible)} GPU(s)"
        return note(
            "tensorflow",
            what,
            "its CUDA libraries may be missing: install tensorflow[and-cuda]",
            **facts,
        )
    if keras is None:
        what = f"{words} imports; without tf-keras, Horovod's Keras integration is wrong"
        return note("tensorflow", what, SETUP, **facts)
    return ok("tensorflow", f"{words}: imports and computes", **facts)


def python() -> Check:
    """Which Python, and whether it is the project's own."""
    own = sys.prefix != sys.base_prefix
    what = f"{sys.executable}" + ("" if own else ", not in a virtual environment")
    return ok("python", what, executable=sys.executable, virtual_environment=own)

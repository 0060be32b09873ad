"""PyTorch, TensorFlow, Horovod, DALI: which versions, do they import, do they see the GPUs.

The probes below run in processes of their own and print what they find as JSON lines.
"""

from __future__ import annotations

from collections.abc import Mapping

from rn50.doctor.check import SETUP, Answer, Check, has, note, ok, problem, version
from rn50.doctor.gpu import OLDEST_DRIVER, Gpus
from rn50.doctor.machine import has_every_wheel

DALI = ("nvidia-dali-cuda110", "nvidia-dali-cuda120", "nvidia-dali-cuda130")

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


def torch(answer: Answer | None, gpus: Gpus) -> Check:
    """PyTorch, the framework that trains. `answer` None: it was not to be imported."""
    installed = version("torch")
    if installed is None and not has("torch"):
        return problem("torch", "PyTorch is not installed, and training needs it", SETUP)
    if answer is None:
        known = installed or "(of unknown version)"
        return ok("torch", f"PyTorch {known} is installed; not imported")
    facts = answer.facts
    if "version" not in facts:
        what = f"PyTorch {installed or ''} does not import: {answer.problem}"
        return problem("torch", what, "delete .venv and run `make setup` again")
    cuda = facts["cuda"]
    built = f"for CUDA {cuda}" if cuda else "for the processor only"
    name = f"PyTorch {facts['version']}, built {built}"
    if not gpus.visible:
        return ok("torch", f"{name}: imports and computes")
    if not cuda:
        remedy = (
            f"{SETUP} again: it takes the CUDA builds if the driver supports CUDA 12; or set"
            " CUDA_VISIBLE_DEVICES= to train on the processor"
        )
        return problem("torch", f"{name}: it cannot use the GPU, so no run starts", remedy)
    what, remedy = gpu_trouble(facts, gpus)
    if what:
        return note("torch", f"{name}: {what}", remedy)
    return ok("torch", f"{name}: computes on {facts['gpus']} GPU(s)")


def gpu_trouble(facts: dict, gpus: Gpus) -> tuple[str, str]:
    """Why a CUDA build of PyTorch does not use the GPUs here, and the remedy; two empty texts if
    it does."""
    major = int(str(facts["cuda"]).split(".")[0])
    if gpus.cuda and major > gpus.cuda[0]:
        least = OLDEST_DRIVER.get(major, "of that generation")
        serves = f"driver {gpus.driver.version} serves CUDA {gpus.cuda[0]}.{gpus.cuda[1]} at most"
        remedy = f"install driver {least} or later, or a PyTorch built for CUDA {gpus.cuda[0]}"
        return f"{serves}, so the GPU is not used", remedy
    if facts.get("gpu_problem"):
        what = f"it does not compute on the GPU: {facts['gpu_problem']}"
        return (
            what,
            "see that `nvidia-smi` works here; this PyTorch may also be too new for the GPU",
        )
    if facts.get("gpus", 0) < len(gpus.visible):
        what = f"it sees {facts.get('gpus', 0)} of {len(gpus.visible)} GPU(s)"
        return what, "compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES"
    return "", ""


def tensorflow(answer: Answer | None, gpus: Gpus) -> Check:
    """TensorFlow, without which PyTorch trains all the same."""
    name = "tensorflow"
    if not has(name):
        return note(name, "TensorFlow is not installed; PyTorch trains without it", SETUP)
    installed = version(name, "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")
    keras = version("tf-keras")
    package = f"TensorFlow {installed or ''}".strip() + (f" with tf-keras {keras}" if keras else "")
    if answer is None:
        return ok(name, f"{package} is installed; not imported")
    facts = answer.facts
    if "version" not in facts:
        what = f"{package} does not import: {answer.problem}"
        return note(name, what, f"{SETUP} again; PyTorch trains without it")
    if gpus.visible and not facts["cuda"]:
        what = f"{package}, built for the processor only: it does not use the GPU"
        return note(name, what, f"{SETUP} again")
    if gpus.visible and facts["gpus"] < len(gpus.visible):
        what = f"{package}: it sees {facts['gpus']} of {len(gpus.visible)} GPU(s)"
        return note(name, what, "its CUDA libraries may be missing: install tensorflow[and-cuda]")
    if keras is None:
        what = f"{package} imports; without tf-keras, Horovod's Keras integration is wrong"
        return note(name, what, SETUP)
    return ok(name, f"{package}: imports and computes")


def horovod(answers: Mapping[str, Answer | None], gpus: Gpus) -> Check:
    """Report what Horovod is built for, and over what, as `horovodrun --check-build` does."""
    rebuild = "`make horovod` builds it (it needs g++ and make)"
    if not has("horovod"):
        what = "Horovod is not installed; training in one process does not need it"
        return note("horovod", what, rebuild)
    package = f"Horovod {version('horovod') or ''}".strip()
    if not any(answers.values()):
        return ok("horovod", f"{package} is installed; not imported")
    built, broken = built_extensions(answers)
    if not built:
        why = next(iter(broken.values()), "its extensions are not there")
        what = f"{package} works with neither PyTorch nor TensorFlow: {why}"
        return note("horovod", what, rebuild)
    over = sorted({way for ways in built.values() for way in ways})
    package += f": for {' and '.join(built)}" + (f", over {' and '.join(over)}" if over else "")
    for name, why in broken.items():
        return note("horovod", f"{package}; not for {name}: {why}", rebuild)
    if gpus.visible and "NCCL" not in over and over:
        what = f"{package}, without NCCL: gradients of GPUs would go through host memory"
        remedy = (
            "`HOROVOD_GPU_OPERATIONS=NCCL make horovod` (it needs the CUDA toolkit and NCCL's"
            " headers), or let PyTorch's DDP exchange them"
        )
        return note("horovod", what, remedy)
    return ok("horovod", package)


def built_extensions(
    answers: Mapping[str, Answer | None],
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """(framework: what its extension communicates over), (framework: why its extension fails)."""
    built: dict[str, list[str]] = {}
    broken: dict[str, str] = {}
    for framework, name in (("torch", "PyTorch"), ("tensorflow", "TensorFlow")):
        answer = answers.get(framework)
        if answer is None:
            continue
        if "horovod_gloo" in answer.facts:
            titles = {"gloo": "Gloo", "mpi": "MPI", "nccl": "NCCL"}
            built[name] = [t for key, t in titles.items() if answer.facts[f"horovod_{key}"]]
        elif "horovod_problem" in answer.facts:
            broken[name] = answer.facts["horovod_problem"]
        elif "version" in answer.facts and answer.problem:  # it went down after the framework
            broken[name] = answer.problem
    return built, broken


def torch_distributed(answer: Answer, gpus: Gpus) -> Check:
    """What PyTorch itself can communicate over."""
    facts = answer.facts
    if gpus.visible and not facts["nccl"]:
        return note("ddp", "this PyTorch has no NCCL: several GPUs cannot work together", SETUP)
    if not (facts["gloo"] or facts["nccl"]):
        return note("ddp", "this PyTorch cannot run several workers", SETUP)
    titles = {"gloo": "Gloo", "nccl": f"NCCL {facts.get('nccl_version', '')}".strip()}
    ways = [title for way, title in titles.items() if facts[way]]
    return ok("ddp", f"PyTorch's own workers: {' and '.join(ways)}")


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
        if not has_every_wheel():
            return note("dali", "there may be no DALI for this platform; the native loader serves")
        what = "DALI is not installed; the native loader serves"
        return note("dali", what, f"pip install {wanted}")
    name = found[0] if found else "nvidia-dali"
    package = f"{name} {version(name) or ''}".strip()
    if len(found) > 1:
        what = f"several DALI packages share one folder: {', '.join(found)}"
        remedy = f"pip uninstall -y {' '.join(found)}, then pip install {wanted}"
        return note("dali", what, remedy)
    if answer is not None and answer.problem:
        remedy = f"pip install --force-reinstall {wanted}"
        return note("dali", f"{package} does not run: {answer.problem}", remedy)
    if found and gpus.visible and DALI.index(name) > DALI.index(wanted):
        what = f"{package} is built for a newer CUDA than the driver serves: no decoding on the GPU"
        return note("dali", what, f"pip uninstall -y {name}, then pip install {wanted}")
    state = " is installed; not imported" if answer is None else ": a pipeline runs"
    return ok("dali", package + state)

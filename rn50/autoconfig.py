"""A complete configuration from the values that were passed, with the reason for each choice.

`prepare` reads the checkpoint, draws the built-in data if it is missing, counts the classes, fills
in the rest for this machine, and checks the result once.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50 import contradictions, installed
from rn50.contradictions import replaces, smallest_batch, unsupported_reason
from rn50.launch import is_local
from rn50lib import checkpoint
from rn50lib import recipe as recipes
from rn50lib.config import FLAGS, Resolved, TrainConfig, flags_of, scoped, slots, validated
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import UserError
from rn50lib.files import read_json
from rn50lib.hardware import Machine, has_c_compiler, machine
from rn50lib.train_step import BEFORE_TRACE, TRACED_STEPS

IMAGENET_ROOT = "/data/imagenet/train-val-recordio-passthrough"  # where the reference mounts it
# Floating-point operations per thread, a minute or two of PyTorch, for which an engine is started:
# writing the ONNX file and compiling it takes tens of seconds.
ENGINE_PAYS = 1e13
# Floating-point operations of a run that compiles: twice those after which an H100, which then
# trains at 5,810 instead of 4,833 images per second (224 px), has made up for the 52 s it takes.
COMPILE_PAYS = 7e16
# What further training takes from its checkpoint, besides what scoring takes: all that it learns by
CONTINUED = (*(name for name, flag in FLAGS.items() if flag.group == "recipe"),
             "macrobatch_size", "num_examples")  # fmt: skip
# If a value that is passed differs from the checkpoint's, these are chosen again, not taken
FOLLOWS = {
    "recipe": (*vars(recipes.REFERENCE), "val_resize"),
    "num_epochs": ("warmup_epochs", "lr_step_epochs"),
    "lr_schedule": ("lr_step_epochs",),
    "image_shape": ("val_resize",),
}
REFERENCE_MEMORY = 16 * 2**30  # bytes of the GPU that the reference's batches are for
Given = Mapping[str, Any]  # values by the names of fields of TrainConfig
Choice = tuple[str, Any, str]  # a field, its value and the reason; the first that is yielded holds


def prepare(
    given: Given, group: LaunchEnv | None = None, remarks: list[str] | None = None
) -> Resolved:
    """Return the complete configuration of a run on this machine.

    `group` has started this process as a worker. Missing built-in data is drawn, unless this only
    plans a run: then `remarks` gets what this machine lacks for it. Raises UserError for values
    that are impossible or contradict each other, and if the images do not fill a batch.
    """
    stored = stored_values(given)
    known = {**given, **stored}
    # Errors come before the drawing; the classes change nothing else.
    found = resolve(known, machine(), known.get("num_classes") or 1000, group, remarks)
    reasons = {**found.reasons, **dict.fromkeys(stored, "the checkpoint's")}
    found, config, counted = replace(found, reasons=reasons), found.config, None
    root, stored_images = Path(config.data_root), config.loader != "synthetic"
    if stored_images and remarks is None and root.absolute() == built_in_root():
        from data_prep import roadsigns

        roadsigns.ensure_packed(root, tfrecord=config.data_format == "tfrecord")
    sources: dict[str, Any] = {}
    if stored_images and (remarks is None or root.exists()):
        from rn50lib.run_setup import check_classes_of_splits, open_sources

        try:
            sources = open_sources(config)
            counted = len(check_classes_of_splits(config, sources) or ())
        except UserError:
            if remarks is None or root.absolute() != built_in_root():  # else a run draws it
                raise
    if not known.get("num_classes"):
        if counted is not None:
            found = found.chosen("counted in the data set", num_classes=counted)
        elif stored_images and is_roadsigns(root):  # a plan, before they are drawn
            found = found.chosen("the built-in road signs'", num_classes=12)
        else:
            found = found.chosen("ImageNet's: no data set", num_classes=1000)
    elif counted is not None and config.num_classes < counted:
        remedy = "leave --num-classes out"
        if "num_classes" in stored:
            remedy = "use the data set of the checkpoint, or train on this one with --init-from"
        raise UserError(
            f"{root} has {counted} classes, and the network {config.num_classes}: {remedy}"
        )
    config = replace(found.config, data_root=os.path.abspath(root))
    found = replace(found, config=config)
    contradictions.check_number_of_classes(config)
    if counted is not None and not remarks:  # else the data is elsewhere, too
        passed = known if config.macrobatch_size else given  # more workers: a smaller batch
        batch = fitting_batch(config, passed, len(sources.get("train", ())))
        if batch != config.batch_size:
            found = found.chosen("as many as the training images fill", batch_size=batch)
    if config.only_inference and "engine" not in known and "val" in sources:
        timed = config.no_metrics or config.test_io
        images = 0 if timed else images_of(found.config, len(sources["val"]))
        engine, why = best_engine(found.config, images)
        found = found.chosen(why, engine=engine)
    if "compile" not in known and "train" in sources:
        compiled, why = best_compile(found.config, machine(), len(sources["train"]))
        found = found.chosen(why, compile=compiled)  # if it fails, `launch.run` starts again
    return found


def fitting_batch(config: TrainConfig, given: Given, there: int) -> int:
    """Return the batch, or a smaller one that the images `there` fill if none was passed.

    Raises UserError if they do not fill one that was.
    """
    if config.only_inference:
        return config.batch_size
    needed, n, least = config.effective_batch_size, config.n, smallest_batch(config)
    images = min(there, config.num_examples or there)
    if images >= needed:
        return config.batch_size
    gives = f"--data-root {config.data_root} has {there} training images"
    if images < there:
        gives = f"--num-examples leaves {images} training images"
    if images < n * least:
        fewer = f": use -n {images // least}" if images >= least else ""
        raise UserError(f"-n {n}: {gives}, and a step needs {n * least}{fewer}")
    name = "macrobatch_size" if config.macrobatch_size else "batch_size"
    if name in given:
        unit = given.get("batch_size", 1) if config.macrobatch_size else 1
        size, flag = images // n // unit * unit, FLAGS[name].names.split()[0]
        use = f"{flag} {size}" if size else f"-b {images // n} without it"
        raise UserError(
            f"{flag} {given[name]}: an update takes {needed} images, and {gives}: use {use}"
        )
    return images // n


# --- the data set ---------------------------------------------------------------------------------


def data_home() -> Path:
    """Return `$RN50_DATA`, by default `data/` in the current folder."""
    return Path(os.environ.get("RN50_DATA") or "data").absolute()


def built_in_root() -> Path:
    """Return the folder of the road signs, which are drawn there if they are missing."""
    return data_home() / "roadsigns"


def default_data_root() -> tuple[Path, str]:
    """Return the data set of a run that names none, and why."""
    if Path(IMAGENET_ROOT, "train.rec").exists():
        return Path(IMAGENET_ROOT), "ImageNet is mounted where the reference expects it"
    return built_in_root(), "the built-in road signs, as --data-root is not set"


def is_roadsigns(data_root: Path) -> bool:
    """Return True for the built-in data or its records or shards, by the stamp of its generator."""
    root = data_root.resolve()
    if not root.exists():
        return root == built_in_root().resolve()
    from data_prep.roadsigns import Parameters

    stamps = [root / ".complete"]
    if root.name in ("records", "tfrecord"):
        stamps.append(root.parent / ".complete")
    for stamp in stamps:
        with contextlib.suppress(OSError, ValueError, TypeError):  # missing, or another program's
            if set(read_json(stamp)) == set(vars(Parameters())):
                return True
    return False


# --- the checkpoint -------------------------------------------------------------------------------


def stored_values(given: Given) -> dict[str, Any]:
    """Return what a checkpoint decides: the network, its input and, in training, the recipe.

    Raises UserError if `given` contradicts the checkpoint.
    """
    found: dict[str, Any] = {}
    prefix, epoch, start = (given.get(n) for n in ("model_prefix", "load_epoch", "init_from"))
    if start:
        try:
            file = find_weights(start)
        except UserError:
            if not (given.get("resume") and prefix and checkpoint.newest(prefix)[0]):
                raise  # a run that is resumed needs them no more
        else:
            found, start = network_of(given, checkpoint.parts(file)[0], classes=False), str(file)
    starts = epoch is not None or (
        given.get("resume") and prefix and checkpoint.symbol_path(prefix).exists()
    )
    if prefix and starts:
        found |= network_of(given, prefix)
        known = checkpoint.newest(prefix)[0] if epoch is None else checkpoint.load(prefix, epoch)
        trained = known.config if known else {}
        names = taken_names(given, trained)
        found |= {name: value for name, value in trained.items() if name in names}
        dtype, there = found.get("dtype", "float32"), given.get("backend") or "torch"
        if unsupported_reason(dtype, machine(), found["network"]) or (
            dtype == "float16" and there == "tensorflow"
        ):
            del found["dtype"]  # trained on a different machine or backend: choose for this one
    found = {name: value for name, value in found.items() if name not in given}
    return found | ({"init_from": start} if start else {})


def taken_names(given: Given, trained: Given) -> set[str]:
    """Return the fields that a run takes from what its checkpoint was `trained` with."""
    names = {*scoped("score")}
    if not given.get("only_inference"):
        names |= {*CONTINUED}
    if given.get("backend") == "tensorflow":
        names -= {*scoped("torch")}
    for name, following in FOLLOWS.items():
        if given.get(name, trained.get(name)) != trained.get(name):
            names -= {*following}
    return names


def find_weights(name: str) -> Path:
    """Return the file that --init-from names, or the newest checkpoint that verifies of a prefix.

    Raises UserError if there is none. A named file is verified when it is loaded.
    """
    with contextlib.suppress(ValueError):
        checkpoint.parts(name)
        checkpoint.read(Path(name), with_arrays=False)
        return Path(name)
    found, passed_over = checkpoint.newest(name)
    if found is None:
        problem = f"--init-from {name}: there is no checkpoint {name}-NNNN.safetensors"
        raise UserError("; ".join([problem, *passed_over]), ("weights",))
    return checkpoint.path(name, found.epoch, found.position.images)


def network_of(given: Given, prefix: str, classes: bool = True) -> dict[str, Any]:
    """Return the fields of a checkpoint's network, with the number of `classes` or without."""
    net = checkpoint.read_network(prefix)
    found: dict[str, Any] = {"network": "tiny", "resnet_version": net.version}
    if net.name != "resnet-tiny":
        found |= {"network": "resnet", "num_layers": int(net.name.removeprefix("resnet"))}
    if classes:
        found["num_classes"] = net.num_classes
    for name, value in found.items():
        if given.get(name, value) != value:
            raise UserError(
                f"{shlex.join(flags_of({name: given[name]}))}: the checkpoint {prefix} is a"
                f" {net.name} {net.version} with {net.num_classes} classes; leave the flag out"
            )
    return found


# --- what was not passed --------------------------------------------------------------------------


def resolve(
    given: Given,
    machine: Machine,
    num_classes: int,
    group: LaunchEnv | None = None,
    remarks: list[str] | None = None,
) -> Resolved:
    """Fill in every value that was not passed, then check all of them. Raises UserError.

    Unless `remarks` is None, it gets what the machine lacks, which is no error then.
    """
    passed = validated({name: value for name, value in given.items() if value is not None})
    if passed.get("data_format") == "auto":
        del passed["data_format"]
    reasons = dict.fromkeys(passed, "given")
    values = {name: flag.default for name, flag in FLAGS.items() if flag.default is not ...}
    values |= passed
    for name, value, reason in choices(values, machine, num_classes, group):
        if name not in reasons:
            values[name], reasons[name] = value, reason
    config = TrainConfig(**values)
    caps: tuple[str, ...] = ()
    contradictions.check_values(config)
    if config.profile == "ci":
        config, caps = cap_for_ci(config, started=group is not None)
        contradictions.check_values(config)
    try:
        contradictions.check_machine(config, machine, group)
    except UserError as error:
        if remarks is None:
            raise
        remarks.append(f"not on this machine: {error}")
    return Resolved(config, reasons, caps)


def choices(
    values: Given, machine: Machine, num_classes: int, group: LaunchEnv | None
) -> Iterator[Choice]:
    """Yield (field, value, reason); `values` has what was passed, and what was yielded before."""
    gpus = machine.gpus
    root, why = default_data_root()
    yield "data_root", str(root), why
    if is_roadsigns(Path(values["data_root"])):
        yield "recipe", "roadsigns", "the built-in data's"
    yield "recipe", "reference", "the published recipe"
    name = values["recipe"]
    base, small = recipes.RECIPES[name], name == "roadsigns"  # what a laptop can train
    yield "num_epochs", base.num_epochs, f"the recipe {name}"
    if values["network"] != "tiny":
        yield "num_layers", 50, "the default"
    if values["backend"] == "tensorflow":
        form = format_for_tensorflow(values["data_root"])
        yield "data_format", form, "TensorFlow reads files, else TFRecord shards"
    yield "data_format", "auto", "records where there are some, else files"
    yield "loader", *best_loader(values, machine)
    yield "dtype", *best_dtype(machine, name, values["backend"])
    if values["dtype"] == "float16" and values["backend"] == "torch":
        yield "loss_scale", "dynamic", "float16 loses small gradients without it"
    if group is not None:
        yield "n", group.size, f"as many as {group.launcher} has started"
    elif gpus and not small:
        yield "n", min(8, len(gpus)), "the reference's 8, or the GPUs there are"
    yield "n", 1, "one GPU is enough for this data" if gpus else "one process"
    if "comm" not in values:  # asking what Horovod was built with takes seconds
        yield "comm", *best_comm(values, bool(gpus), group)
    if values["n"] > 1 and group is None and (comm := values["comm"]) != "local":
        yield "launcher", "torchrun" if comm == "ddp" else "horovodrun", f"the one for {comm}"
    batch, why = best_batch(values, machine)
    if macro := values["macrobatch_size"]:
        batch = max(size for size in range(1, batch + 1) if macro % size == 0)
        why = f"a divisor of --macrobatch-size {macro}"
    yield "batch_size", batch, why
    yield "num_classes", num_classes, "the data set's"
    yield from recipe_choices(values, base)
    yield "val_resize", recipes.val_resize(values["image_shape"]), "size x 256 / 224"
    cores, why = share_of_cores(values, machine, group)
    yield "threads", cores, why
    yield "data_nthreads", cores, why


def recipe_choices(values: Given, base: recipes.Recipe) -> Iterator[Choice]:
    """Yield the recipe's numbers; its schedule covers the epochs of the run."""
    why, epochs = f"the recipe {base.name}", values["num_epochs"]
    yield "lr_schedule", base.lr_schedule, why
    schedule = values["lr_schedule"]
    if schedule != "step":
        yield "lr_step_epochs", (), f"a {schedule} schedule has none"
    if epochs != base.num_epochs:
        scaled = recipes.rescaled(base, epochs)
        covered = f"{epochs} epoch{'s' * (epochs != 1)}"
        other = f"{why}, scaled from {base.num_epochs} to {covered}"
        yield "warmup_epochs", scaled.warmup_epochs, other
        yield "lr_step_epochs", scaled.lr_step_epochs, other
    for name in FLAGS.keys() & vars(base).keys():
        yield name, getattr(base, name), why


def share_of_cores(values: Given, machine: Machine, group: LaunchEnv | None) -> tuple[int, str]:
    """Return the threads of a worker, an equal share of the cores, and why."""
    hosts, sharing = values["hosts"], values["n"]
    if group is not None:
        sharing = group.local_size
    elif hosts:
        sharing = min(sharing, max(slots(hosts).values()))
    cores = max(1, machine.cores // sharing)
    if group is not None and group.cores is not None:
        cores, sharing = min(group.cores, machine.cores), 1
    shared = f", shared by {sharing} workers" if sharing > 1 else ""
    return cores, f"the {machine.cores} cores this process may use{shared}"


def format_for_tensorflow(root: str) -> str:
    """Return which form of a data set TensorFlow reads. Raise UserError if it reads none."""
    from rn50lib.data.source import FORMS, forms_in

    forms = forms_in(Path(root)) or ["files"]
    if read := [form for form in ("files", "tfrecord") if form in forms]:
        return read[0]
    raise UserError(
        f"--data-root {root}: it holds {FORMS[forms[0]].layout}, and TensorFlow reads class folders"
        " or TFRecord shards: use --backend torch, or make shards of them",
        ("write_shards", root),
    )


def best_loader(values: Given, machine: Machine) -> tuple[str, str]:
    """Return the default loader, and why."""
    if not machine.gpus or values["recipe"] == "roadsigns":
        return "native", "the default"
    if not installed.has("nvidia.dali"):
        return "native", "DALI is not installed here"
    if values["backend"] == "tensorflow":
        return "native", "tf.data, TensorFlow's own"
    if any(replaces(values["override"], part) for part in ("augment", "shard")):
        return "native", "DALI calls no Python function for a crop or a shard"
    return "dali", "the reference's: it decodes on the GPU"


def best_batch(values: Given, machine: Machine) -> tuple[int, str]:
    """Return the default batch per worker, and why."""
    if values["recipe"] == "roadsigns":
        return 32, "the recipe's"
    if not machine.gpus:
        return 32, "no GPU: a small batch"
    batch, bits = recipes.REFERENCE.batch_size, 16
    if values["dtype"] in ("float32", "tf32"):  # activations take twice the memory
        batch, bits = 96, 32
    size = recipes.REFERENCE.image_shape
    pixels = values.get("image_shape", size)
    memory = min(gpu.memory or REFERENCE_MEMORY for gpu in machine.gpus)
    share = memory / REFERENCE_MEMORY * (size / pixels) ** 2
    if share > 0.9:  # a GPU of 16 GB may report 15
        return batch, f"the reference's, for 16 GB in FP{bits}"
    why = f"the reference's {batch}, for 16 GB and {size} pixels in FP{bits}, scaled to"
    return max(8, int(batch * share) // 8 * 8), f"{why} {memory / 2**30:.0f} GB and {pixels} pixels"


def images_of(config: TrainConfig, images: int) -> int:
    """Return how many of so many images a run takes, in all epochs."""
    most = (config.benchmark_iters or images) * config.global_batch
    return min(images, most) * config.num_epochs


def best_engine(config: TrainConfig, images: int) -> tuple[str, str]:
    """Return what predicts so many images on a processor, and why."""
    able = config.backend == "torch" and not config.compile and not machine().gpus
    able = able and config.dtype in ("float32", "bfloat16")
    if not able or replaces(config.override, "predictor"):
        return "torch", "the default"
    flops = config.to_network().train_flops(config.image_shape) / 3
    pays = math.ceil(ENGINE_PAYS * config.n * config.threads / flops)  # images
    if images < pays:
        return "torch", "an engine's start would take longer than it saves"
    if installed.has("onnxscript") and installed.has("openvino"):
        return "openvino", "the work takes much longer than the engine's start"
    return "torch", "OpenVINO is not installed: pip install onnx onnxscript openvino"


def best_compile(config: TrainConfig, machine: Machine, images: int) -> tuple[bool, str]:
    """Return whether a run on one GPU, with so many training images, compiles its step, and why."""
    plain = not (config.fused or config.cuda_graph or replaces(config.override, "predictor"))
    able = plain and config.trains and config.backend == "torch" and config.engine == "torch"
    if not machine.gpus or config.n > 1 or not able:
        return False, "the default"
    if not (installed.has("triton") and has_c_compiler()):
        return False, "it needs Triton and a C compiler"
    pays = math.ceil(COMPILE_PAYS / config.to_network().train_flops(config.image_shape))  # images
    if images_of(config, min(images, config.num_examples or images)) < pays:
        return False, "so short a run would not make up for the minute that compiling takes"
    return True, "so long a run makes up for the minute that compiling takes"


def best_dtype(machine: Machine, recipe: str, backend: str) -> tuple[str, str]:
    """Return the default precision on a machine, and why."""
    if machine.gpus:
        half: tuple[str, ...] = ("float16",) if recipe == "reference" else ("bfloat16", "float16")
        if any("GTX 16" in gpu.name for gpu in machine.gpus):  # 7.5 without Tensor Cores, and
            half = ()  # NaN from convolutions in float16: pytorch/pytorch#77955
        for dtype in half if backend == "torch" else ("bfloat16",):
            if not unsupported_reason(dtype, machine):
                return dtype, f"the GPU's Tensor Cores compute in {dtype}"
        if half and backend != "torch" and not unsupported_reason("float16", machine):
            return "float32", "this GPU has Tensor Cores for float16 only, which is for PyTorch"
        return "float32", "the GPU has no Tensor Cores for fewer bits"
    if machine.bfloat16:
        return "bfloat16", f"the processor computes in bfloat16 ({machine.bfloat16})"
    return "float32", "the processor has neither avx512_bf16 nor amx: bfloat16 would be slower"


def best_comm(values: Given, gpus: bool, group: LaunchEnv | None) -> tuple[str, str]:
    """Return the default library between workers, and why. Raises UserError if there is none."""
    n, backend, launcher = values["n"], values["backend"], values["launcher"]
    if n == 1:
        return "local", "a single worker"
    if group is not None:  # MPICH and Open MPI start each other's workers as groups of one
        by_horovod = group.launcher in ("horovodrun", "mpirun") or backend != "torch"
        return "horovod" if by_horovod else "ddp", f"{group.launcher} has started the workers"
    if launcher == "torchrun":
        return "ddp", "torchrun starts its workers"
    built = installed.horovod_serves(backend)
    fits = built and (not gpus or installed.horovod_has("nccl", backend))
    if launcher is None and backend == "torch":
        if not fits:
            return "ddp", "Horovod is not built for this hardware"
        if values["compile"] and is_local(values["hosts"]):  # torchrun starts workers on one host
            return "ddp", "a compiled backward pass gives Horovod every gradient at its end"
        return "horovod", "it is built for this hardware"
    if built and not fits:
        raise UserError(
            f"-n {n}: Horovod connects these workers, and is built without NCCL: install the CUDA"
            " toolkit and NCCL's headers and run `make horovod`, or pass --comm horovod to exchange"
            " gradients through the host's memory"
        )
    return "horovod", f"the one for {launcher or backend}"


def cap_for_ci(config: TrainConfig, started: bool) -> tuple[TrainConfig, tuple[str, ...]]:
    """Return the configuration cut to seconds, and a line for each value that changed."""
    most = BEFORE_TRACE + TRACED_STEPS if config.trace else 2  # iterations
    limits: dict[str, Any] = {
        "n": config.n if started else min(config.n, 2), "batch_size": min(config.batch_size, 4),
        "image_shape": 32, "val_resize": recipes.val_resize(32), "network": "tiny",
        "num_layers": None, "num_epochs": min(config.num_epochs, 2),
        "benchmark_iters": min(config.benchmark_iters or most, most), "data_nthreads": 0,
        "threads": 1,  # two would wait for each other more than they compute
        "dtype": "float32" if config.dtype == "tf32" else config.dtype,
    }  # fmt: skip
    if config.macrobatch_size is not None:
        at_once = min(config.grad_accum_steps, limits["benchmark_iters"])
        limits["macrobatch_size"] = limits["batch_size"] * at_once
    changed = {name: value for name, value in limits.items() if value != getattr(config, name)}
    lines = tuple(
        f"profile ci: {FLAGS[name].option} {getattr(config, name)} "
        + ("left out" if value is None else f"capped to {value}")
        for name, value in changed.items()
    )
    return replace(config, **changed), lines

"""One experiment, a few axes: the run as data, which flags, presets and notebooks fill in.

`Experiment` holds what was asked for (None: not given); `resolve` fills in the rest once, from the
machine, the data set and the profile, and says why. A value that was given is never changed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rn50lib import launchers
from rn50lib import network as networks
from rn50lib import recipe as recipes
from rn50lib.errors import UserError
from rn50lib.flags import (
    degrees,
    epoch_list,
    flag,
    host_list,
    image_shape,
    loss_scale,
    natural,
    not_negative,
    pace,
    positive,
    texts,
)
from rn50lib.hardware import Machine
from rn50lib.precision import DTYPES, best_dtype, lacks, scales

BACKENDS = ("torch", "tensorflow")
LOADERS = ("native", "dali", "synthetic")
FORMATS = ("auto", "files", "recordio", "tfrecord")
RESAMPLE = ("antialias", "fast")
COMMS = ("local", "horovod", "ddp")
LAUNCHERS = ("horovodrun", "mpirun", "torchrun")
PROFILES = ("auto", "ci", "cpu", "gpu")
IMAGENET_ROOT = "/data/imagenet/train-val-recordio-passthrough"  # where the reference mounts it


@dataclass(frozen=True)
class Experiment:
    """What is trained, on what, how. Each field is a flag of `rn50 run`, `train` and `score`."""

    # the axes
    backend: str | None = flag(
        "--backend", kind=str, choices=BACKENDS, group="axes", help="framework (default: torch)"
    )
    data_root: str | None = flag(
        "--data-root", kind=str, group="axes",
        help="folder with train.rec, train.idx, val.rec, val.idx or train/CLASS/*.jpg and"
        f" val/CLASS/*.jpg (default: {IMAGENET_ROOT} where it exists, else the road signs)",
    )  # fmt: skip
    data_format: str | None = flag(
        "--data-format", kind=str, choices=FORMATS, group="axes",
        help="how the images are stored (default: records where there are some, else files, else"
        " TFRecord shards)",
    )  # fmt: skip
    loader: str | None = flag(
        "--loader", kind=str, choices=LOADERS, group="axes",
        help="input pipeline: native is PyTorch's or tf.data, synthetic makes random images"
        " (default: native; for the reference's recipe on GPUs dali, where it is installed)",
    )  # fmt: skip
    dtype: str | None = flag(
        "--dtype", kind=str, choices=DTYPES, group="axes",
        help="precision of the arithmetic (default: the fastest that the hardware has)",
    )  # fmt: skip
    loss_scale: str | None = flag(
        "--loss-scale", kind=loss_scale, group="axes",
        help="what the loss is multiplied by, so that small gradients do not vanish: dynamic,"
        " dynamic:START:STEPS (doubles after STEPS good steps) or a number (default: dynamic for"
        " float16, none for the others)",
    )  # fmt: skip
    n: int | None = flag(
        "-n", "--n-GPUs", kind=positive, group="axes",
        help="workers, one a GPU; without GPUs, processes (default: 1)",
    )  # fmt: skip
    comm: str | None = flag(
        "--comm", kind=str, choices=COMMS, group="axes",
        help="what carries the gradients between workers (default: Horovod where it is built for"
        " this hardware, else DDP)",
    )  # fmt: skip
    batch_size: int | None = flag(
        "-b", "--batch-size", kind=positive, group="axes", help="images per worker and step"
    )
    macrobatch_size: int | None = flag(
        "--macrobatch-size", kind=positive, group="axes",
        help="images per worker and update, a multiple of -b: the gradients of several batches are"
        " added up and exchanged once (default: -b)",
    )  # fmt: skip
    # the model
    network: str | None = flag(
        "--network", kind=str, choices=("resnet", "tiny"), group="model",
        help="tiny is the same code path in a fraction of the time, for tests (default: resnet)",
    )  # fmt: skip
    num_layers: int | None = flag(
        "--num-layers", kind=int, choices=tuple(networks.STAGES), group="model",
        help="depth of the ResNet (default: 50)",
    )  # fmt: skip
    resnet_version: str | None = flag(
        "--resnet-version", kind=str, choices=networks.VERSIONS, group="model",
        help="where the stride of a down-sampling bottleneck stands (default: v1.5)",
    )  # fmt: skip
    num_classes: int | None = flag(
        "--num-classes", kind=positive, group="model", help="classes (default: the data set's)"
    )
    image_shape: int | None = flag(
        "--image-shape", kind=image_shape, group="model",
        help="input size, 3,224,224 or 224 (default: the recipe's)",
    )  # fmt: skip
    # the recipe
    recipe: str | None = flag(
        "--recipe", kind=str, choices=tuple(recipes.RECIPES), group="recipe",
        help="which numbers the flags below start from (default: roadsigns for the built-in data)",
    )  # fmt: skip
    num_epochs: int | None = flag(
        "-e", "--num-epochs", kind=positive, group="recipe", help="epochs (default: the recipe's)"
    )
    lr: float | None = flag(
        "-l", "--lr", kind=not_negative, group="recipe",
        help="learning rate at a global batch of 256, scaled linearly (default: the recipe's)",
    )  # fmt: skip
    warmup_epochs: float | None = flag(
        "--warmup-epochs", kind=not_negative, group="recipe",
        help="epochs over which the rate rises from 0 (default: the recipe's)",
    )  # fmt: skip
    lr_step_epochs: tuple[float, ...] | None = flag(
        "--lr-step-epochs", kind=epoch_list, group="recipe",
        help="epochs at which the rate falls to a tenth (default: the recipe's)",
    )  # fmt: skip
    mom: float | None = flag(
        "--mom", kind=not_negative, group="recipe", help="momentum (default: 0.9)"
    )
    wd: float | None = flag(
        "--wd", kind=not_negative, group="recipe", help="weight decay (default: 1e-4)"
    )
    val_resize: int | None = flag(
        "--val-resize", kind=positive, group="recipe",
        help="shorter side of a validation image before the crop (default: size x 256 / 224)",
    )  # fmt: skip
    resample: str | None = flag(
        "--resample", kind=str, choices=RESAMPLE, group="recipe",
        help="how tf.data and DALI make a crop small: fast leaves out what keeps fine patterns from"
        " turning into coarse ones (default: antialias, as every other loader)",
    )  # fmt: skip
    rotate: float = flag(
        "--rotate", kind=degrees, default=0.0, group="recipe",
        help="turn every training image by up to so many degrees to either side (default: 0)",
    )  # fmt: skip
    flip_up_down: bool = flag(
        "--flip-up-down", default=False, group="recipe",
        help="turn every other training image upside down, by chance",
    )  # fmt: skip
    seed: int | None = flag(
        "--seed", kind=natural, group="recipe",
        help="start of all randomness: initial weights, order, augmentation (default: 0)",
    )  # fmt: skip
    # what the run does
    model_prefix: str | None = flag(
        "--model-prefix", kind=str, help="write PREFIX-symbol.json and PREFIX-NNNN.safetensors"
    )
    save_period: int = flag(
        "--save-period", kind=positive, default=1, help="epochs between checkpoints (default: 1)"
    )
    keep: int | None = flag(
        "--keep", kind=positive, help="checkpoints to keep, the newest (default: all)"
    )
    load_epoch: int | None = flag(
        "--load-epoch", kind=natural, help="start from the checkpoint of this epoch, or score it"
    )
    resume: bool = flag(
        "--resume", default=False,
        help="go on from the newest checkpoint of --model-prefix that verifies",
    )  # fmt: skip
    report: str | None = flag("--report", kind=str, help="write a JSON report, after every epoch")
    logdir: str | None = flag("--logdir", kind=str, help="write TensorBoard files to this folder")
    profile_trace: str | None = flag(
        "--profile-trace", kind=str, help="write a Chrome trace of a few steps to this file"
    )
    no_val: bool = flag("--no-val", default=False, help="train only")
    only_inference: bool = flag("--only-inference", default=False, help="validate only")
    no_metrics: bool = flag("--no-metrics", default=False, help="measure speed, not accuracy")
    benchmark_iters: int | None = flag(
        "--benchmark-iters", kind=positive, help="iterations per epoch (default: the whole data)"
    )
    num_examples: int | None = flag(
        "--num-examples", kind=positive, help="use only this many training images per epoch"
    )
    test_io: bool = flag("--test-io", default=False, help="time the input pipeline alone")
    step: float | None = flag(
        "--step", kind=pace,
        help="paced:RATE replaces the model by a wait that stands for RATE images a second",
    )  # fmt: skip
    override: tuple[str, ...] = flag(
        "--override", kind=list, default=(),
        help="SEAM=FILE:NAME puts a function of your own into the run",
    )  # fmt: skip
    disp_batches: int = flag(
        "--disp-batches",
        kind=positive,
        default=20,
        help="iterations between readings (default: 20)",
    )
    timeline: str | None = flag(
        "--timeline", kind=str, help="write Horovod's timeline of the run to this file"
    )
    # many workers
    launcher: str | None = flag(
        "--launcher", kind=str, choices=LAUNCHERS, group="many workers",
        help="what starts the workers (default: horovodrun for Horovod, torchrun for DDP)",
    )  # fmt: skip
    hosts: str | None = flag(
        "--hosts", kind=host_list, group="many workers",
        help="where the workers run, HOST:SLOTS,... (default: all on this machine)",
    )  # fmt: skip
    bind: str | None = flag(
        "--bind", kind=str, choices=("core",), group="many workers",
        help="core gives every worker cores of its own (default: the system moves them)",
    )  # fmt: skip
    port: int | None = flag(
        "--port", kind=positive, group="many workers",
        help="where torchrun's workers find each other (default: a free port)",
    )  # fmt: skip
    elastic: bool = flag(
        "--elastic", default=False, group="many workers",
        help="go on when a worker dies, and take in workers that come (PyTorch, horovodrun)",
    )  # fmt: skip
    min_np: int | None = flag(
        "--min-np", kind=positive, group="many workers",
        help="with --elastic: the fewest workers to go on with (default: 1)",
    )  # fmt: skip
    max_np: int | None = flag(
        "--max-np", kind=positive, group="many workers",
        help="with --elastic: the most workers to take in (default: -n)",
    )  # fmt: skip
    commit_steps: int = flag(
        "--commit-steps", kind=positive, default=10, group="many workers",
        help="with --elastic: steps between the points to go back to (default: 10)",
    )  # fmt: skip
    max_restarts: int = flag(
        "--max-restarts", kind=natural, default=0, group="many workers",
        help="start a run that a worker's death has ended again from its last checkpoint, so often",
    )  # fmt: skip
    fp16_allreduce: bool = flag(
        "--fp16-allreduce", default=False, group="many workers",
        help="send gradients in 16 bits: half the bytes, less precision",
    )  # fmt: skip
    fusion_mb: int | None = flag(
        "--fusion-mb", kind=positive, group="many workers",
        help="gradients that travel as one message, in MB (default: Horovod 128, DDP 25)",
    )  # fmt: skip
    cycle_ms: float | None = flag(
        "--cycle-ms", kind=not_negative, group="many workers",
        help="milliseconds between Horovod's looks for ready gradients (default: 1)",
    )  # fmt: skip
    # the machine
    threads: int | None = flag(
        "--threads", kind=positive, group="machine",
        help="compute threads per worker (default: the cores it may use)",
    )  # fmt: skip
    data_nthreads: int | None = flag(
        "--data-nthreads", kind=natural, group="machine",
        help="loader workers per worker; 0 loads in the training process (default: the cores)",
    )  # fmt: skip
    compile: bool = flag(
        "--compile", default=False, group="machine",
        help="let torch.compile, or TensorFlow's XLA, join the model's operations into kernels",
    )  # fmt: skip
    cuda_graphs: bool = flag(
        "--cuda-graphs", default=False, group="machine",
        help="record a training step once and replay it, without launching its kernels one by one",
    )  # fmt: skip
    profile: str = flag(
        "--profile", kind=str, choices=PROFILES, default="auto", group="machine",
        help="ci caps the run to seconds and prints every cap",
    )  # fmt: skip

    def given(self) -> dict[str, Any]:
        """The fields that differ from an experiment of which nothing was given."""
        nothing = Experiment()
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != getattr(nothing, f.name)
        }

    def to_argv(self) -> list[str]:
        """The flags that give this experiment again, long names, in the order of the fields."""
        argv: list[str] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default:
                continue
            name = f.metadata["names"][-1]
            kind = f.metadata["kind"]
            if kind is None:
                argv.append(name)
                continue
            for text in texts(value, kind):
                # joined where argparse would take the value for a flag
                argv += [f"{name}={text}"] if text.startswith("-") else [name, text]
        return argv


class FullExperiment(Experiment):
    """An experiment that leaves nothing open: `resolve` gives one, and a run wants one."""

    backend: str
    data_root: str
    data_format: str
    loader: str
    dtype: str
    n: int
    comm: str
    batch_size: int
    network: str
    resnet_version: str
    num_classes: int
    image_shape: int
    recipe: str
    num_epochs: int
    lr: float
    warmup_epochs: float
    lr_step_epochs: tuple[float, ...]
    mom: float
    wd: float
    val_resize: int
    resample: str
    seed: int
    threads: int
    data_nthreads: int

    @property
    def global_batch(self) -> int:
        """Images of all workers in one iteration."""
        return self.n * self.batch_size

    @property
    def micro_batches(self) -> int:
        """Batches whose gradients are added up for one update."""
        return (self.macrobatch_size or self.batch_size) // self.batch_size

    @property
    def update_batch(self) -> int:
        """Images of all workers in one update: what the learning rate goes by."""
        return self.global_batch * self.micro_batches

    def to_recipe(self) -> recipes.Recipe:
        """The recipe with this experiment's own numbers in it."""
        base = recipes.RECIPES[self.recipe]
        return replace(
            base,
            augmentation=replace(
                base.augmentation, rotate=self.rotate, upside_down=0.5 * self.flip_up_down
            ),
            epochs=self.num_epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            image_size=self.image_shape,
            warmup_epochs=self.warmup_epochs,
            lr_step_epochs=self.lr_step_epochs,
            momentum=self.mom,
            weight_decay=self.wd,
        )

    def to_network(self) -> networks.Network:
        """The network of this experiment."""
        if self.network == "tiny":
            return networks.tiny(self.num_classes, self.resnet_version)
        assert self.num_layers is not None
        return networks.resnet(self.num_layers, self.num_classes, self.resnet_version)


@dataclass(frozen=True)
class Resolved:
    """An experiment with every axis filled in, why each was chosen, and what was capped."""

    experiment: FullExperiment
    reasons: Mapping[str, str]
    caps: tuple[str, ...] = ()


def data_home() -> Path:
    """`$RN50_DATA`, default `data/` in the current folder."""
    return Path(os.environ.get("RN50_DATA") or "data").absolute()


def default_data_root() -> tuple[Path, str]:
    """The data set of a run that names none, and why."""
    if Path(IMAGENET_ROOT, "train.rec").exists():
        return Path(IMAGENET_ROOT), "ImageNet is mounted where the reference expects it"
    return data_home() / "roadsigns", "the built-in road signs, as no --data-root was given"


def is_roadsigns(data_root: Path) -> bool:
    """Whether a data root is the built-in data: its folder, its small form, or records in them."""
    return bool({"roadsigns", "roadsigns-ci"} & {data_root.name, data_root.parent.name})


def resolve(asked: Experiment, machine: Machine, num_classes: int | None) -> Resolved:
    """Fill in every axis that was not given, once.

    `num_classes` is the data set's (None: not known, then --num-classes must be given). Raises
    UserError where a given value is impossible here or two given values contradict each other: the
    message names the flag and the remedy.
    """
    reasons: dict[str, str] = dict.fromkeys(asked.given(), "given")
    filled: dict[str, Any] = {}

    def auto(name: str, value: Any, reason: str) -> Any:
        if getattr(asked, name) is not None:
            return getattr(asked, name)
        filled[name], reasons[name] = value, reason
        return value

    check(asked, machine)
    gpus = machine.gpus
    root, reason = default_data_root()
    root = Path(auto("data_root", str(root), reason))
    built_in = is_roadsigns(root)
    name = auto(
        "recipe",
        "roadsigns" if built_in else "reference",
        "the built-in data's" if built_in else "the published recipe",
    )
    base = recipes.RECIPES[name]
    epochs = auto("num_epochs", base.epochs, f"the recipe {name}")
    if base.name == "roadsigns" and epochs != base.epochs:
        base = recipes.shortened(base, epochs)
    auto("backend", "torch", "the default")
    auto("data_format", "auto", "records where there are some, else files")
    loader, reason = best_loader(asked, machine, name)
    auto("loader", loader, reason)
    dtype, reason = best_dtype(machine, name)
    dtype = auto("dtype", dtype, reason)
    if dtype == "float16":
        auto("loss_scale", "dynamic", "float16 loses small gradients without it")
    if gpus and name == "reference":
        n = auto("n", min(8, len(gpus)), "the reference's 8, or the GPUs there are")
    else:
        n = auto("n", 1, "one process" if not gpus else "one GPU is enough for this data")
    comm, reason = asked.comm, "given"
    if comm is None:  # to ask what Horovod was built with takes seconds
        comm, reason = launchers.best_comm(n, asked.backend or "torch", asked.launcher, bool(gpus))
    comm = auto("comm", comm, reason)
    if n > 1:
        starter = "torchrun" if comm == "ddp" else "horovodrun"
        auto("launcher", starter, f"the one for {comm}")
    if gpus and name == "reference":
        auto("batch_size", base.batch_size, "the reference's, for 16 GB in FP16")
    else:
        auto("batch_size", 32, "the recipe's" if name == "roadsigns" else "no GPU: a small batch")
    auto("network", "resnet", "the default")
    if asked.network != "tiny":
        auto("num_layers", 50, "the default")
    auto("resnet_version", "v1.5", "the default")
    if asked.num_classes is None and num_classes is None:
        raise UserError("the number of classes is not known: give --num-classes")
    auto("num_classes", num_classes, "counted in the data set")
    auto("image_shape", base.image_size, f"the recipe {name}")
    for flag_name, value in (
        ("lr", base.lr),
        ("warmup_epochs", base.warmup_epochs),
        ("lr_step_epochs", base.lr_step_epochs),
        ("mom", base.momentum),
        ("wd", base.weight_decay),
    ):
        auto(flag_name, value, f"the recipe {name}")
    size = asked.image_shape or base.image_size
    auto("val_resize", recipes.val_resize(size), "size x 256 / 224")
    auto("resample", "antialias", "the default")
    auto("seed", 0, "the default")
    beside = launchers.workers_per_host(n, asked.hosts)
    cores = max(1, machine.cores // beside)
    reason = f"the {machine.cores} cores this process may use"
    if beside > 1:
        reason += f", shared by {beside} workers"
    auto("threads", cores, reason)
    auto("data_nthreads", cores, reason)
    if asked.profile == "auto":
        filled["profile"] = "gpu" if gpus else "cpu"
        reasons["profile"] = f"{len(gpus)} GPU(s)" if gpus else "no GPU"
    done = FullExperiment(**(vars(asked) | filled))
    check_whole(done)
    caps: tuple[str, ...] = ()
    if done.profile == "ci":
        done, caps = cap_for_ci(done)
    return Resolved(done, reasons, caps)


def best_loader(asked: Experiment, machine: Machine, recipe: str) -> tuple[str, str]:
    """The loader that `auto` takes, and why."""
    if not machine.gpus or recipe != "reference":
        return "native", "the default"
    if not has_dali():
        return "native", "DALI is not installed here"
    if asked.elastic:
        return "native", "--elastic wants a loader that reads by number"
    if {"augment", "shard"} & {text.partition("=")[0] for text in asked.override}:
        return "native", "DALI calls no Python function for a crop or a shard"
    return "dali", "the reference's: it decodes on the GPU"


def has_dali() -> bool:
    """Whether DALI is installed; asking loads nothing of it."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        return False


def check(asked: Experiment, machine: Machine) -> None:
    """Raise UserError for the first value that is impossible here or contradicts another."""
    capped = asked.profile == "ci"
    why = lacks(asked.dtype, machine, asked.network) if asked.dtype and not capped else None
    if why:
        raise UserError(f"--dtype {asked.dtype} {why}")
    if not capped:
        launchers.check(asked, machine)
    if asked.profile == "gpu" and not machine.gpus:
        raise UserError("--profile gpu: there is no GPU here; use --profile cpu")
    for name in ("load_epoch", "resume"):
        if getattr(asked, name) not in (None, False) and not asked.model_prefix:
            raise UserError(f"--{name.replace('_', '-')} needs --model-prefix PREFIX")
    if asked.resume and asked.load_epoch is not None:
        raise UserError("--resume and --load-epoch contradict each other: give one of them")
    if asked.only_inference and asked.no_val:
        raise UserError("--only-inference and --no-val together leave nothing to do")
    if asked.network == "tiny" and asked.num_layers is not None:
        raise UserError("--num-layers does not go with --network tiny: leave one out")
    if asked.step is not None and asked.model_prefix and asked.load_epoch is None:
        raise UserError(
            "--step paced has no model behind it, so there is nothing to save: leave out"
            " --model-prefix"
        )
    if asked.loader == "dali" and not has_dali():
        raise UserError(
            "--loader dali: DALI is not installed here: `make setup` installs it where there is a"
            " wheel (Linux), or use --loader native"
        )
    if asked.resample == "fast" and asked.backend != "tensorflow" and asked.loader != "dali":
        raise UserError(
            "--resample fast is for tf.data and DALI: PyTorch's own loader gains nothing by it;"
            " give --backend tensorflow or --loader dali, or leave it out"
        )
    if asked.val_resize is not None and asked.val_resize < (asked.image_shape or 32):
        raise UserError("--val-resize is smaller than the image: it must be at least --image-shape")


def check_whole(done: FullExperiment) -> None:
    """Raise UserError for what only shows when every axis is filled in."""
    macro, batch = done.macrobatch_size, done.batch_size
    if macro is not None and macro % batch:
        below, above = macro // batch * batch, -(-macro // batch) * batch
        near = f"{below} or {above}" if below else f"{above}"
        raise UserError(
            f"--macrobatch-size {macro} is no multiple of the batch size {batch}: give {near}, or"
            " another -b"
        )
    replaced = any(text.startswith("loss_scale_update=") for text in done.override)
    if replaced and not scales(done.loss_scale) and not done.only_inference:
        raise UserError(
            "--override loss_scale_update: no loss scale changes in this run; give --loss-scale"
            " dynamic with it"
        )


def cap_for_ci(full: FullExperiment) -> tuple[FullExperiment, tuple[str, ...]]:
    """The experiment made small enough for a test, and a line for each value that changed."""
    limits: dict[str, Any] = {
        "n": min(full.n, 2),
        "batch_size": min(full.batch_size, 4),
        "image_shape": 32,
        "val_resize": recipes.val_resize(32),
        "network": "tiny",
        "num_layers": None,
        "num_epochs": min(full.num_epochs, 2),
        "benchmark_iters": min(full.benchmark_iters or 2, 2),
        "data_nthreads": 0,
        "threads": 1,  # two would wait for each other more than they compute
        "dtype": "float32" if full.dtype == "tf32" else full.dtype,
    }
    if full.macrobatch_size is not None:
        at_once = min(full.micro_batches, limits["benchmark_iters"])
        limits["macrobatch_size"] = limits["batch_size"] * at_once
    changed = {name: value for name, value in limits.items() if value != getattr(full, name)}
    lines = tuple(
        f"profile ci: {flag_name(name)} {getattr(full, name)} capped to {value}"
        for name, value in changed.items()
    )
    return replace(full, **changed), lines


def flag_name(name: str) -> str:
    """The flag of a field: 'batch_size' gives '--batch-size'."""
    return {f.name: f.metadata["names"][-1] for f in fields(Experiment)}[name]


def arithmetic(done: FullExperiment) -> str:
    """Global batch and learning rate, worked out in one line."""
    numbers, images = done.to_recipe(), done.update_batch
    peak = recipes.learning_rate(done.warmup_epochs, images, numbers)
    factors = f"{done.n} x {done.batch_size}"
    if done.micro_batches > 1:
        factors += f" x {done.micro_batches} batches per update"
    return (
        f"global batch {factors} = {images}; "
        f"learning rate {done.lr:g} x {images} / {numbers.lr_batch} = {peak:g}"
    )


def schedule_remark(done: FullExperiment) -> str | None:
    """One line when the run ends before its warm-up or its first decay, else None."""
    if done.num_epochs < done.warmup_epochs:
        return (
            f"the run ends after {done.num_epochs} epochs, inside its warm-up of "
            f"{done.warmup_epochs:g}: the learning rate never reaches its full value"
        )
    if done.lr_step_epochs and done.num_epochs <= done.lr_step_epochs[0]:
        return (
            f"the run ends after {done.num_epochs} epochs, before its first decay at epoch "
            f"{done.lr_step_epochs[0]:g}: expect less than the recipe's accuracy"
        )
    return None

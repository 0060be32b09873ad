"""What a run is that was not told: every axis from the machine, the data set and the profile;
and what `--profile ci` makes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50 import checks, workers
from rn50.precision import best_dtype
from rn50lib import recipe as recipes
from rn50lib.config.experiment import IMAGENET_ROOT, Experiment, flag_name
from rn50lib.config.file import Config
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import UserError
from rn50lib.files import read_json
from rn50lib.hardware import Machine


def data_home() -> Path:
    """`$RN50_DATA`, default `data/` in the current folder."""
    return Path(os.environ.get("RN50_DATA") or "data").absolute()


def default_data_root() -> tuple[Path, str]:
    """The data set of a run that names none, and why."""
    if Path(IMAGENET_ROOT, "train.rec").exists():
        return Path(IMAGENET_ROOT), "ImageNet is mounted where the reference expects it"
    return data_home() / "roadsigns", "the built-in road signs, as no --data-root was given"


def is_roadsigns(data_root: Path) -> bool:
    """Return True for the built-in data, by the stamp that its generator leaves: the folder itself,
    the records or shards in it, or the folder that a run would draw it into."""
    root = data_root.resolve()
    if not root.exists():
        return root == (data_home() / "roadsigns").resolve()
    folders = [root, root.parent] if root.name in ("records", "tfrecord") else [root]
    return any(has_stamp(folder / ".complete") for folder in folders)


def has_stamp(file: Path) -> bool:
    """Return True if a file holds the parameters that `data_prep.roadsigns` draws with. Other
    programs stamp their folders too, with other content."""
    try:
        return set(read_json(file)) == {"train", "val", "seed", "version"}
    except (OSError, ValueError, TypeError):
        return False


def resolve(
    experiment: Experiment,
    machine: Machine,
    num_classes: int | None,
    group: LaunchEnv | None = None,
) -> Config:
    """Fill in every option that was not passed, then check all values: nowhere else is that done.

    `num_classes` is the data set's (None: not known, then --num-classes must be given), `group`
    what has started this process as one of its workers (None: nothing has). Raises UserError if
    a value is impossible here or two values contradict each other: the message names the flag and
    the remedy.
    """
    reasons: dict[str, str] = dict.fromkeys(experiment.given(), "given")
    filled: dict[str, Any] = {}

    def auto(name: str, value: Any, reason: str) -> Any:
        if getattr(experiment, name) is not None:
            return getattr(experiment, name)
        filled[name], reasons[name] = value, reason
        return value

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
    small = name == "roadsigns"  # what a laptop can train; the others are ImageNet's
    if small and epochs != base.epochs:
        base = recipes.shortened(base, epochs)
    auto("backend", "torch", "the default")
    auto("data_format", "auto", "records where there are some, else files")
    loader, reason = best_loader(experiment, machine, name)
    auto("loader", loader, reason)
    dtype, reason = best_dtype(machine, name)
    dtype = auto("dtype", dtype, reason)
    if dtype == "float16":
        auto("loss_scale", "dynamic", "float16 loses small gradients without it")
    if group is not None:
        n = auto("n", group.size, f"as many as {group.launcher} has started")
    elif gpus and not small:
        n = auto("n", min(8, len(gpus)), "the reference's 8, or the GPUs there are")
    else:
        n = auto("n", 1, "one process" if not gpus else "one GPU is enough for this data")
    comm, reason = experiment.comm, "given"
    if group is not None and n > 1:
        comm, reason = workers.comm_of(group)
    elif comm is None:  # to ask what Horovod was built with takes seconds
        backend = experiment.backend or "torch"
        comm, reason = workers.best_comm(n, backend, experiment.launcher, bool(gpus))
    comm = auto("comm", comm, reason)
    if n > 1 and group is None:
        starter = "torchrun" if comm == "ddp" else "horovodrun"
        auto("launcher", starter, f"the one for {comm}")
    if gpus and not small:
        reason = (
            "the reference's, for 16 GB in FP16" if name == "reference" else f"the recipe {name}"
        )
        auto("batch_size", base.batch_size, reason)
    else:
        auto("batch_size", 32, "the recipe's" if small else "no GPU: a small batch")
    auto("network", "resnet", "the default")
    if experiment.network != "tiny":
        auto("num_layers", 50, "the default")
    auto("resnet_version", "v1.5", "the default")
    if experiment.num_classes is None and num_classes is None:
        raise UserError("the number of classes is not known: give --num-classes")
    auto("num_classes", num_classes, "the data set's")
    auto("image_shape", base.image_size, f"the recipe {name}")
    fill_recipe(experiment, base, auto)
    size = experiment.image_shape or base.image_size
    auto("val_resize", recipes.val_resize(size), "size x 256 / 224")
    auto("resample", "antialias", "the default")
    auto("seed", 0, "the default")
    beside = workers.workers_per_host(n, experiment.hosts) if group is None else group.local_size
    cores = max(1, machine.cores // beside)
    if group is not None and group.cores is not None:
        cores, beside = min(group.cores, machine.cores), 1
    reason = f"the {machine.cores} cores this process may use"
    if beside > 1:
        reason += f", shared by {beside} workers"
    auto("threads", cores, reason)
    auto("data_nthreads", cores, reason)
    if experiment.profile == "auto":
        filled["profile"] = "gpu" if gpus else "cpu"
        reasons["profile"] = f"{len(gpus)} GPU(s)" if gpus else "no GPU"
    whole = Experiment(**(vars(experiment) | filled))
    checks.check_values(whole)
    caps: tuple[str, ...] = ()
    if whole.profile == "ci":
        whole, caps = cap_for_ci(whole, started=group is not None)
        checks.check_values(whole)
    checks.check_machine(whole, experiment, machine, group)
    return Config(whole, reasons, caps)


def fill_recipe(experiment: Experiment, base: recipes.Recipe, auto: Callable[..., Any]) -> None:
    """The recipe's own numbers, where none were given. Raises UserError as `check_for_recipe`."""
    checks.check_for_recipe(experiment, base)
    reason = f"the recipe {base.name}"
    auto("mom", base.momentum, reason)
    auto("wd", base.weight_decay, reason)
    for name in ("lr", "warmup_epochs", "zero_gamma", "label_smoothing"):
        auto(name, getattr(base, name), reason)
    schedule = auto("lr_schedule", base.lr_schedule, reason)
    if schedule == "step":
        auto("lr_step_epochs", base.lr_step_epochs, reason)
    else:
        auto("lr_step_epochs", (), f"a {schedule} schedule has none")
    optimizer = auto("optimizer", base.optimizer, reason)
    if checks.replaces(experiment, "decay_groups"):
        auto("bn_decay", True, "your decay_groups decides")
    elif optimizer == "lars":
        auto("bn_decay", False, "LARS leaves them out, as You et al. and MLPerf do")
    else:
        auto("bn_decay", base.bn_decay, reason)


def best_loader(experiment: Experiment, machine: Machine, recipe: str) -> tuple[str, str]:
    """The loader that `auto` takes, and why."""
    if not machine.gpus or recipe == "roadsigns":
        return "native", "the default"
    if not checks.has_dali():
        return "native", "DALI is not installed here"
    if {"augment", "shard"} & {text.partition("=")[0] for text in experiment.override}:
        return "native", "DALI calls no Python function for a crop or a shard"
    return "dali", "the reference's: it decodes on the GPU"


def cap_for_ci(experiment: Experiment, started: bool = False) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment made small enough to take seconds, and a line for each value that changed.
    Workers that are `started` already are as many as they are."""
    limits: dict[str, Any] = {
        "n": experiment.n if started else min(experiment.n, 2),
        "batch_size": min(experiment.batch_size, 4),
        "image_shape": 32,
        "val_resize": recipes.val_resize(32),
        "network": "tiny",
        "num_layers": None,
        "num_epochs": min(experiment.num_epochs, 2),
        "benchmark_iters": min(experiment.benchmark_iters or 2, 2),
        "data_nthreads": 0,
        "threads": 1,  # two would wait for each other more than they compute
        "dtype": "float32" if experiment.dtype == "tf32" else experiment.dtype,
    }
    if experiment.macrobatch_size is not None:
        at_once = min(experiment.micro_batches, limits["benchmark_iters"])
        limits["macrobatch_size"] = limits["batch_size"] * at_once
    changed = {name: value for name, value in limits.items() if value != getattr(experiment, name)}
    lines = tuple(
        f"profile ci: {flag_name(name)} {getattr(experiment, name)} "
        + ("left out" if value is None else f"capped to {value}")
        for name, value in changed.items()
    )
    return replace(experiment, **changed), lines

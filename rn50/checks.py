"""Checks on the values of a resolved experiment: one line for each error, with the remedy."""

from __future__ import annotations

import importlib.util
import os
import runpy
from pathlib import Path
from typing import Any

from rn50.precision import lacks, scales
from rn50.workers import check_workers, installed
from rn50lib.config.experiment import Experiment
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import UserError
from rn50lib.hardware import Machine
from rn50lib.recipe import RECIPES, Recipe

LOGGERS = ("tensorboard", "wandb", "mlflow")  # each is also the name of its package


def has_dali() -> bool:
    """Whether DALI is installed; asking loads nothing of it."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        return False


def check_values(experiment: Experiment) -> None:
    """Raise UserError if two values of a resolved experiment contradict each other, or one is
    impossible on any machine."""
    for name in ("load_epoch", "resume"):
        if getattr(experiment, name) not in (None, False) and not experiment.model_prefix:
            raise UserError(f"--{name.replace('_', '-')} needs --model-prefix PREFIX")
    prefix = experiment.model_prefix
    if prefix and (prefix.endswith(("/", os.sep)) or Path(prefix).name in ("", "..")):
        raise UserError(
            f"--model-prefix {prefix} is a folder: add a name, as in {prefix.rstrip('/')}/model"
        )
    if experiment.resume and experiment.load_epoch is not None:
        raise UserError("--resume and --load-epoch contradict each other: give one of them")
    check_start(experiment)
    if experiment.only_inference and experiment.no_val:
        raise UserError("--only-inference and --no-val together leave nothing to do")
    if experiment.network == "tiny" and experiment.num_layers is not None:
        raise UserError("--num-layers does not go with --network tiny: leave one out")
    if experiment.step is not None and experiment.model_prefix and experiment.load_epoch is None:
        raise UserError(
            "--step paced has no model behind it, so there is nothing to save: leave out"
            " --model-prefix"
        )
    if experiment.bn_decay is False and replaces(experiment, "decay_groups"):
        raise UserError(
            "--no-bn-decay and --override decay_groups both say which parameters decay: leave one"
            " out"
        )
    if (
        experiment.resample == "fast"
        and experiment.backend != "tensorflow"
        and experiment.loader != "dali"
    ):
        raise UserError(
            "--resample fast is for tf.data and DALI: PyTorch's own loader gains nothing by it;"
            " give --backend tensorflow or --loader dali, or leave it out"
        )
    if experiment.lr_step_epochs and experiment.lr_schedule != "step":
        raise UserError(
            f"--lr-step-epochs does not go with --lr-schedule {experiment.lr_schedule}, which has"
            " no steps: leave it out, or give --lr-schedule step with it"
        )
    if (
        replaces(experiment, "loss_scale_update")
        and not scales(experiment.loss_scale)
        and not experiment.only_inference
    ):
        raise UserError(
            "--override loss_scale_update: no loss scale changes in this run; give --loss-scale"
            " dynamic with it"
        )
    check_sizes(experiment)


def check_sizes(experiment: Experiment) -> None:
    """Raise UserError for batches, images or classes that cannot be trained on."""
    macro, batch, pixels = experiment.macrobatch_size, experiment.batch_size, experiment.image_shape
    if macro is not None and macro % batch:
        below, above = macro // batch * batch, -(-macro // batch) * batch
        near = f"{below} or {above}" if below else f"{above}"
        raise UserError(
            f"--macrobatch-size {macro} is not a multiple of the batch size {batch}: use {near}, or"
            " change -b"
        )
    if experiment.val_resize < pixels:
        raise UserError(
            f"--val-resize {experiment.val_resize} is smaller than the {pixels}-pixel crop: use"
            f" {pixels} or more, or a smaller --image-shape"
        )
    if experiment.step is not None or experiment.test_io or experiment.only_inference:
        return  # nothing is trained
    if experiment.num_classes == 1 and experiment.loader != "synthetic":
        if not experiment.no_metrics:
            raise UserError(
                f"--data-root {experiment.data_root} has one class, and there is nothing to learn"
                " from it: sort the images into one folder per class, or pass --no-metrics to"
                " measure speed"
            )
    if batch == 1:
        layers = experiment.to_network().layers(pixels)
        if min(layer.size for layer in layers if layer.kind == "batchnorm") == 1:
            raise UserError(
                f"-b 1 with --image-shape {pixels}: the last layers have one pixel, and batch norm"
                " cannot train on a single value per channel: use -b 2 or more, or larger images"
            )


def check_machine(
    experiment: Experiment, asked: Experiment, machine: Machine, group: LaunchEnv | None = None
) -> None:
    """Raise UserError if a machine cannot run a resolved experiment, or if it differs from the
    `group` that has started this process. `asked` has only the flags that were passed: an error
    that names a whole command repeats those."""
    why = lacks(experiment.dtype, machine, experiment.network)
    if why:
        raise UserError(f"--dtype {experiment.dtype} {why}")
    check_workers(experiment, asked, machine, group)
    if experiment.profile == "gpu" and not machine.gpus:
        raise UserError("--profile gpu: there is no GPU here; use --profile cpu")
    check_loggers(experiment)
    if experiment.loader == "dali" and not has_dali():
        raise UserError(
            "--loader dali: DALI is not installed here: `make setup` installs it where there is a"
            " wheel (Linux), or use --loader native"
        )


def check_framework(experiment: Experiment, machine: Machine) -> None:
    """Raise UserError if this machine has GPUs and the backend is built without CUDA: it would
    train on the processor, with the values chosen for a GPU. Imports no framework."""
    found = importlib.util.find_spec(experiment.backend) if machine.gpus else None
    if found is None or found.origin is None:
        return  # a missing framework has an error of its own
    folder = Path(found.origin).parent
    if experiment.backend == "torch":
        build = run_file(folder / "version.py")
        name, cuda = f"PyTorch {build.get('__version__')}", build.get("cuda") or build.get("hip")
    else:
        build = run_file(folder / "python" / "platform" / "build_info.py").get("build_info", {})
        version = next(filter(None, map(installed, ("tensorflow", "tensorflow-cpu"))), "")
        name, cuda = f"TensorFlow {version}", build.get("is_cuda_build") or not build
    if build and not cuda:
        raise UserError(
            f"--backend {experiment.backend}: {name} is built without CUDA, and this machine has"
            f" {len(machine.gpus)} GPU(s): install a CUDA build (`make setup` does if the driver"
            " supports CUDA 12), or set CUDA_VISIBLE_DEVICES= to train on the processor"
        )


def run_file(path: Path) -> dict[str, Any]:
    """Return what a framework's small file about its build defines; nothing if there is none."""
    return runpy.run_path(str(path)) if path.is_file() else {}


def check_start(experiment: Experiment) -> None:
    """Raise UserError where --init-from or --freeze-until contradict other flags."""
    if experiment.init_from and experiment.load_epoch is not None:
        raise UserError(
            "--init-from and --load-epoch contradict each other: both say which weights to begin"
            " with: give one of them"
        )
    if experiment.init_from and experiment.step is not None:
        raise UserError("--init-from: --step paced has no model behind it: leave one of them out")
    begins = experiment.init_from or experiment.resume or experiment.load_epoch is not None
    if experiment.freeze_until and not begins:
        raise UserError(
            f"--freeze-until {experiment.freeze_until} would leave random weights as they are:"
            " give --init-from PREFIX with it"
        )


def check_loggers(experiment: Experiment) -> None:
    """Raise UserError for a logger that there is none of, or that is not installed."""
    for text in experiment.logger:
        file = text.rpartition(":")[0]
        if text not in LOGGERS and not os.path.isfile(file):
            raise UserError(
                f"--logger {text}: there are {', '.join(LOGGERS)}, and FILE.py:FUNCTION of yours"
            )
        if text in LOGGERS and importlib.util.find_spec(text) is None:
            raise UserError(f"--logger {text}: it is not installed here: `pip install {text}`")


def replaces(experiment: Experiment, seam: str) -> bool:
    """Whether a learner's own function is to stand at a seam."""
    return any(text.startswith(f"{seam}=") for text in experiment.override)


def check_for_recipe(experiment: Experiment, base: Recipe) -> None:
    """Raise UserError if a recipe has no default that fits the flags: a learning rate for another
    optimizer, or the steps of a schedule without any."""
    optimizer = experiment.optimizer or base.optimizer
    if optimizer != base.optimizer and experiment.lr is None and not experiment.only_inference:
        others = [r.name for r in RECIPES.values() if r.optimizer == optimizer]
        raise UserError(
            f"--optimizer {optimizer}: the learning rate of the recipe {base.name} is one for"
            f" {base.optimizer.upper()}: give --lr too, or --recipe {' or '.join(others)}"
        )
    steps = base.lr_step_epochs if experiment.lr_step_epochs is None else experiment.lr_step_epochs
    if experiment.lr_schedule == "step" != base.lr_schedule and not steps:
        raise UserError(
            f"--lr-schedule step: the recipe {base.name} has no steps: give --lr-step-epochs too"
        )

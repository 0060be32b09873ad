"""What is impossible here, and which flags contradict each other: one line, with the remedy."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from rn50lib.config.experiment import Experiment
from rn50lib.config.workers import check_workers
from rn50lib.errors import UserError
from rn50lib.hardware import Machine
from rn50lib.precision import lacks, scales
from rn50lib.rank import Member
from rn50lib.recipe import RECIPES, Recipe

LOGGERS = ("tensorboard", "wandb", "mlflow")  # each is also the name of its package


def has_dali() -> bool:
    """Whether DALI is installed; asking loads nothing of it."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        return False


def check(experiment: Experiment, machine: Machine, group: Member | None = None) -> None:
    """Raise UserError for the first value that is impossible here or contradicts another, or what
    the `group` is that has started this process."""
    capped = experiment.profile == "ci"
    why = (
        lacks(experiment.dtype, machine, experiment.network)
        if experiment.dtype and not capped
        else None
    )
    if why:
        raise UserError(f"--dtype {experiment.dtype} {why}")
    if group is not None or not capped:
        check_workers(experiment, machine, group)
    if experiment.profile == "gpu" and not machine.gpus:
        raise UserError("--profile gpu: there is no GPU here; use --profile cpu")
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
    check_loggers(experiment)
    if experiment.loader == "dali" and not has_dali():
        raise UserError(
            "--loader dali: DALI is not installed here: `make setup` installs it where there is a"
            " wheel (Linux), or use --loader native"
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
    if experiment.val_resize is not None and experiment.val_resize < (experiment.image_shape or 32):
        raise UserError("--val-resize is smaller than the image: it must be at least --image-shape")


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


def check_whole(experiment: Experiment) -> None:
    """Raise UserError for what only shows when every axis is filled in."""
    macro, batch = experiment.macrobatch_size, experiment.batch_size
    if macro is not None and macro % batch:
        below, above = macro // batch * batch, -(-macro // batch) * batch
        near = f"{below} or {above}" if below else f"{above}"
        raise UserError(
            f"--macrobatch-size {macro} is no multiple of the batch size {batch}: give {near}, or"
            " another -b"
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


def replaces(experiment: Experiment, seam: str) -> bool:
    """Whether a learner's own function is to stand at a seam."""
    return any(text.startswith(f"{seam}=") for text in experiment.override)


def check_for_recipe(experiment: Experiment, base: Recipe) -> None:
    """Raise UserError where flags take from a recipe what the rest of it was made for."""
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

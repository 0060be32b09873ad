"""What is impossible here, and which flags contradict each other: one line, with the remedy."""

from __future__ import annotations

import importlib.util
import os

from rn50lib import launchers
from rn50lib.errors import UserError
from rn50lib.experiment.fields import Experiment
from rn50lib.experiment.full import FullExperiment
from rn50lib.hardware import Machine
from rn50lib.precision import lacks, scales
from rn50lib.rank import Member
from rn50lib.recipe import RECIPES, Recipe


def has_dali() -> bool:
    """Whether DALI is installed; asking loads nothing of it."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        return False


def check(asked: Experiment, machine: Machine, group: Member | None = None) -> None:
    """Raise UserError for the first value that is impossible here or contradicts another, or what
    the `group` is that has started this process."""
    capped = asked.profile == "ci"
    why = lacks(asked.dtype, machine, asked.network) if asked.dtype and not capped else None
    if why:
        raise UserError(f"--dtype {asked.dtype} {why}")
    if group is not None or not capped:
        launchers.check(asked, machine, group)
    if asked.profile == "gpu" and not machine.gpus:
        raise UserError("--profile gpu: there is no GPU here; use --profile cpu")
    for name in ("load_epoch", "resume"):
        if getattr(asked, name) not in (None, False) and not asked.model_prefix:
            raise UserError(f"--{name.replace('_', '-')} needs --model-prefix PREFIX")
    if asked.model_prefix and asked.model_prefix.endswith(("/", os.sep)):
        raise UserError(
            f"--model-prefix {asked.model_prefix} is a folder: add a name, as in"
            f" {asked.model_prefix}model"
        )
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
    if asked.bn_decay is False and replaces(asked, "decay_groups"):
        raise UserError(
            "--no-bn-decay and --override decay_groups both say which parameters decay: leave one"
            " out"
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
    if done.lr_step_epochs and done.lr_schedule != "step":
        raise UserError(
            f"--lr-step-epochs does not go with --lr-schedule {done.lr_schedule}, which has no"
            " steps: leave it out, or give --lr-schedule step with it"
        )
    if (
        replaces(done, "loss_scale_update")
        and not scales(done.loss_scale)
        and not done.only_inference
    ):
        raise UserError(
            "--override loss_scale_update: no loss scale changes in this run; give --loss-scale"
            " dynamic with it"
        )


def replaces(asked: Experiment, seam: str) -> bool:
    """Whether a learner's own function is to stand at a seam."""
    return any(text.startswith(f"{seam}=") for text in asked.override)


def check_for_recipe(asked: Experiment, base: Recipe) -> None:
    """Raise UserError where flags take from a recipe what the rest of it was made for."""
    optimizer = asked.optimizer or base.optimizer
    if optimizer != base.optimizer and asked.lr is None and not asked.only_inference:
        others = [r.name for r in RECIPES.values() if r.optimizer == optimizer]
        raise UserError(
            f"--optimizer {optimizer}: the learning rate of the recipe {base.name} is one for"
            f" {base.optimizer.upper()}: give --lr too, or --recipe {' or '.join(others)}"
        )
    steps = base.lr_step_epochs if asked.lr_step_epochs is None else asked.lr_step_epochs
    if asked.lr_schedule == "step" != base.lr_schedule and not steps:
        raise UserError(
            f"--lr-schedule step: the recipe {base.name} has no steps: give --lr-step-epochs too"
        )

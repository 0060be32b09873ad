"""What a run would do, also on hardware that is not here: `--dry-run` and `--print-config`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

from rn50.description import arithmetic, batch_remark, recipe_line
from rn50.launch import launchers
from rn50.prepare import prepare
from rn50.workers import horovod_serves
from rn50lib import checkpoint
from rn50lib.config import Config, Experiment, flags_of
from rn50lib.errors import UserError
from rn50lib.hardware import Gpu, Machine, machine


def plan(experiment: Experiment) -> list[str]:
    """The exact command of a run, its arithmetic, and what a profile caps; a line each.

    Where this machine cannot run it, the last line says why, and the rest is what a machine with
    the GPUs it asks for would do. Raises UserError where no machine could.
    """
    config, remarks = prepared(experiment)
    return [*lines(config), *remarks]


def as_yaml(experiment: Experiment) -> list[str]:
    """A run with all that is chosen for it, as the lines of a file for --config; each value with
    the reason for it. Raises UserError as `plan` does."""
    config, remarks = prepared(experiment)
    lines = [f"# {text}" for text in (*remarks, *config.caps)]
    for name, value in config.experiment.given().items():
        reason = config.reasons.get(name)  # JSON's values are YAML's, too
        lines.append(f"{name}: {json.dumps(value)}" + (f"  # {reason}" if reason else ""))
    return lines


def prepared(experiment: Experiment) -> tuple[Config, list[str]]:
    """What a run would do, and remarks on what it lacks here. Raises UserError as `plan` does."""
    epoch, prefix = experiment.load_epoch, experiment.model_prefix
    missing = epoch is not None and prefix and not checkpoint.symbol_path(prefix).exists()
    config, remarks = anywhere(replace(experiment, load_epoch=None) if missing else experiment)
    if missing:
        config = replace(config, experiment=replace(config.experiment, load_epoch=epoch))
        remarks.append(f"there is no checkpoint {prefix} yet: what it decides is not known")
    return config, remarks


def anywhere(experiment: Experiment) -> tuple[Config, list[str]]:
    """Resolve the experiment for this machine, else for this one with a framework that fits it, or
    for one that has what the experiment asks for; and return why not for this one."""
    try:
        return prepare(experiment, make_data=False), []
    except UserError as error:
        for here in (machine(), equipped(experiment)):
            with contextlib.suppress(UserError):
                there = prepare(connected(experiment), make_data=False, here=here)
                return there, [f"not on this machine: {error}"]
        raise


def lines(config: Config) -> list[str]:
    """The command, the arithmetic and the caps of a run."""
    experiment = config.experiment
    worker = [*launchers.program("train"), *flags_of(experiment)]
    command = launchers.command(experiment, worker)
    if experiment.only_inference:  # nothing is learnt
        sums, remarks = arithmetic(experiment).partition(";")[0], []
    else:
        sums, remarks = arithmetic(experiment), [recipe_line(experiment), batch_remark(experiment)]
    return [" ".join(command), sums, *filter(None, remarks), *config.caps]


def equipped(experiment: Experiment) -> Machine:
    """This machine, with the GPUs that an experiment asks for: a V100's, or what its precision
    needs."""
    capability = (8, 0) if experiment.dtype in ("tf32", "bfloat16") else (7, 0)
    gpus = [Gpu(i, "a GPU", 16 * 2**30, capability, "", "") for i in range(experiment.n or 8)]
    return replace(machine(), gpus=tuple(gpus))


def connected(experiment: Experiment) -> Experiment:
    """The experiment with what would carry its gradients there; here there is nobody to
    ask."""
    backend = experiment.backend or "torch"
    if (experiment.n or 1) == 1 or experiment.comm or experiment.launcher:
        return experiment
    if horovod_serves(backend):
        return replace(experiment, comm="horovod")
    return replace(experiment, comm="ddp") if backend == "torch" else experiment

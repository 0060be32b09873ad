"""What a run would do: `--dry-run`, also for hardware that is not here."""

from __future__ import annotations

from dataclasses import replace

from rn50lib import checkpoint, experiment, launch, launchers
from rn50lib.errors import UserError
from rn50lib.experiment import Experiment, Resolved
from rn50lib.hardware import Gpu, Machine, machine
from rn50lib.preparation import prepare


def plan(asked: Experiment) -> list[str]:
    """The exact command of a run, its arithmetic, and what a profile caps; a line each.

    Where this machine cannot run it, the last line says why, and the rest is what a machine with
    the GPUs it asks for would do. Raises UserError where no machine could.
    """
    resolved, remarks = prepared(asked)
    return [*lines(resolved), *remarks]


def prepared(asked: Experiment) -> tuple[Resolved, list[str]]:
    """What a run would do, and remarks on what it lacks here. Raises UserError as `plan` does."""
    epoch, prefix = asked.load_epoch, asked.model_prefix
    missing = epoch is not None and prefix and not checkpoint.symbol_path(prefix).exists()
    resolved, remarks = anywhere(replace(asked, load_epoch=None) if missing else asked)
    if missing:
        loads = replace(resolved.experiment, load_epoch=epoch)
        resolved = replace(resolved, experiment=loads)
        remarks.append(f"there is no checkpoint {prefix} yet: what it decides is not known")
    return resolved, remarks


def anywhere(asked: Experiment) -> tuple[Resolved, list[str]]:
    """The experiment resolved for this machine, else for one that has what it asks for; and why
    not for this one."""
    try:
        return prepare(asked, make_data=False), []
    except UserError as error:
        try:
            there = prepare(connected(asked), make_data=False, here=equipped(asked))
        except UserError:
            raise error from None
        return there, [f"not on this machine: {error}"]


def lines(resolved: Resolved) -> list[str]:
    """The command, the arithmetic and the caps of a run."""
    done = resolved.experiment
    arithmetic = experiment.arithmetic(done)
    if done.only_inference:  # nothing is learnt
        arithmetic = arithmetic.partition(";")[0]
    told = [experiment.recipe_line(done), experiment.batch_remark(done)]
    found = [] if done.only_inference else [line for line in told if line]
    return [" ".join(launch.rank_command(resolved, None)), arithmetic, *found, *resolved.caps]


def equipped(asked: Experiment) -> Machine:
    """This machine, with the GPUs that an experiment asks for: a V100's, or what its precision
    needs."""
    capability = (8, 0) if asked.dtype in ("tf32", "bfloat16") else (7, 0)
    gpus = [Gpu(i, "a GPU", 16 * 2**30, capability, "", "") for i in range(asked.n or 8)]
    return replace(machine(), gpus=tuple(gpus))


def connected(asked: Experiment) -> Experiment:
    """The experiment with what would carry its gradients there; it cannot be asked here."""
    backend = asked.backend or "torch"
    if (asked.n or 1) == 1 or asked.comm or asked.launcher:
        return asked
    if launchers.horovod_serves(backend):
        return replace(asked, comm="horovod")
    return replace(asked, comm="ddp") if backend == "torch" else asked

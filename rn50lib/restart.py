"""What a run goes on from, and what it leaves behind for that: one mechanism for a run that was
killed, asked to end, or lost a worker.

A checkpoint is written after each epoch, after every `--checkpoint-steps` updates, and on SIGTERM.
A run with --resume goes on from the newest one that verifies, where that was: with another number
of workers, too, as the rest of the epoch's order is dealt out anew.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib import checkpoint
from rn50lib.checkpoint import Checkpoint
from rn50lib.config import Experiment
from rn50lib.errors import TERMINATED
from rn50lib.network import Network
from rn50lib.timer import Run, Timer


def identify(experiment: Experiment, net: Network, sources: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint and a run that resumes it must have in common."""
    source = sources.get("train")
    found: dict[str, Any] = {
        "model": f"{net.name} {net.version}",
        "num_classes": net.num_classes,
        "seed": experiment.seed,
        "optimizer": experiment.optimizer,
        "label_smoothing": experiment.label_smoothing,
        "freeze_until": experiment.freeze_until,
    }
    if source is not None:
        labels = zlib.crc32(np.ascontiguousarray(source.labels).data.cast("B"))
        found["data"] = f"{len(source)} images, labels {labels:08x}"
    if experiment.init_from:
        file = Path(experiment.init_from)
        found["init_from"] = f"{file.name} ({checkpoint.load(*checkpoint.parts(file)).crc32})"
    return found


def restore(run: Run, net: Network, identity: dict[str, Any], examples: int) -> int:
    """Load the checkpoint that the run goes on from; returns the first epoch to do, and puts into
    `run.position` where in it. An epoch uses `examples` images."""
    experiment, prefix = run.experiment, run.experiment.model_prefix
    found = None
    if prefix is not None and experiment.resume:
        found, passed_over = checkpoint.newest(prefix)
        for line in passed_over:
            run.progress.say(line)
        if found is None:
            run.progress.say(f"nothing to resume under {prefix}: starting from the first epoch")
    elif prefix is not None and experiment.load_epoch is not None:
        found = checkpoint.load(prefix, experiment.load_epoch)
    if prefix is None or found is None:
        if experiment.init_from is not None:
            begin_with(run, net, Path(experiment.init_from))
        return 0
    file = checkpoint.path(prefix, found.epoch, found.position.images)
    wanted = identity
    if experiment.only_inference:  # any data may be scored, by any seed
        wanted = {key: identity[key] for key in ("model", "num_classes")}
    checkpoint.check_identity(found.identity, wanted, file)
    checkpoint.check_shapes(found.arrays, net, file)
    run.step.load(found.arrays, found.scaling)
    run.report.env["checkpoint"] = str(file)
    if experiment.only_inference:
        return 0  # as many passes as --num-epochs says, each over all images
    run.report.metrics.update(found.metrics)
    run.position = position = found.position
    epochs = "1 epoch is" if found.epoch == 1 else f"{found.epoch} epochs are"
    message = f"resumed from {file}: {epochs} done"
    if position.images:
        message += f", and {position.images} images of the next"
    run.progress.say(message)
    last = run.progress.earlier
    if last is not None:  # of the same run, before it was taken up again
        again = (last[0] - found.epoch) * examples + last[1] - position.images
        position.repeated += max(0, again)
    change = {"epoch": found.epoch + 1, "images": position.images, "workers": run.comm.size}
    position.changes.append(change)
    return found.epoch


def begin_with(run: Run, net: Network, file: Path) -> None:
    """Take over the weights of a checkpoint, and of the last layer only where it fits."""
    there = checkpoint.load(*checkpoint.parts(file)).arrays
    classes = len(there["fc.bias"])
    fits = classes == net.num_classes
    taken = {n: a for n, a in there.items() if n in net.arrays() and (fits or n[:3] != "fc.")}
    arrays = {n: a for n, a in run.step.state().items() if n.startswith("fc.")} | taken
    checkpoint.check_shapes(arrays, net, file)
    run.step.load(arrays)
    head = "its last layer too" if fits else f"a new last layer, for {net.num_classes} classes"
    text = f"begins with the weights of {file} ({classes} classes): {head}"
    run.report.env["start"] = text
    run.progress.say(text)


def enter_epoch(run: Run, ordered: bool, epoch: int) -> None:
    """Before an epoch's training: one whose loader has no order of its own begins anew."""
    if run.position.images and not ordered:
        run.progress.say(
            f"the loader cannot begin in the middle of an epoch: epoch {epoch + 1} starts again"
        )
        run.position.repeated += run.position.images
        run.position.images, run.position.sums = 0, [0.0] * 4


def wants_checkpoint(experiment: Experiment, finished: int) -> bool:
    if not experiment.model_prefix or experiment.only_inference:
        return False
    return finished % experiment.save_period == 0 or finished == experiment.num_epochs


def save(run: Run, epoch: int) -> None:
    """Write the checkpoint of `epoch` finished epochs and `run.position`, on rank 0."""
    if run.comm.rank == 0:
        prefix = run.experiment.model_prefix
        assert prefix is not None
        content = Checkpoint(
            epoch,
            run.step.state(),
            run.identity,
            run.experiment.given(),
            {key: values[:epoch] for key, values in run.report.metrics.items()},
            run.step.scaling(),
            run.position,
        )
        checkpoint.save(prefix, content)
        checkpoint.prune_partial(prefix, content)
        if run.experiment.keep:
            checkpoint.prune(prefix, run.experiment.keep)
    run.comm.barrier()


def average_running_statistics(run: Run) -> None:
    """Give every rank the mean of all ranks' running statistics.

    Training batch norm is per rank. After this, validation on N ranks and a later score of the
    checkpoint in one process see the same network.
    """
    if run.comm.size == 1 or run.experiment.step is not None:
        return
    arrays = run.step.state()
    frozen = run.experiment.to_network().up_to(run.experiment.freeze_until)
    names = [name for name in arrays if ".running_" in name and name not in frozen]
    totals = run.comm.sum([arrays[name] for name in names])
    run.step.load(arrays | {n: t / run.comm.size for n, t in zip(names, totals, strict=True)})


def update_done(run: Run, timer: Timer, updates: int) -> None:
    """After an update: note it, write a checkpoint where one is due, and end if SIGTERM asks for
    it. `updates` were done in this epoch since the run was started or taken up again."""
    run.progress.at(timer.epoch, run.position.images)
    every = run.experiment.checkpoint_steps or 0
    due = every and updates % every == 0 and timer.finished < timer.steps and run.stop.saves
    stops = run.stop.now()
    if not (due or stops):
        return
    run.position.sums = timer.sums_of_all()
    average_running_statistics(run)
    if stops:
        stop_here(run, timer.epoch)
    save(run, timer.epoch)


def stop_here(run: Run, epoch: int) -> None:
    """Write a checkpoint and end, as SIGTERM has asked; all ranks come here. Raises SystemExit."""
    run.progress.stop()
    save(run, epoch)
    images = run.position.images
    file = checkpoint.path(run.experiment.model_prefix or "", epoch, images)
    run.progress.say(f"stopped by SIGTERM after {images} images of epoch {epoch + 1}: {file}")
    raise SystemExit(TERMINATED)

"""What a run goes on from, and what it leaves behind for that: one mechanism for a run that was
killed, asked to end, or lost a worker.

A checkpoint is written before and after each epoch's validation, after every `--checkpoint-steps`
updates, and on SIGTERM. A run with --resume continues from the newest one that verifies, in the
middle of an epoch too, and also with a different number of workers: the rest of the epoch's order
is dealt out again.
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
from rn50lib.resnet import Network
from rn50lib.timer import Run, Timer

RANKS_STATISTICS = "running_statistics_of_ranks"
"""The array of a checkpoint with the running statistics of each rank, (ranks, values) by name."""


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
        metadata = checkpoint.read_metadata(*checkpoint.parts(file))
        found["init_from"] = f"{file.name} ({metadata.get('crc32')})"
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
    scored = experiment.only_inference  # with the ranks' mean
    run.step.load(found.arrays if scored else own_statistics(run, found.arrays), found.scaling)
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


def enter_epoch(run: Run, ordered: bool, steps: int, epoch: int) -> None:
    """Begin an epoch's training again if `steps` of it are left and its loader is not ordered."""
    if run.position.images and steps and not ordered:
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
    arrays = run.step.state()
    if run.position.images:
        arrays = with_all_statistics(run, arrays)
    if run.comm.rank == 0:
        prefix = run.experiment.model_prefix
        assert prefix is not None
        content = Checkpoint(
            epoch,
            arrays,
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


def statistics_names(run: Run, arrays: dict[str, np.ndarray]) -> list[str]:
    """Return the names of the running statistics that training changes on each rank."""
    frozen = run.experiment.to_network().up_to(run.experiment.freeze_until)
    return sorted(name for name in arrays if ".running_" in name and name not in frozen)


def average_running_statistics(run: Run) -> None:
    """Give every rank the mean of all ranks' running statistics.

    Training batch norm is per rank. After this, validation on N ranks and a later score of the
    checkpoint in one process see the same network.
    """
    if run.comm.size == 1 or run.experiment.step is not None:
        return
    arrays = run.step.state()
    names = statistics_names(run, arrays)
    totals = run.comm.sum([arrays[name] for name in names])
    run.step.load(arrays | {n: t / run.comm.size for n, t in zip(names, totals, strict=True)})


def with_all_statistics(run: Run, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a checkpoint in the middle of an epoch: the mean of the ranks' running
    statistics, and each rank's own as rows of RANKS_STATISTICS. The run's own are not changed."""
    names = statistics_names(run, arrays)
    if run.comm.size == 1 or not names:
        return arrays
    mine = np.concatenate([arrays[name] for name in names])
    table = np.zeros((run.comm.size, len(mine)), np.float32)
    table[run.comm.rank] = mine
    (table,) = run.comm.sum([table])
    return arrays | split(names, arrays, table.mean(axis=0)) | {RANKS_STATISTICS: table}


def own_statistics(run: Run, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a checkpoint with this rank's own running statistics in place of the
    mean, if it has them for as many ranks as there are now."""
    table = arrays.get(RANKS_STATISTICS)
    if table is None or len(table) != run.comm.size:
        return arrays
    return arrays | split(statistics_names(run, arrays), arrays, table[run.comm.rank])


def split(
    names: list[str], arrays: dict[str, np.ndarray], vector: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the parts of a vector by name, each as long as the array of that name."""
    ends = np.cumsum([len(arrays[name]) for name in names])[:-1]
    return dict(zip(names, np.split(vector, ends), strict=True))


def update_done(run: Run, timer: Timer) -> None:
    """Note an update, write a checkpoint if one is due, and end the run if SIGTERM asks for it.

    Neither the update after which a checkpoint is due nor the state of the run depends on whether
    the run was resumed, or wrote other checkpoints, earlier in the epoch.
    """
    run.progress.at(timer.epoch, run.position.images)
    every = run.experiment.checkpoint_steps or 0
    updates = run.position.images // run.experiment.update_batch
    due = every and updates % every == 0 and timer.finished < timer.steps and run.stop.saves
    stops = run.stop.now()
    if due or stops:
        run.position.sums = timer.sums_of_all()
        save(run, timer.epoch)
    if stops:
        stop_here(run, timer.epoch)


def stop_here(run: Run, epoch: int) -> None:
    """End the run, whose checkpoint is written, as SIGTERM asked. All ranks call this. Raises
    SystemExit."""
    run.progress.stop()
    images = run.position.images
    file = checkpoint.path(run.experiment.model_prefix or "", epoch, images)
    run.progress.say(f"stopped by SIGTERM after {images} images of epoch {epoch + 1}: {file}")
    raise SystemExit(TERMINATED)

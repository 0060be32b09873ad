"""What a run goes on from, and what it leaves behind for that: commits and checkpoints."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from rn50lib import checkpoint
from rn50lib.config import Experiment
from rn50lib.network import Network
from rn50lib.timer import Run


def identify(experiment: Experiment, net: Network, sources: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint and a run that resumes it must have in common."""
    source = sources.get("train")
    found: dict[str, Any] = {
        "model": f"{net.name} {net.version}",
        "num_classes": net.num_classes,
        "seed": experiment.seed,
        "optimizer": experiment.optimizer,
        "label_smoothing": experiment.label_smoothing,
    }
    if source is not None:
        labels = zlib.crc32(np.ascontiguousarray(source.labels).data.cast("B"))
        found["data"] = f"{len(source)} images, labels {labels:08x}"
    return found


def fingerprint(value: Any) -> int:
    """A number that differs where the values do."""
    return zlib.crc32(str(value).encode())


def restore(run: Run, net: Network, identity: dict[str, Any]) -> int:
    """Load what the run goes on from, a commit or a checkpoint; returns the first epoch to do."""
    experiment, prefix, saved = run.experiment, run.experiment.model_prefix, run.state.saved
    if saved is not None:
        run.step.load(saved.arrays, saved.scaling)
        run.report.metrics = {key: list(values) for key, values in saved.metrics.items()}
        change = {"epoch": saved.epoch + 1, "images": saved.images, "workers": run.comm.size}
        run.state.changes.append(change)
        run.progress.say(
            f"{run.comm.size} workers go on in epoch {saved.epoch + 1}, {saved.images} images done"
        )
        return saved.epoch
    if prefix is None:
        return 0
    if experiment.resume:
        found, passed_over = checkpoint.newest(prefix)
        for line in passed_over:
            run.progress.say(line)
        if found is None:
            run.progress.say(f"nothing to resume under {prefix}: starting from the first epoch")
            return 0
    elif experiment.load_epoch is not None:
        found = checkpoint.load(prefix, experiment.load_epoch)
    else:
        return 0
    file = checkpoint.path(prefix, found.epoch)
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
    run.progress.say(f"resumed from {file}: {found.epoch} epochs are done")
    return found.epoch


def wants_checkpoint(experiment: Experiment, finished: int) -> bool:
    if not experiment.model_prefix or experiment.only_inference:
        return False
    return finished % experiment.save_period == 0 or finished == experiment.num_epochs


def save(run: Run, identity: dict[str, Any], finished: int) -> None:
    """Write the checkpoint of `finished` epochs, on rank 0."""
    if run.comm.rank == 0:
        prefix = run.experiment.model_prefix
        assert prefix is not None
        content = checkpoint.Checkpoint(
            finished,
            run.step.state(),
            identity,
            run.experiment.given(),
            run.report.metrics,
            run.step.scaling(),
        )
        checkpoint.save(prefix, content)
        if run.experiment.keep:
            checkpoint.prune(prefix, run.experiment.keep)
    run.comm.barrier()

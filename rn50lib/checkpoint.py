"""Checkpoints, atomic and the same for both backends: `<prefix>-NNNN.safetensors` after epoch NNNN.

One that was written in the middle of an epoch is `<prefix>-NNNN-IMAGES.safetensors`: so many images
of the next epoch's order are done.

The network stands beside them, in `<prefix>-symbol.json`. A checkpoint holds float32 arrays under
their canonical names (convolutions OIHW, fully-connected (out, in)), the velocity without the
learning rate, and in its metadata what a resumed run needs.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.errors import UserError
from rn50lib.files import FULL, check_file, lock, read_json, write_file
from rn50lib.resnet import Network

if TYPE_CHECKING:
    from rn50lib.config import Experiment

FORMAT = "rn50-checkpoint-1"


@dataclass
class Position:
    """Where a run stands in an epoch: `images` of its order are done.

    `sums` is what the latter have added up (`metrics.SUMS`, over all ranks). `repeated` counts the
    images that were trained on again, as a worker died after the last checkpoint, and `tails` by
    epoch those that no global batch could take; `changes` has an entry for each time that the run
    was taken up again.
    """

    images: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * 4)
    repeated: int = 0
    tails: dict[str, int] = field(default_factory=dict)
    changes: list[dict[str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint. `epoch` counts finished epochs, `metrics` are the report's up to there, and
    `position` is how far the next one has come."""

    epoch: int
    arrays: dict[str, np.ndarray]
    identity: dict[str, Any]
    experiment: dict[str, Any]
    metrics: dict[str, list]
    scaling: dict[str, float] = field(default_factory=dict)  # the loss scale: see `Step.scaling`
    position: Position = field(default_factory=Position)


def symbol_path(prefix: str | Path) -> Path:
    return Path(f"{prefix}-symbol.json")


def path(prefix: str | Path, epoch: int, images: int = 0) -> Path:
    """`<prefix>-0090.safetensors` for epoch 90."""
    middle = f"-{images:08d}" if images else ""
    return Path(f"{prefix}-{epoch:04d}{middle}.safetensors")


def parts(file: str | Path) -> tuple[str, int, int]:
    """The inverse of `path`: prefix, epoch, images. Raises ValueError for another kind of name."""
    match = re.fullmatch(r"(.+?)-(\d{4,})(?:-(\d{8,}))?\.safetensors", str(file))
    if match is None:
        raise ValueError(f"{file} is no checkpoint's name")
    return match[1], int(match[2]), int(match[3] or 0)


def positions(prefix: str | Path) -> list[tuple[int, int]]:
    """(epochs, images of the next one) of each checkpoint under `prefix`, oldest first."""
    prefix = Path(prefix)
    pattern = re.compile(re.escape(prefix.name) + r"-(\d{4,})(?:-(\d{8,}))?\.safetensors")
    if not prefix.parent.is_dir():
        return []
    found = (pattern.fullmatch(entry.name) for entry in prefix.parent.iterdir())
    return sorted((int(match[1]), int(match[2] or 0)) for match in found if match)


def epochs(prefix: str | Path) -> list[int]:
    """The epochs at whose end a checkpoint was written under `prefix`, oldest first."""
    return [epoch for epoch, images in positions(prefix) if images == 0]


def checksum(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
    """A CRC-32 over all arrays, their names, types and shapes, and the metadata; 8 hex digits."""
    rest = {key: text for key, text in metadata.items() if key != "crc32"}
    value = zlib.crc32(json.dumps(rest, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        value = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), value)
        value = zlib.crc32(np.ascontiguousarray(array).data.cast("B"), value)
    return f"{value:08x}"


def write_symbol(prefix: str | Path, net: Network) -> None:
    """Write the architecture. Raises UserError when the folder cannot be written."""
    check_file(symbol_path(prefix))
    write_atomic(symbol_path(prefix), net.to_json().encode())


def read_network(prefix: str | Path) -> Network:
    """The network of a checkpoint. Raises UserError when its symbol file is missing or odd."""
    file = symbol_path(prefix)
    check_file(file)
    try:
        return Network.from_symbol(read_json(file))
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error.strerror}): give the --model-prefix that the"
            " training run was given"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} does not describe a network: {error}") from error


def save(prefix: str | Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, whole or not at all. Raises UserError where there is no room."""
    from safetensors.numpy import save as serialise

    metadata = {
        "format": FORMAT,
        "epoch": str(checkpoint.epoch),
        "position": json.dumps(asdict(checkpoint.position), allow_nan=False, sort_keys=True),
        "identity": json.dumps(checkpoint.identity, sort_keys=True),
        "experiment": json.dumps(checkpoint.experiment, sort_keys=True),
        "metrics": json.dumps(checkpoint.metrics, allow_nan=False),
        "scaling": json.dumps(checkpoint.scaling, sort_keys=True),
    }
    metadata["crc32"] = checksum(checkpoint.arrays, metadata)
    file = path(prefix, checkpoint.epoch, checkpoint.position.images)
    check_file(file)
    remedy = "earlier checkpoints are untouched: make room and go on with --resume"
    remove_drafts(Path(prefix))
    write_atomic(file, serialise(checkpoint.arrays, metadata), remedy)
    return file


def check_room(prefix: str | Path, net: Network, files: int) -> None:
    """Raise UserError before the training if the disk has no room for `files` checkpoints more."""
    arrays = [*net.arrays().values(), *net.parameters().values()]  # and a velocity for each weight
    size = files * sum(4 * math.prod(shape) for shape in arrays)
    file = path(prefix, 0)
    folder = file.absolute().parent
    try:
        with tempfile.TemporaryFile(dir=folder) as trial:
            os.posix_fallocate(trial.fileno(), 0, size)
    except OSError as error:
        if error.errno not in FULL:
            return  # the filesystem cannot reserve space
        free = shutil.disk_usage(folder).free
        raise UserError(
            f"--model-prefix {prefix}: no room for a checkpoint ({error.strerror}): it needs up to"
            f" {size / 1e6:.1f} MB, {free / 1e6:.1f} MB are free; make room, or name another place"
        ) from error


def remove_drafts(prefix: Path) -> None:
    """Remove the checkpoints of this prefix, of any epoch and place in it, that runs left half
    written when they were killed."""
    draft = re.compile(rf"\.{re.escape(prefix.name)}-\d{{4,}}(-\d{{8,}})?\.\d+\.tmp\.safetensors")
    for left in prefix.parent.glob(f".{glob.escape(prefix.name)}-*.tmp.safetensors"):
        if draft.fullmatch(left.name):
            left.unlink(missing_ok=True)


def write_atomic(
    file: Path, content: bytes, remedy: str = "make room, or name another place"
) -> None:
    """Write a file as `files.replacing` does. Raises UserError, which ends with `remedy`."""
    try:
        for left in file.parent.glob(f".{glob.escape(file.stem)}.*.tmp{file.suffix}"):
            left.unlink(missing_ok=True)  # of a process that was killed here
        write_file(file, content)
    except OSError as error:
        free = shutil.disk_usage(file.parent).free if file.parent.is_dir() else 0
        raise UserError(
            f"{file} cannot be written: {error.strerror or error} ({len(content) / 1e6:.0f} MB"
            f" needed, {free / 1e6:.0f} MB free); {remedy}"
        ) from error


def saves(experiment: Experiment) -> bool:
    """Whether a run writes checkpoints."""
    return experiment.model_prefix is not None and not (
        experiment.only_inference or experiment.test_io
    )


def makes_a_model(experiment: Experiment) -> bool:
    """Whether a run leaves weights that one would want to keep, or to go on from."""
    if experiment.max_restarts or experiment.checkpoint_steps:
        return True
    if experiment.benchmark_iters or experiment.no_metrics or experiment.test_io:
        return False  # it is timed only
    return not (experiment.only_inference or experiment.step or experiment.loader == "synthetic")


@contextlib.contextmanager
def lock_for(experiment: Experiment) -> Iterator[None]:
    """Hold the prefix of a run that saves, for as long as it runs.

    Raises UserError where another run has it, and where checkpoints are there that this one would
    overwrite: those of an earlier run, unless it goes on from them.
    """
    prefix = Path(experiment.model_prefix or "")
    with contextlib.ExitStack() as held:
        if prefix.parent.is_dir():
            lock_file = prefix.with_name(f".{prefix.name}.lock")
            held.enter_context(lock(lock_file, f"--model-prefix {prefix}"))
        check_file(symbol_path(prefix))
        first = experiment.load_epoch or 0
        there = [at for at in positions(prefix) if at > (first, 0) and not experiment.resume]
        if there:
            which = (
                f"checkpoints after epoch {first}" if first else "the checkpoints of another run"
            )
            raise UserError(
                f"--model-prefix {prefix}: {which} are there already, up to"
                f" {path(prefix, *there[-1])}: go on with them by --model-prefix {prefix} --resume,"
                f" give another --model-prefix, or remove {prefix}-[0-9]*.safetensors"
            )
        yield


def load(prefix: str | Path, epoch: int, images: int = 0) -> Checkpoint:
    """Read and verify one checkpoint. Raises UserError when it is missing or damaged."""
    from safetensors.numpy import load_file

    file = path(prefix, epoch, images)
    metadata = read_metadata(prefix, epoch, images)
    with reading(file):
        arrays = load_file(file)
    if checksum(arrays, metadata) != metadata.get("crc32"):
        raise UserError(
            f"checkpoint {file} is damaged: its content does not match its checksum; use an"
            " earlier epoch"
        )
    return Checkpoint(
        epoch=int(metadata["epoch"]),
        arrays=arrays,
        identity=json.loads(metadata["identity"]),
        experiment=json.loads(metadata["experiment"]),
        metrics=json.loads(metadata["metrics"]),
        # there are files without
        scaling=json.loads(metadata.get("scaling", "{}")),
        position=Position(**json.loads(metadata.get("position", "{}"))),
    )


def read_metadata(prefix: str | Path, epoch: int, images: int = 0) -> dict[str, str]:
    """Return the metadata of one checkpoint without reading its arrays. Raises UserError when it is
    missing or is not a checkpoint."""
    from safetensors import safe_open

    file = path(prefix, epoch, images)
    if not file.exists():
        there = ", ".join(str(e) for e in epochs(prefix)) or "none"
        raise UserError(f"no checkpoint {file}; epochs there are under this prefix: {there}")
    check_file(file)
    with reading(file), safe_open(file, framework="numpy") as opened:
        metadata = opened.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise UserError(f"{file} is a safetensors file, but not a checkpoint of rn50")
    return metadata


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn the errors of reading a checkpoint into UserError."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise UserError(
            f"checkpoint {file} cannot be read: {error}; use an earlier epoch"
        ) from error
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"checkpoint {file} is damaged: {error}; use an earlier epoch") from error


def newest(prefix: str | Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies (None without any), and a line for each passed over."""
    passed_over: list[str] = []
    for epoch, images in reversed(positions(prefix)):
        try:
            return load(prefix, epoch, images), passed_over
        except UserError as error:
            passed_over.append(f"passed over: {error}")
    return None, passed_over


def find(name: str, flag: str) -> Path:
    """Return the checkpoint that a flag names by its file, or by its prefix: then the newest that
    verifies. A file that is named is verified when it is loaded. Raises UserError if there is
    none."""
    with contextlib.suppress(ValueError):
        read_metadata(*parts(name))
        return Path(name)
    if Path(name).is_file():
        raise UserError(
            f"{flag} {name} is no checkpoint of rn50: make one of it with `rn50 import torchvision"
            f" {name} -o PREFIX`"
        )
    found, passed_over = newest(name)
    if found is None:
        problem = f"{flag} {name}: there is no checkpoint {name}-NNNN.safetensors"
        raise UserError("; ".join([problem, *passed_over]))
    return path(name, found.epoch, found.position.images)


def check_identity(found: dict[str, Any], wanted: dict[str, Any], file: Path) -> None:
    """Raise UserError when a checkpoint is of another model, seed or data set than this run."""
    remedies = {
        "model": "give the --network, --num-layers and --resnet-version it was trained with",
        "num_classes": "give the data set, or the --num-classes, it was trained with",
        "seed": "give the --seed it was trained with",
        "data": "give the --data-root it was trained on",
        "optimizer": "its velocity means another thing: give the --optimizer it was trained with",
        "label_smoothing": "the loss would mean another thing: give the --label-smoothing it was"
        " trained with",
        "init_from": "leave out --init-from: the checkpoint has its weights",
        "freeze_until": "give the --freeze-until it was trained with; or begin a new run with"
        f" --init-from {file}",
    }
    earlier = {"optimizer": "sgd", "label_smoothing": 0.0}  # where a file does not say
    if "seed" in wanted and "seed" not in found:
        raise UserError(
            f"{file} holds weights and no training to go on with: give --init-from {file}"
        )
    for key, remedy in remedies.items():
        there = found.get(key, earlier.get(key))
        if key in wanted and there != wanted[key]:
            raise UserError(
                f"{file} was written with {key} {there}, this run has {wanted[key]}: {remedy}"
            )


def check_shapes(arrays: dict[str, np.ndarray], net: Network, file: Path) -> None:
    """Raise UserError when the arrays are not those of `net`."""
    wanted = net.arrays()
    for name, shape in wanted.items():
        if name not in arrays or arrays[name].shape != shape:
            there = arrays[name].shape if name in arrays else "nothing"
            raise UserError(
                f"{file} is not a {net.name}: {name} should have shape {shape}, there is {there}"
            )


def prune(prefix: str | Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints of whole epochs."""
    for epoch in epochs(prefix)[:-keep]:
        path(prefix, epoch).unlink(missing_ok=True)


def prune_partial(prefix: str | Path, written: Checkpoint) -> None:
    """Remove the checkpoints from the middle of an epoch that a newer one replaces."""
    for epoch, images in positions(prefix):
        if images and (epoch, images) < (written.epoch, written.position.images):
            path(prefix, epoch, images).unlink(missing_ok=True)

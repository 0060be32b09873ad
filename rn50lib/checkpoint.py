"""Checkpoints: `<prefix>-NNNN.safetensors` after epoch NNNN, whole or absent, for both backends.

`<prefix>-NNNN-IMAGES.safetensors` is written within the next epoch, after IMAGES of its images.
A file holds float32 arrays by canonical name (convolutions OIHW, fully-connected (out, in)), the
velocity without the learning rate, and metadata, such as the names of the classes.
`<prefix>-symbol.json` holds the network.
"""

from __future__ import annotations

import contextlib
import glob
import json
import re
import shlex
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.config import FLAGS, TrainConfig, flag_name, scoped, text_of
from rn50lib.data.classes import Classes, check_agreement, kept_rows, unnamed
from rn50lib.errors import UserError, first_line, first_names
from rn50lib.files import (
    check_folder,
    check_output,
    lock,
    make_folder,
    read_json,
    write_file,
)
from rn50lib.metrics import DIVERGED, NO_SUMS
from rn50lib.resnet import Network

if TYPE_CHECKING:
    from rn50lib.distributed import Comm
    from rn50lib.progress import Progress
    from rn50lib.report import Report
    from rn50lib.train_step import TrainStep

FORMAT = "rn50-checkpoint-1"
BN_STATS_OF_RANKS = "running_statistics_of_ranks"  # an array (ranks, values), within an epoch only
SAME = {  # must be equal in a resumed run and its checkpoint, as must fields of scope `resume`
    "model": "--network, --num-layers and --set resnet_version",
    "num_classes": "--num-classes (or the data set)",
    "data": "--data-root",
    "init_from": "--init-from",
}
# what a resumed run says of itself if it differs
CHANGEABLE = ("n", "batch_size", "macrobatch_size", "dtype", "image_shape",
              *(name for name, flag in FLAGS.items() if flag.group == "recipe"))  # fmt: skip


@dataclass
class TrainProgress:
    """The first `images` of an epoch's order are done; `sums` are their `SUMS` over all ranks."""

    images: int = 0
    sums: list[float] = field(default_factory=lambda: list(NO_SUMS))


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint after `epoch` finished epochs, with the report's metrics up to there."""

    epoch: int
    arrays: dict[str, np.ndarray]
    fingerprint: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, list]
    loss_scale: dict[str, float] = field(default_factory=dict)  # `TrainStep.loss_scale_state`
    position: TrainProgress = field(default_factory=TrainProgress)  # within the next epoch
    seconds: dict[str, float] = field(default_factory=dict)  # the report's, of all starts
    classes: Classes | None = None  # None is written for weights whose classes have no names


class CheckpointManager:
    """The checkpoints that a run resumes from and writes.

    A run with --resume continues from the newest checkpoint that verifies, with any number of
    workers.
    """

    def __init__(
        self,
        config: TrainConfig,
        net: Network,
        comm: Comm,
        fingerprint: dict[str, Any],
        classes: Classes | None,
    ) -> None:
        self.config, self.net, self.comm = config, net, comm
        self.classes = classes  # of the data set; None for synthetic images
        self.prefix = config.model_prefix or ""
        self.enabled = saves(config)
        self.fingerprint = fingerprint

    def restore(
        self, step: TrainStep, report: Report, progress: Progress
    ) -> tuple[int, TrainProgress]:
        """Load the initial weights or a checkpoint; return the first epoch and its position."""
        config, prefix, found = self.config, self.prefix, None
        if prefix and config.resume:
            found, passed_over = newest(prefix)
            none = f"nothing to resume under {prefix}: starting from the first epoch"
            for line in passed_over if found else [*passed_over, none]:
                progress.say(line)
        elif prefix and config.load_epoch is not None:
            found = load(prefix, config.load_epoch)
        if found is None:
            if config.init_from is not None:
                text = self.init_from_checkpoint(step, Path(config.init_from))
                report.env["start"] = text
                progress.say(text)
            return 0, TrainProgress()
        file = path(prefix, found.epoch, found.position.images)
        report.env["checkpoint"] = str(file)
        scored = config.only_inference  # any data, by any seed
        keys = ("model", "num_classes") if scored else (*SAME, *scoped("resume"))
        stored = found.fingerprint.get("init_from")
        if stored and self.fingerprint.get("init_from") in names_of_start(stored):
            self.fingerprint["init_from"] = stored
        check_fingerprint(found.fingerprint, self.fingerprint, file, keys)
        if self.classes is not None:
            root = found.config.get("data_root")
            self.classes, remark = check_trained_classes(found.classes, self.classes, file, root)
            if remark:
                progress.say(remark)
        check_shapes(found.arrays, self.net, file)
        arrays = found.arrays if scored else self.with_own_bn_stats(found.arrays)
        step.load(arrays, found.loss_scale)
        if scored:
            return 0, TrainProgress()  # --num-epochs passes, each over all images
        for key, values in report.metrics.items():
            values += found.metrics.get(key, [])
        report.total_duration = found.seconds.pop("total", 0.0)
        report.env["seconds"] = found.seconds
        epochs_done = "1 epoch is" if found.epoch == 1 else f"{found.epoch} epochs are"
        images = found.position.images
        more = f", and {images} images of the next" if images else ""
        left = "" if found.epoch < config.num_epochs else "; --num-epochs asks for no more"
        progress.say(f"resumed from {file}: {epochs_done} done{more}{left}")
        for name in CHANGEABLE:
            now, was = getattr(config, name), found.config.get(name, FLAGS[name].default)
            now, was = (text_of(tuple(x) if isinstance(x, list) else x) for x in (now, was))
            if found.config and was != now:
                change = f"{now or None}, not {was or None}".replace("None", "unset")
                progress.say(f"from now on {flag_name(name)} is {change}")
        return found.epoch, found.position

    def init_from_checkpoint(self, step: TrainStep, file: Path) -> str:
        """Load the weights of a checkpoint and return a line about them.

        Classes of the same name keep their rows of the last layer, the others get new ones. If
        names are unknown, the last layer is kept if the number of classes is the same.
        """
        found = load(*parts(file))
        wanted = self.net.num_classes
        arrays = {name: array for name, array in found.arrays.items() if name in self.net.arrays()}
        count = len(found.arrays["fc.bias"])
        old, new = found.classes, self.classes or unnamed(wanted, file)
        assert old is not None
        named = old.known and new.known
        if count == wanted and (old.names == new.names or not named):
            head = "its last layer too"
            head += "" if named else ", by number: the names of its classes are unknown"
        else:
            rows = kept_rows(old, new) if named else {}
            for name in ("fc.weight", "fc.bias"):
                layer = step.state()[name].copy()
                layer[list(rows)] = arrays[name][list(rows.values())]
                arrays[name] = layer
            head = f"a new last layer, for {wanted} classes"
            if rows:
                others = [name for label, name in enumerate(new) if label not in rows]
                head += f"; kept by name: {first_names([new[label] for label in rows], 5)}"
                head += f"; new: {first_names(others, 5)}"
        check_shapes(arrays, self.net, file)
        step.load(arrays)
        return f"begins with the weights of {file} ({count} classes): {head}"

    def is_due(self, finished: int) -> bool:
        """Return True if a checkpoint is due after this many epochs."""
        last = finished == self.config.num_epochs
        return self.enabled and (last or finished % self.config.save_period == 0)

    def save(self, epoch: int, position: TrainProgress, step: TrainStep, report: Report) -> None:
        """Write a checkpoint and remove those that it replaces. All ranks call this.

        Raises UserError if the weights are not finite.
        """
        arrays = step.state()
        if position.images:
            arrays = self.with_bn_stats_of_ranks(arrays)
        if not is_finite(arrays):
            raise UserError(
                f"the weights are not finite in epoch {epoch + bool(position.images)}: training has"
                f" {DIVERGED}; the earlier checkpoints are untouched"
            )
        if self.comm.rank == 0:
            metrics = {key: values[:epoch] for key, values in report.metrics.items()}
            seconds = {"total": report.total_duration, **report.env.get("seconds", {})}
            written = Checkpoint(
                epoch, arrays, self.fingerprint, self.config.to_dict(), metrics,
                step.loss_scale_state(), position, seconds, self.classes,
            )  # fmt: skip
            save(self.prefix, written)
            self.prune((epoch, position.images), report)
        self.comm.barrier()

    def prune(self, written: tuple[int, int], report: Report) -> None:
        """Remove older ones from within an epoch, and all but the newest `keep` and the best."""
        there = epochs(self.prefix)
        old = there[: -self.config.keep] if self.config.keep else []
        best = report.best_epoch(there, done=written[0])
        for epoch, images in positions(self.prefix):
            if (epoch, images) < written if images else epoch in old and epoch != best:
                path(self.prefix, epoch, images).unlink(missing_ok=True)

    # Each rank has its own batch-norm statistics in training. Validation uses their mean; a resume
    # within an epoch is exact only with each rank's own.

    def reduce_bn_stats(self, step: TrainStep) -> None:
        """Give every rank the mean of all ranks' running statistics."""
        if self.comm.size > 1:
            step.load(self.with_bn_stats_of_ranks(step.state()))

    def with_bn_stats_of_ranks(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arrays with the ranks' mean statistics, and a table with a row per rank."""
        if self.comm.size == 1 or not arrays:
            return arrays
        mine = np.concatenate([arrays[name] for name in bn_stats(arrays)])
        table = self.comm.stack(mine)
        # in float64 the mean of equal values is that value, so that averaging twice changes nothing
        mean = table.mean(axis=0, dtype=np.float64).astype(table.dtype)
        return with_bn_stats(arrays, mean) | {BN_STATS_OF_RANKS: table}

    def with_own_bn_stats(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arrays with this rank's own statistics, if the number of ranks is the same."""
        table = arrays.get(BN_STATS_OF_RANKS)
        if table is None or len(table) != self.comm.size:
            return arrays
        return with_bn_stats(arrays, table[self.comm.rank])


def bn_stats(arrays: dict[str, np.ndarray]) -> list[str]:
    """Return the names of the running statistics that training changes."""
    return sorted(name for name in arrays if ".running_" in name)


def with_bn_stats(arrays: dict[str, np.ndarray], vector: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays with the running statistics of one vector, in the order of `bn_stats`."""
    names = bn_stats(arrays)
    ends = np.cumsum([len(arrays[name]) for name in names])[:-1]
    return arrays | dict(zip(names, np.split(vector, ends), strict=True))


def resume_fingerprint(
    config: TrainConfig, net: Network, sources: dict[str, Any]
) -> dict[str, Any]:
    """Return the values that a checkpoint and a run that resumes it must have in common."""
    source = sources.get("train")
    found: dict[str, Any] = {name: getattr(config, name) for name in scoped("resume")}
    found |= {"model": f"{net.name} {net.version}", "num_classes": net.num_classes}
    if source is not None:
        labels = zlib.crc32(np.ascontiguousarray(source.labels).data.cast("B"))
        found["data"] = f"{len(source)} images, labels {labels:08x}"
    if config.init_from:
        file = Path(config.init_from)
        found["init_from"] = file.name
        if file.exists():  # a resumed run does not need it
            metadata, _ = read(file, with_arrays=False)
            found["init_from"] += f" ({metadata.get('crc32')})"
    return found


def names_of_start(stored: str) -> tuple[str, str]:
    """Return the names by which --init-from may name start weights that are gone."""
    file = re.sub(r" \(\w+\)$", "", stored)  # without the checksum
    return file, parts(file)[0]


def check_fingerprint(
    found: dict[str, Any], wanted: dict[str, Any], file: Path, keys: tuple[str, ...]
) -> None:
    """Raise UserError if a checkpoint has a different model, seed or data set than this run."""
    if "seed" in keys and "seed" not in found:
        raise UserError(
            f"{file} holds weights but no training state to resume: pass it as --init-from {file}"
        )
    for key in keys:
        if key in wanted and found.get(key) != wanted[key]:
            flags = SAME.get(key) or flag_name(key)
            was, now = ("unset" if x is None else x for x in (found.get(key), wanted[key]))
            raise UserError(
                f"{file} was written with {key} {was}, this run has {now}: pass"
                f" the same {flags}, or begin a new run with --init-from {file}"
            )


def check_trained_classes(
    there: Classes | None, classes: Classes, file: Path, root: str | None = None
) -> tuple[Classes, str | None]:
    """Return the classes of a checkpoint and a data set, and a line if names are unknown.

    `root` is the data set that the checkpoint was trained on. Raises UserError, which names both,
    if a number means different classes.
    """
    assert there is not None  # `load` and `read_classes` state at least their number
    remedy = f"use the data set of the training{f' ({root} as it was then)' if root else ''}"
    if not there.known:  # such as imported weights
        remedy = f"use a data set with its {len(there):,} classes"
    remedy += f", or start a new run with --init-from {file}, which keeps the classes of the same"
    remedy += " name"
    both = check_agreement([replace(there, origin=str(file)), classes], remedy=remedy)
    if there.known and classes.known:
        return both, None
    unknown = classes.origin if there.known else file
    return both, f"{unknown} has no class names: only the number of classes was compared"


def check_shapes(arrays: dict[str, np.ndarray], net: Network, file: Path) -> None:
    """Raise UserError if the arrays are not those of `net`."""
    for name, shape in net.arrays().items():
        there = arrays[name].shape if name in arrays else "nothing"
        if there != shape:
            raise UserError(
                f"{file} is not a {net.name}: {name} should have shape {shape}, there is {there}"
            )


# --- file names -----------------------------------------------------------------------------------


def symbol_path(prefix: str | Path) -> Path:
    """Return the file that describes the network of a prefix."""
    return Path(f"{prefix}-symbol.json")


def path(prefix: str | Path, epoch: int, images: int = 0) -> Path:
    """Return the file of a checkpoint: `<prefix>-0090.safetensors` for epoch 90."""
    middle = f"-{images:08d}" if images else ""
    return Path(f"{prefix}-{epoch:04d}{middle}.safetensors")


def parts(file: str | Path) -> tuple[str, int, int]:
    """Return prefix, epoch and images of a checkpoint's name. Raise ValueError for other names."""
    match = re.fullmatch(r"(.+?)-(\d{4,})(?:-(\d{8,}))?\.safetensors", str(file))
    if match is None:
        raise ValueError(f"{file} is not a checkpoint's name")
    return match[1], int(match[2]), int(match[3] or 0)


def positions(prefix: str | Path) -> list[tuple[int, int]]:
    """Return (epochs, images of the next one) of each checkpoint under `prefix`, oldest first."""
    prefix, found = Path(prefix), []
    for file in prefix.parent.glob(f"{glob.escape(prefix.name)}-*.safetensors"):
        with contextlib.suppress(ValueError):
            name, epoch, images = parts(file.name)
            found += [(epoch, images)] if name == prefix.name else []
    return sorted(found)


def epochs(prefix: str | Path) -> list[int]:
    """Return the epochs at whose end a checkpoint was written under `prefix`, oldest first."""
    return [epoch for epoch, images in positions(prefix) if images == 0]


# --- reading --------------------------------------------------------------------------------------


def is_finite(arrays: dict[str, np.ndarray]) -> bool:
    """Return True if no value is infinite or NaN."""
    return all(np.isfinite(array).all() for array in arrays.values())


def checksum(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
    """Return a CRC-32 over all arrays, their names, types and shapes, and the metadata."""
    rest = {key: text for key, text in metadata.items() if key != "crc32"}
    value = zlib.crc32(json.dumps(rest, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        value = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), value)
        value = zlib.crc32(np.ascontiguousarray(array).data.cast("B"), value)
    return f"{value:08x}"


def load(prefix: str | Path, epoch: int, images: int = 0) -> Checkpoint:
    """Read and verify a checkpoint. Raise UserError if it is missing or damaged."""
    file = path(prefix, epoch, images)
    metadata, arrays = read(file, with_arrays=True)
    if checksum(arrays, metadata) != metadata.get("crc32"):
        raise UserError(
            f"checkpoint {file} is damaged: its content does not match its checksum; use an"
            " earlier epoch"
        )
    if not is_finite(arrays):
        raise UserError(f"checkpoint {file}: its weights are not finite; use an earlier epoch")
    try:
        return Checkpoint(
            epoch=int(metadata["epoch"]),
            arrays=arrays,
            fingerprint=json.loads(metadata["identity"]),
            config=json.loads(metadata["experiment"]),
            metrics=json.loads(metadata["metrics"]),
            loss_scale=json.loads(metadata["scaling"]),
            position=TrainProgress(**json.loads(metadata["position"])),
            seconds={
                k: float(s) for k, s in dict(json.loads(metadata.get("seconds", "{}"))).items()
            },
            classes=classes_in(metadata, len(arrays.get("fc.bias", ())), file),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"checkpoint {file} is from a different version of rn50 ({error}): use that version, or"
            " train again"
        ) from error


def classes_in(metadata: dict[str, str], count: int, file: Path) -> Classes:
    """Return the classes in a checkpoint's metadata; without names if they are not there."""
    text = metadata.get("classes")
    return Classes.from_dict(json.loads(text)) if text else unnamed(count, file)


def read(file: Path, with_arrays: bool) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the metadata and, if asked for, the arrays of a checkpoint, unverified."""
    from safetensors import SafetensorError, safe_open

    if not file.exists():
        prefix = parts(file)[0]
        there = ", ".join(str(e) for e in epochs(prefix)) or "none"
        raise UserError(f"no checkpoint {file}; this prefix has epochs: {there}")
    try:
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            names = opened.keys() if with_arrays else ()
            arrays = {name: opened.get_tensor(name) for name in names}
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"checkpoint {file} is damaged: {first_line(error)}; use an earlier epoch"
        ) from error
    if metadata.get("format") != FORMAT:
        raise UserError(f"{file} is a safetensors file, but not a checkpoint of rn50")
    return metadata, arrays


def read_classes(file: Path) -> tuple[Classes, str | None]:
    """Return the classes of a checkpoint, unverified, and its data set if that is known."""
    metadata, _ = read(file, with_arrays=False)
    count = read_network(parts(file)[0]).num_classes
    try:
        root = json.loads(metadata["experiment"]).get("data_root")
        return classes_in(metadata, count, file), root
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"checkpoint {file} is damaged, or from a different version of rn50 ({error}); use an"
            " earlier epoch"
        ) from error


def newest(prefix: str | Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that verifies, and a line for each that was passed over."""
    passed_over: list[str] = []
    for epoch, images in reversed(positions(prefix)):
        try:
            return load(prefix, epoch, images), passed_over
        except UserError as error:
            passed_over.append(f"passed over: {error}")
    return None, passed_over


def read_network(prefix: str | Path) -> Network:
    """Return the network of a prefix. Raise UserError if its file is missing or damaged."""
    file = symbol_path(prefix)
    try:
        return Network.from_symbol(read_json(file))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{file} cannot be read as a network ({why}): name the --model-prefix of a run"
        ) from error


# --- writing --------------------------------------------------------------------------------------


def saves(config: TrainConfig) -> bool:
    """Return True if a run writes checkpoints."""
    return config.model_prefix is not None and not (config.only_inference or config.test_io)


def check_prefix_is_free(prefix: str | Path, load_epoch: int | None, resume: bool) -> None:
    """Raise UserError if a run with this --model-prefix would overwrite an earlier one's files."""
    symbol = symbol_path(prefix)
    check_folder(symbol.absolute().parent, f"--model-prefix {prefix}")
    check_output(
        symbol, "--model-prefix", "a network of rn50",
        lambda file: bool(Network.from_symbol(read_json(file))),
    )  # fmt: skip
    there = [at for at in positions(prefix) if load_epoch is None or at > (load_epoch, 0)]
    if there and not resume:
        after = "" if load_epoch is None else f"after epoch {load_epoch} "
        quoted = shlex.quote(str(prefix))
        raise UserError(
            f"--model-prefix {prefix}: checkpoints {after}already exist, up to"
            f" {path(prefix, *there[-1])}: continue with `--model-prefix {quoted} --resume`, pass"
            f" a different --model-prefix, or remove {quoted}-[0-9]*.safetensors"
        )


def lock_for(config: TrainConfig) -> contextlib.AbstractContextManager[Any]:
    """Return the context that holds the lock of a run's --model-prefix. Raise UserError."""
    prefix = Path(config.model_prefix or "")
    check_prefix_is_free(prefix, config.load_epoch, config.resume)
    make_folder(prefix.parent, f"--model-prefix {prefix}")
    return lock(prefix.with_name(f".{prefix.name}.lock"), f"--model-prefix {prefix}")


def save(prefix: str | Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, whole or not at all. Raise UserError without room for it."""
    from safetensors.numpy import save as serialise

    metadata = {
        "format": FORMAT,
        "epoch": str(checkpoint.epoch),
        "position": json.dumps(asdict(checkpoint.position), allow_nan=False, sort_keys=True),
        "identity": json.dumps(checkpoint.fingerprint, sort_keys=True),
        "experiment": json.dumps(checkpoint.config, sort_keys=True),
        "metrics": json.dumps(checkpoint.metrics, allow_nan=False),
        "scaling": json.dumps(checkpoint.loss_scale, sort_keys=True),
        "seconds": json.dumps(checkpoint.seconds),
    }
    if checkpoint.classes is not None:
        metadata["classes"] = json.dumps(checkpoint.classes.to_dict())
    metadata["crc32"] = checksum(checkpoint.arrays, metadata)
    file = path(prefix, checkpoint.epoch, checkpoint.position.images)
    name = Path(prefix).name
    for draft in file.parent.glob(f".{glob.escape(name)}-*.tmp.safetensors"):
        with contextlib.suppress(ValueError):  # of a run that was killed here
            if parts(draft.name[1:].rsplit(".", 3)[0] + ".safetensors")[0] == name:
                draft.unlink(missing_ok=True)
    remedy = "any earlier checkpoint is untouched: free some space and continue with --resume"
    write_file(file, serialise(checkpoint.arrays, metadata), remedy)
    return file


def write_symbol(prefix: str | Path, net: Network) -> None:
    """Write the architecture. Raise UserError if the folder cannot be written."""
    write_file(symbol_path(prefix), net.to_json())

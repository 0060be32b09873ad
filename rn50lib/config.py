"""The complete configuration of a training run, and the file that holds it.

`TrainConfig` leaves nothing open: None is a value, such as "no report", never "not chosen yet". It
does not depend on the machine; `rn50.autoconfig` fills in what the user did not pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rn50lib import optim
from rn50lib import recipe as recipes
from rn50lib import resnet as networks
from rn50lib.errors import UserError
from rn50lib.files import read_json
from rn50lib.report import write_json

BACKENDS = ("torch", "tensorflow")
DTYPES = ("float32", "tf32", "bfloat16", "float16")
LOADERS = ("native", "dali", "synthetic")
FORMATS = ("auto", "files", "recordio", "tfrecord")
ENGINES = ("torch", "onnxruntime", "openvino", "auto")
LAUNCHERS = ("horovodrun", "mpirun", "torchrun")
PROFILES = ("auto", "ci", "cpu", "gpu")
# Fields of earlier versions: files that have them still load.
REMOVED = (
    "logdir", "elastic", "min_np", "fp16_allreduce", "fusion_mb", "cycle_ms", "profile_trace",
    "freeze_until", "cuda_graphs", "resample", "flip_up_down", "timeline", "bind", "rotate",
)  # fmt: skip
# Fields without a flag: `--set NAME=VALUE` sets them.
RARE = (
    "loss_scale", "resnet_version", "bn_decay", "zero_gamma", "val_resize", "keep", "step",
)  # fmt: skip


def slots(hosts: str) -> dict[str, int]:
    """Return the worker slots of each host: 'a:4,b' gives {'a': 4, 'b': 1}."""
    found: dict[str, int] = {}
    for part in hosts.split(","):
        name, _, number = part.strip().partition(":")
        number = number or "1"
        if not name or name.startswith("-") or not number.isdigit() or number == "0":
            raise ValueError("must be HOST:SLOTS,... such as a:4,b:4")
        if name in found:
            raise ValueError("must be hosts that are each named once")
        found[name] = int(number)
    return found


def check_rising(epochs: tuple[float, ...]) -> None:
    """Raise ValueError unless epochs are finite, not negative and in rising order."""
    if list(epochs) != sorted(epochs) or not all(0 <= epoch < math.inf for epoch in epochs):
        raise ValueError("must be epochs in rising order, such as 30,60,80")


def value(default: Any = MISSING, **limits: Any) -> Any:
    """Return a field; a value is one of `choices`, from `low` to `high`, and passes `check`.

    `rn50` fills in a field without a default. `check` raises ValueError.
    """
    return field(default=default, metadata=limits)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A complete training configuration. `rn50 run --help all` explains each field."""

    backend: str = value(choices=BACKENDS)
    data_root: str
    data_format: str = value(choices=FORMATS)
    loader: str = value(choices=LOADERS)
    dtype: str = value(choices=DTYPES)
    loss_scale: str | None = value(None, check=optim.parse_loss_scale)
    n: int = value(low=1)  # workers
    comm: str = value(choices=("local", "horovod", "ddp"))
    batch_size: int = value(low=1)  # per worker and step
    macrobatch_size: int | None = value(None, low=1)  # per worker and update

    network: str = value(choices=("resnet", "tiny"))
    num_layers: int | None = value(None, choices=tuple(networks.STAGES))  # None: tiny
    resnet_version: str = value(choices=networks.VERSIONS)
    num_classes: int = value(low=1)
    image_shape: int = value(low=32)  # height and width in pixels

    recipe: str = value(choices=tuple(recipes.RECIPES))
    num_epochs: int = value(low=1)
    lr: float = value(low=0)  # at the recipe's global batch, scaled linearly
    warmup_epochs: float = value(low=0)
    lr_step_epochs: tuple[float, ...] = value(check=check_rising)
    lr_schedule: str = value(choices=recipes.SCHEDULES)
    optimizer: str = value(choices=recipes.OPTIMIZERS)
    mom: float = value(low=0)
    wd: float = value(low=0)
    bn_decay: bool
    zero_gamma: bool
    label_smoothing: float = value(low=0, high=0.99)
    val_resize: int = value(low=1)  # shorter side before the crop, in pixels
    seed: int = value(low=0, high=2**32 - 1)

    model_prefix: str | None = None
    save_period: int = value(1, low=1)  # epochs
    checkpoint_steps: int | None = value(None, low=1)  # updates
    keep: int | None = value(None, low=1)
    load_epoch: int | None = value(None, low=0)
    init_from: str | None = None
    resume: bool = False
    report: str | None = None
    logger: tuple[str, ...] = ()
    no_val: bool = False
    only_inference: bool = False
    no_metrics: bool = False
    benchmark_iters: int | None = value(None, low=1)
    num_examples: int | None = value(None, low=1)
    test_io: bool = False
    step: float | None = value(None, low=1e-6)  # images per second of a simulated device
    engine: str = value("torch", choices=ENGINES)  # computes the answers on a processor
    override: tuple[str, ...] = ()
    disp_batches: int = value(20, low=1)

    launcher: str | None = value(None, choices=LAUNCHERS)  # None: one process
    hosts: str | None = value(None, check=slots)
    comm_timeout: int | None = value(None, low=1)  # seconds
    max_restarts: int = value(0, low=0)

    threads: int = value(low=1)
    data_nthreads: int = value(low=0)
    compile: bool = False
    profile: str = value(choices=PROFILES)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    @property
    def global_batch(self) -> int:
        """Images of all workers in one iteration."""
        return self.n * self.batch_size

    @property
    def grad_accum_steps(self) -> int:
        """Batches whose gradients are accumulated for one update."""
        return (self.macrobatch_size or self.batch_size) // self.batch_size

    @property
    def effective_batch_size(self) -> int:
        """Images of all workers in one update, which the learning rate is scaled to."""
        return self.global_batch * self.grad_accum_steps

    def to_recipe(self) -> recipes.Recipe:
        """Return the recipe with the numbers of this configuration."""
        base = recipes.RECIPES[self.recipe]
        return replace(
            base, epochs=self.num_epochs, lr=self.lr,
            batch_size=self.batch_size, image_size=self.image_shape,
            warmup_epochs=self.warmup_epochs, lr_step_epochs=self.lr_step_epochs,
            momentum=self.mom, weight_decay=self.wd, zero_gamma=self.zero_gamma,
            bn_decay=self.bn_decay, label_smoothing=self.label_smoothing,
            lr_schedule=self.lr_schedule, optimizer=self.optimizer,
        )  # fmt: skip

    def to_network(self) -> networks.Network:
        """Return the network's specification."""
        if self.network == "tiny":
            return networks.tiny(self.num_classes, self.resnet_version)
        return networks.resnet(self.num_layers or 50, self.num_classes, self.resnet_version)


FIELDS: dict[str, Field] = {f.name: f for f in fields(TrainConfig)}


def flag_name(name: str) -> str:
    """Return the flag of a field: '--batch-size' of 'batch_size', '--set keep' of 'keep'."""
    if name in RARE:
        return f"--set {name}"
    return "--n-GPUs" if name == "n" else f"--{name.replace('_', '-')}"


def checked(name: str, value: Any) -> Any:
    """Return a field's value as its type. Raises ValueError with what it must be."""
    f = FIELDS[name]
    kind, meta = f.type.removesuffix(" | None"), f.metadata
    if value is None and kind != f.type:
        return None
    if kind == "bool":
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
    elif kind in ("int", "float"):
        numbers = int if kind == "int" else (int, float)
        if isinstance(value, bool) or not isinstance(value, numbers):
            raise ValueError("must be a whole number" if kind == "int" else "must be a number")
        value = float(value) if kind == "float" else value
        low, high = meta.get("low"), meta.get("high")
        if low is not None and not low <= value < math.inf or high is not None and value > high:
            wanted = f"at least {low:g}" if high is None else f"from {low} to {high}"
            raise ValueError(f"must be {wanted}")
    elif kind == "str":
        if not isinstance(value, str) or not value.strip():
            raise ValueError("must be a text that is not empty")
    else:
        items = str if kind == "tuple[str, ...]" else (int, float)
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, items) for v in value):
            raise ValueError(f"must be a list of {'texts' if items is str else 'numbers'}")
        value = tuple(value)
    if value not in meta.get("choices", (value,)):
        raise ValueError(f"must be one of {', '.join(map(str, meta['choices']))}")
    if "check" in meta:
        meta["check"](value)
    return value


def from_dict(values: Mapping[str, Any], source: str) -> TrainConfig:
    """Return the configuration with these values of `source`, a file's name.

    Raises UserError for unknown, missing and impossible values.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in FIELDS and name not in REMOVED:
            raise UserError(f"{source}: unknown field {name!r}")
        try:
            found |= {name: checked(name, value)} if name in FIELDS else {}
        except ValueError as error:
            raise UserError(f"{source}: {name} {value!r} {error}") from error
    missing = [f.name for f in FIELDS.values() if f.default is MISSING and f.name not in found]
    if missing:
        raise UserError(f"{source}: no value for {', '.join(missing)}")
    return TrainConfig(**found)


@dataclass(frozen=True)
class Resolved:
    """A configuration, why each value was chosen, and what a profile capped."""

    experiment: TrainConfig
    reasons: Mapping[str, str] = field(default_factory=dict)
    caps: tuple[str, ...] = ()

    def write(self, path: Path, command: list[str] | None = None) -> None:
        """Write RUN/experiment.json, with the command that starts the workers."""
        content: dict[str, Any] = {
            "experiment": self.experiment.to_dict(),
            "reasons": dict(self.reasons),
        }
        content |= {"caps": list(self.caps)} | ({"command": command} if command else {})
        write_json(path, content)

    @classmethod
    def read(cls, path: Path) -> Resolved:
        """Read a RUN/experiment.json. Raises UserError naming the file."""
        try:
            content = read_json(path)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise UserError(f"{path} is not JSON: {error}") from error
        if not isinstance(content, dict) or not isinstance(content.get("experiment"), dict):
            raise UserError(f"{path} has no 'experiment': it was not written by `rn50 run`")
        config = from_dict(content["experiment"], str(path))
        return cls(config, content.get("reasons", {}), tuple(content.get("caps", ())))


def text_of(value: Any) -> str:
    """Return a value as typed after a flag; a number as the shortest text that reads back."""
    if isinstance(value, tuple):
        return ",".join(map(text_of, value))
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def flags_of(values: TrainConfig | Mapping[str, Any]) -> list[str]:
    """Return the flags that set these values, long names, in the order of the fields."""
    values = values.to_dict() if isinstance(values, TrainConfig) else values
    argv: list[str] = []
    for name in (name for name in FIELDS if values.get(name) is not None):
        value, long = values[name], flag_name(name)
        if name in RARE:
            text = str(value).lower() if isinstance(value, bool) else text_of(value)
            argv += ["--set", f"{name}={text}"]
            continue
        if isinstance(value, bool):
            argv += [long] if value else []
            continue
        repeated = FIELDS[name].type == "tuple[str, ...]"
        for item in value if repeated else [value]:
            text = text_of(item)
            # joined if argparse would take the value for a flag
            argv += [f"{long}={text}"] if text.startswith("-") or not text else [long, text]
    return argv

"""The flags of a training run, each declared once, and the file that holds their values.

`TrainConfig` leaves nothing open: None is a value, such as "no report", never "not chosen yet". It
does not depend on the machine: the command fills in what the user did not pass. The parser, the
help, the error lines and the lists of names by `scope` are derived from the declarations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_type_hints

from rn50lib import recipe as recipes
from rn50lib.errors import UserError
from rn50lib.files import load_json
from rn50lib.optim import parse_loss_scale
from rn50lib.report import write_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from rn50lib.resnet import Network

MUST_BE = {
    int: "must be a whole number",
    float: "must be a number",
    bool: "must be true or false",
    str: "must be a text that is not empty",
    tuple[str, ...]: "must be a list of texts",
    tuple[float, ...]: "must be a list of numbers",
}


@dataclass(frozen=True)
class Flag:
    """The declaration of a flag; the name, type and default are those of its field.

    A value is one of `choices`, from `low` to `high`, and passes `check`, which raises ValueError;
    `read` converts a text. `chosen` explains the default in words. `needs` are fields that must be
    set too; `excludes` are fields that must not. `names` are its names if it has a short one,
    `also` those of other training programs, which are answered, not accepted. A flag that is `rare`
    is only set by `--set NAME=VALUE`. `scope` lists where it counts:

    - first: on the first page of the help
    - shown: printed before a run
    - trick: printed before a run if it differs from the published recipe's
    - input, step: changes only the speed of the input, or only that of the step
    - host: may differ between the hosts of a run
    - score: a run that only validates takes the checkpoint's value
    - resume: a resumed run must have the checkpoint's value
    - group: for several workers only
    - output: what a run writes, and where it starts and ends; a timed run takes the default
    - untimed: makes no sense in a benchmark
    - torch: PyTorch alone reads it
    """

    group: str
    help: str
    scope: str = ""
    chosen: str = ""
    choices: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    check: Callable[[Any], object] | None = None
    read: Callable[[str], Any] | None = None
    names: str = ""
    metavar: str = ""
    needs: str = ""
    excludes: str = ""
    also: str = ""
    rare: bool = False
    # from the field
    name: str = ""
    kind: Any = None
    default: Any = ...  # no default: `rn50` fills it in

    def within(self, value: Any) -> Any:
        """Return a value of the right type. Raises ValueError if it is outside of the limits."""
        if value is None:
            return None
        low, high = self.low, self.high
        if low is not None and value < low or high is not None and value > high:
            raise ValueError(
                f"must be at least {low:g}" if high is None else f"must be from {low} to {high}"
            )
        if self.choices and value not in self.choices:
            raise ValueError(f"must be one of {', '.join(map(str, self.choices))}")
        if isinstance(value, str) and not value.strip():
            raise ValueError(MUST_BE[str])
        if self.check:
            self.check(value)
        return value

    @property
    def option(self) -> str:
        """The words that set the field: '--batch-size', or '--set keep'."""
        return self.names.split()[-1] if self.names else f"--set {self.name}"


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


def check_no_folder(prefix: str) -> str:
    """Return a prefix. Raise ValueError for a folder instead."""
    if prefix.endswith("/") or Path(prefix).name in ("", ".."):
        raise ValueError(f"must be a name, not a folder, such as {Path(prefix, 'model')}")
    return prefix


def check_rising(epochs: tuple[float, ...]) -> None:
    """Raise ValueError unless epochs are not negative and in rising order."""
    if list(epochs) != sorted(epochs) or not all(epoch >= 0 for epoch in epochs):
        raise ValueError("must be epochs in rising order, such as 30,60,80")


def image_shape(text: str) -> int:
    """Return the size in pixels of '3,224,224', the reference's form, or '224'."""
    size = text.removeprefix("3,").partition(",")[0]
    if text not in (size, f"3,{size},{size}") or int(size) < 32:
        raise ValueError("must be '3,SIZE,SIZE' or 'SIZE' with a size of at least 32 pixels")
    return int(size)


def epoch_list(text: str) -> tuple[float, ...]:
    """Return the numbers of '30,60,80'; an empty text means no decay."""
    return tuple(float(part) for part in text.split(",") if part.strip())


# fmt: off
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A complete training configuration; the declaration of each field explains it."""

    backend: Annotated[str, Flag(
        "axes", "framework", "shown", choices=("torch", "tensorflow"))] = "torch"
    data_root: Annotated[str, Flag(
        "axes", "images in train/CLASS and val/CLASS, record files or TFRecord shards",
        "first shown input host score", metavar="FOLDER", chosen="ImageNet where the reference"
        " mounts it, else the road signs", also="--data --data-dir --data-path --data-train"
        " --data-val --dataset -d")]
    data_format: Annotated[str, Flag(
        "axes", "storage of the images", "input", choices=("auto", "files", "recordio", "tfrecord"),
        chosen="records if there are any, else files, else TFRecord shards; TensorFlow reads no"
        " records")]
    loader: Annotated[str, Flag(
        "axes", "input pipeline: native is PyTorch's or tf.data, dali is for PyTorch; synthetic"
        " makes random images", "shown input", choices=("native", "dali", "synthetic"),
        chosen="native; dali for the reference's recipe on GPUs, if DALI is installed",
        also="--data-backend --data-loader --use-dali")]
    dtype: Annotated[str, Flag(
        "axes", "precision", "first shown step score", metavar="NAME",
        choices=("float32", "tf32", "bfloat16", "float16"), chosen="the fastest that the hardware"
        " supports", also="--amp --amp-dtype --fp16 --bf16 --half --mixed-precision --precision"
        " --use-amp")]
    loss_scale: Annotated[str | None, Flag(
        "axes", "factor on the loss that keeps small gradients from vanishing: dynamic,"
        " dynamic:START:STEPS (doubles after STEPS good steps) or a number", "shown step torch",
        chosen="dynamic for float16, none otherwise", check=parse_loss_scale, rare=True,
        also="--static-loss-scale --dynamic-loss-scale")] = None
    n: Annotated[int, Flag(
        "axes", "workers: one per GPU, or processes on the CPU", "first shown", low=1, chosen="1",
        names="-n --n-GPUs", also="--gpus --num-gpus --ngpus --world-size --nproc-per-node"
        " --np")]
    comm: Annotated[str, Flag(
        "axes", "library that synchronises gradients", "shown step group",
        choices=("local", "horovod", "ddp"),
        chosen="Horovod if it is built for this hardware, else DDP; DDP with --compile",
        also="--kv-store --use-horovod --distributed")]
    batch_size: Annotated[int, Flag(
        "axes", "images per worker and step", "first shown score", low=1, names="-b --batch-size",
        chosen="32; on GPUs the recipe's, scaled down if their memory is small",
        also="--validation-batch-size -vb")]
    macrobatch_size: Annotated[int | None, Flag(
        "axes", "images per worker and update, a multiple of -b: the gradients of several batches"
        " are accumulated and synchronised once, with PyTorch", "shown torch", low=1, chosen="-b",
        also="--grad-accum-steps --gradient-accumulation-steps --accumulate-grad-batches")] = None

    network: Annotated[str, Flag(
        "model", "tiny is a small network for tests; the code is the same", "step",
        choices=("resnet", "tiny"), excludes="num_layers")] = "resnet"
    num_layers: Annotated[int | None, Flag(
        "model", "depth of the ResNet", "step", choices=(18, 34, 50, 101, 152), chosen="50",
        also="--model --arch -a")] = None
    resnet_version: Annotated[str, Flag(
        "model", "which convolution of a bottleneck is strided", "step", choices=("v1", "v1.5"),
        rare=True)] = "v1.5"
    num_classes: Annotated[int, Flag(
        "model", "classes", "shown", low=1, high=1_000_000, chosen="the data set's")]
    image_shape: Annotated[int, Flag(
        "model", "input size, 3,224,224 or 224", "shown score", low=32, read=image_shape,
        also="--img-size --image-size --input-size --train-crop-size --val-crop-size")]

    recipe: Annotated[str, Flag(
        "recipe", "source of the defaults below", "shown score", choices=tuple(recipes.RECIPES),
        chosen="roadsigns for the built-in data, else reference")]
    num_epochs: Annotated[int, Flag(
        "recipe", "epochs", "first shown", low=1, names="-e --num-epochs",
        also="--epochs --epoch --run-epochs --max-epochs")]
    lr: Annotated[float, Flag(
        "recipe", "learning rate at a global batch of 256, scaled linearly to yours", "first",
        low=0, high=1e30, names="-l --lr", metavar="RATE", also="--learning-rate --lr-base"
        " --lr-base-size --lr-base-scale")]
    warmup_epochs: Annotated[float, Flag(
        "recipe", "epochs over which the rate rises from 0", "trick", low=0,
        chosen="the recipe's, scaled to --num-epochs", also="--lr-warmup-epochs --warmup-strategy"
        " --lr-warmup-method --warmup-lr")]
    lr_schedule: Annotated[str, Flag(
        "recipe", "decay after the warm-up: step at --lr-step-epochs, or smoothly to 0 over all"
        " epochs", "trick", choices=recipes.SCHEDULES, also="--sched --lr-scheduler --scheduler")]
    lr_step_epochs: Annotated[tuple[float, ...], Flag(
        "recipe", "epochs at which the rate falls to a tenth", "trick", check=check_rising,
        read=epoch_list, chosen="the recipe's, scaled to --num-epochs",
        also="--lr-steps --lr-step-size --milestones --decay-epochs --lr-factor --lr-gamma")]
    optimizer: Annotated[str, Flag(
        "recipe", "update: SGD with momentum", choices=("sgd",), also="--opt")] = "sgd"
    mom: Annotated[float, Flag("recipe", "momentum", "trick", low=0, also="--momentum")]
    wd: Annotated[float, Flag("recipe", "weight decay", "trick", low=0, also="--weight-decay")]
    bn_decay: Annotated[bool, Flag(
        "recipe", "true: weight decay on batch norm's gamma and beta and on the bias too; false: on"
        " weights only", "trick", rare=True, also="--norm-weight-decay --bias-weight-decay")]
    zero_gamma: Annotated[bool, Flag(
        "recipe", "true: start the last batch norm of each block at 0, so that the block begins as"
        " its shortcut", "trick", rare=True, also="--bn-gamma-init0")]
    label_smoothing: Annotated[float, Flag(
        "recipe", "share of the label that is spread over all classes in the training loss only",
        "resume trick", low=0, high=0.99, also="--smoothing")]
    crop_area: Annotated[float, Flag(
        "recipe", "smallest share of an image that a training crop covers", "input trick",
        low=0.001, high=1, rare=True, also="--min-random-area --scale")]
    val_resize: Annotated[int, Flag(
        "recipe", "shorter side of a validation image before the crop", "input score", low=1,
        chosen="size x 256 / 224", rare=True, also="--val-resize-size --data-val-resize --crop-pct"
        " --crop-mode")]
    seed: Annotated[int, Flag(
        "recipe", "seed of the initial weights, the order and the augmentation", "resume", low=0,
        high=2**32-1, also="--worker-seeding")] = 0

    model_prefix: Annotated[str | None, Flag(
        "run", "name of the checkpoints: PREFIX-symbol.json and PREFIX-NNNN.safetensors",
        "first shown output", metavar="PREFIX", check=check_no_folder, excludes="step",
        also="--output --output-dir --workspace --save-dir --checkpoint-dir --experiment")] = None
    save_period: Annotated[int, Flag(
        "run", "epochs between checkpoints", low=1, also="--save-frequency --save-freq")] = 1
    checkpoint_steps: Annotated[int | None, Flag(
        "run", "also write a checkpoint every N updates", "output untimed", low=1, excludes="step",
        chosen="only at the end of an epoch, and on SIGTERM")] = None
    keep: Annotated[int | None, Flag(
        "run", "keep the checkpoints of only this many newest epochs, and the best by val top-1",
        "output", low=1, chosen="all", rare=True, also="--checkpoint-hist")] = None
    load_epoch: Annotated[int | None, Flag(
        "run", "start from the checkpoint of this epoch, or score it", "output", low=0,
        needs="model_prefix", excludes="resume init_from step",
        also="--start-epoch --begin-epoch")] = None
    init_from: Annotated[str | None, Flag(
        "run", "start with the weights of a checkpoint (the newest of a PREFIX, or a file); the"
        " last layer is new if the number of classes differs", "shown host output",
        excludes="step", also="--pretrained --weights --initial-checkpoint --load"
        " --checkpoint --pretrained-path")] = None
    resume: Annotated[bool, Flag(
        "run", "continue from --model-prefix's newest valid checkpoint, with its settings",
        "first output untimed", needs="model_prefix", also="--auto-resume --no-resume-opt")] = False
    report: Annotated[str | None, Flag(
        "run", "write a JSON report, after every epoch", "host output untimed",
        also="--log --dllogger-log --log-file --logging-dir --logdir --eval-metric")] = None
    trace: Annotated[str | None, Flag(
        "run", "write a trace of three training steps with torch.profiler, for ui.perfetto.dev",
        "host output untimed torch", metavar="FILE",
        excludes="only_inference test_io step")] = None
    no_val: Annotated[bool, Flag("run", "train only")] = False
    only_inference: Annotated[bool, Flag(
        "run", "validate only", excludes="no_val",
        also="--test-only --evaluate --eval --validate --mode")] = False
    no_metrics: Annotated[bool, Flag("run", "measure speed, not accuracy")] = False
    benchmark_iters: Annotated[int | None, Flag(
        "run", "iterations per epoch", "output", low=1, chosen="the whole data set",
        also="--epoch-size")] = None
    num_examples: Annotated[int | None, Flag(
        "run", "use only this many training images per epoch", "input resume", low=1)] = None
    test_io: Annotated[bool, Flag(
        "run", "time the input pipeline alone", "output untimed", also="--test-io-mode")] = False
    step: Annotated[float | None, Flag(
        "run", "images per second of a simulated device, which waits instead of running the model",
        "shown step", low=1e-6, excludes="test_io", rare=True)] = None
    override: Annotated[tuple[str, ...], Flag(
        "run", "NAME=FILE:FUNCTION replaces a part of the run with your function; repeatable",
        also="--aa --auto-augment --color-jitter --hflip --vflip --random-crop --random-mirror"
        " --random-resized-crop")] = ()
    disp_batches: Annotated[int, Flag(
        "run", "iterations between progress lines", low=1, also="--log-interval --print-freq"
        " --log-freq --verbose")] = 20

    launcher: Annotated[str | None, Flag(
        "many workers", "program that starts the workers", "shown step host group",
        choices=("horovodrun", "mpirun", "torchrun"),
        chosen="horovodrun for Horovod, torchrun for DDP")] = None
    hosts: Annotated[str | None, Flag(
        "many workers", "hosts of the workers, HOST:SLOTS,...", "host group", check=slots,
        chosen="all on this machine")] = None
    comm_timeout: Annotated[int | None, Flag(
        "many workers", "seconds after which a worker that does not answer fails the run", "group",
        low=1, chosen="Horovod 120, DDP 1800 with Gloo, 600 with NCCL")] = None
    max_restarts: Annotated[int, Flag(
        "many workers", "restart a run that fails up to N times, from the newest checkpoint",
        "output untimed", low=0, excludes="step")] = 0

    threads: Annotated[int, Flag(
        "machine", "compute threads per worker", "shown step host", low=1, high=2**15,
        chosen="the cores it may use")]
    data_nthreads: Annotated[int, Flag(
        "machine", "loader workers per worker; 0 loads in the training process", "shown input host",
        low=0, high=2**15, chosen="the cores", also="--workers --num-workers -j"
        " --data-mxnet-threads --dali-threads --dali-validation-threads --validation-dali-threads")]
    engine: Annotated[str, Flag(
        "machine", "what runs predictions: PyTorch, compiled PyTorch or, on a processor,"
        " OpenVINO", "shown step torch", choices=("torch", "compile", "openvino"),
        chosen="torch, or openvino if installed and the work takes much longer than its start",
        needs="only_inference", excludes="compile")] = "torch"
    compile: Annotated[bool, Flag(
        "machine", "compile the model with torch.compile", "shown step torch",
        chosen="only on one GPU, for a run that makes up for the minute it takes",
        also="--torchcompile --torchscript --xla --use-xla")] = False
    cuda_graph: Annotated[bool, Flag(
        "machine", "true: record a training step or a prediction as a CUDA graph and replay it; one"
        " GPU", "step torch", chosen="false: the code has not run on a GPU yet", rare=True)] = False
    fused: Annotated[bool, Flag(
        "machine", "true: batch norm, addition and ReLU as one operation in training, in Triton; on"
        " GPUs", "step torch", chosen="false: the code has not run on a GPU yet", rare=True
        )] = False
    profile: Annotated[str, Flag(
        "machine", "ci limits the run to seconds and prints every limit; cpu and gpu, profiles of"
        " notebooks, limit nothing", choices=("auto", "ci", "cpu", "gpu"))] = "auto"

    # fmt: on
    # the same in all recipes; `recipe.learning_rate` reads them from a configuration too
    lr_batch: ClassVar[int] = recipes.LR_BATCH
    lr_factor: ClassVar[float] = recipes.LR_FACTOR

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return {n: v for n, f in FLAGS.items() if (v := getattr(self, n)) != f.default}

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

    @property
    def trains(self) -> bool:
        """Return True if the run trains a model: it does not only validate or measure input."""
        return not (self.only_inference or self.test_io or self.step)

    @property
    def augmentation(self) -> recipes.Augmentation:
        return recipes.Augmentation(area=(self.crop_area, 1.0))

    def to_network(self) -> Network:
        from rn50lib import resnet  # imports NumPy, which no help text needs

        if self.network == "tiny":
            return resnet.tiny(self.num_classes, self.resnet_version)
        return resnet.resnet(self.num_layers or 50, self.num_classes, self.resnet_version)


HINTS = get_type_hints(TrainConfig, include_extras=True)


def declared() -> dict[str, Flag]:
    """Return the declaration of each field, complete."""
    found = {}
    for f in dataclasses.fields(TrainConfig):
        kind, flag = get_args(HINTS[f.name])
        if type(None) in get_args(kind):
            kind = get_args(kind)[0]
        default = ... if f.default is MISSING else f.default
        named = flag.names or ("" if flag.rare else "--" + f.name.replace("_", "-"))
        metavar = flag.metavar or ("N" if kind is int else f.name.upper())
        found[f.name] = dataclasses.replace(
            flag, name=f.name, kind=kind, default=default, names=named, metavar=metavar
        )
    return found


FLAGS = declared()
RARE = tuple(name for name, flag in FLAGS.items() if flag.rare)


def scoped(scope: str) -> tuple[str, ...]:
    """Return the fields of a scope, in order. `Flag` has the list of scopes."""
    return tuple(name for name, flag in FLAGS.items() if scope in flag.scope.split())


def flag_name(name: str) -> str:
    """Return the flag of a field: '--batch-size' of 'batch_size', '--set keep' of 'keep'."""
    return FLAGS[name].option


@cache
def validator(name: str) -> TypeAdapter[Any]:
    """Return pydantic's validator of a field; its numbers are finite."""
    from pydantic import AfterValidator, BeforeValidator, ConfigDict, TypeAdapter

    flag = FLAGS[name]

    def read(value: Any) -> Any:
        if isinstance(value, str) and flag.read:
            return flag.read(value)
        return tuple(value) if isinstance(value, list) else value

    kind: Any = Annotated[HINTS[name], BeforeValidator(read), AfterValidator(flag.within)]
    return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))


def validated(values: Mapping[str, Any], source: str = "", texts: bool = False) -> dict[str, Any]:
    """Return the values of fields as their types; those of flags, or of `source`, a file.

    With `texts`, a text or a number is read as on a command line. Raises UserError for an unknown
    name or an impossible value.
    """
    from pydantic import ValidationError

    found, where = {}, f"{source}: " if source else ""
    for name, value in values.items():
        if name not in FLAGS:
            raise UserError(f"{where}unknown field {name!r}")
        typed = not texts or type(value) not in (str, int, float)
        try:
            found[name] = validator(name).validate_python(
                value if typed else text_of(value), strict=typed
            )
        except ValidationError as error:
            words = error.errors()[0]["msg"].removeprefix("Value error, ")
            must_be = words if words.startswith("must be") else MUST_BE[FLAGS[name].kind]
            flag = name if source else flag_name(name)
            raise UserError(f"{where}{flag} {value!r} {must_be}") from error
    return found


def from_dict(values: Mapping[str, Any], source: str) -> TrainConfig:
    """Return the configuration with these values of `source`, a file's name.

    Raises UserError for unknown, missing and impossible values.
    """
    found = validated(values, source)
    missing = [name for name, flag in FLAGS.items() if flag.default is ... and name not in found]
    if missing:
        raise UserError(f"{source}: no value for {', '.join(missing)}")
    return TrainConfig(**found)


@dataclass(frozen=True)
class Resolved:
    """A configuration, why each value was chosen, and what a profile capped."""

    config: TrainConfig
    reasons: Mapping[str, str] = field(default_factory=dict)
    caps: tuple[str, ...] = ()

    def chosen(self, reason: str, **values: Any) -> Resolved:
        """Return this with other values, for a reason."""
        reasons = {**self.reasons, **dict.fromkeys(values, reason)}
        return Resolved(dataclasses.replace(self.config, **values), reasons, self.caps)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, or were given instead of a choice."""
        given = [n for n, reason in self.reasons.items() if reason == "given" and FLAGS[n].chosen]
        return self.config.to_dict() | {name: getattr(self.config, name) for name in given}

    def write(self, path: Path, command: list[str] | None = None) -> None:
        """Write RUN/experiment.json, with the command that starts the workers."""
        content: dict[str, Any] = {"experiment": self.to_dict()}
        content |= {"reasons": dict(self.reasons), "caps": list(self.caps)}
        content |= {"command": command} if command else {}
        write_json(path, content)

    @classmethod
    def read(cls, path: Path) -> Resolved:
        """Read a RUN/experiment.json. Raises UserError naming the file."""
        content = load_json(path)
        if not isinstance(content, dict) or not isinstance(content.get("experiment"), dict):
            raise UserError(f"{path} has no 'experiment': it is not the file of a run")
        config = from_dict(content["experiment"], str(path))
        return cls(config, content.get("reasons", {}), tuple(content.get("caps", ())))


def text_of(value: Any) -> str:
    """Return a value as typed after a flag; a number as the shortest text that reads back."""
    if isinstance(value, tuple):
        return ",".join(map(text_of, value))
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def flags_of(values: TrainConfig | Mapping[str, Any]) -> list[str]:
    """Return the flags that set these values, long names, in the order of the fields."""
    values = values.to_dict() if isinstance(values, TrainConfig) else values
    argv: list[str] = []
    for name, flag in FLAGS.items():
        value = values.get(name)
        if value is None:
            continue
        if flag.rare:
            argv += ["--set", f"{name}={text_of(value)}"]
        elif value is False:
            argv += [flag.option.replace("--", "--no-")] if flag.chosen else []
        elif value is True:
            argv += [flag.option]
        else:
            for item in value if flag.kind == tuple[str, ...] else [value]:
                text = text_of(item)
                # joined if argparse would take the value for a flag
                joined = text.startswith("-") or not text
                argv += [f"{flag.option}={text}"] if joined else [flag.option, text]
    return argv

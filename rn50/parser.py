"""The verbs of `rn50`, the flags of a run, and how their texts become values.

Each flag of a run, and each name for --set, is a field of `rn50lib.config.TrainConfig`.
"""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path
from typing import Any

from rn50.verbs import VERBS
from rn50lib import config, errors
from rn50lib.errors import UserError, converter, what_instead
from rn50lib.files import read_json

Given = dict[str, Any]  # values by the names of fields, of those that were passed

HELP = {
    "axes": {
        "backend": "framework (default: torch)",
        "data_root": "folder with train.rec, train.idx, val.rec, val.idx or train/CLASS/*.jpg and"
        " val/CLASS/*.jpg (default: ImageNet if it is where the reference mounts it, else"
        " the road signs)",
        "data_format": "storage of the images (default: records if there are any, else files,"
        " else TFRecord shards; TensorFlow reads no records)",
        "loader": "input pipeline: native is PyTorch's or tf.data, dali is for PyTorch; synthetic"
        " makes random images"
        " (default: native; dali for the reference's recipe on GPUs, if DALI is installed)",
        "dtype": "precision (default: the fastest that the hardware supports)",
        "n": "workers: one per GPU, or processes on the CPU (default: 1)",
        "comm": "library that synchronises gradients (default: Horovod if it is built for this"
        " hardware, else DDP)",
        "batch_size": "images per worker and step",
        "macrobatch_size": "images per worker and update, a multiple of -b: the gradients of"
        " several batches are accumulated and synchronised once, with PyTorch (default: -b)",
    },
    "model": {
        "network": "tiny is a small network for tests; the code is the same (default: resnet)",
        "num_layers": "depth of the ResNet (default: 50)",
        "num_classes": "classes (default: the data set's)",
        "image_shape": "input size, 3,224,224 or 224 (default: the recipe's)",
    },
    "recipe": {
        "recipe": "source of the defaults below (default: roadsigns for the built-in data)",
        "num_epochs": "epochs (default: the recipe's)",
        "lr": "learning rate at a global batch of 256, scaled linearly (default: the recipe's)",
        "warmup_epochs": "epochs over which the rate rises from 0 (default: the recipe's)",
        "lr_step_epochs": "epochs at which the rate falls to a tenth (default: the recipe's)",
        "lr_schedule": "decay after the warm-up: step at --lr-step-epochs, cosine or poly (the"
        " square of what is left) to 0 over all epochs (default: the recipe's)",
        "optimizer": "lars sets a separate learning rate for each layer, for very large batches;"
        " its rates are far larger than SGD's, so pass --lr too (default: the recipe's)",
        "mom": "momentum (default: 0.9)",
        "wd": "weight decay (default: 1e-4)",
        "label_smoothing": "share of the label that is spread over all classes in the training"
        " loss only (default: the recipe's)",
        "seed": "seed of the initial weights, the order and the augmentation (default: 0)",
    },
    "run": {
        "model_prefix": "write PREFIX-symbol.json and PREFIX-NNNN.safetensors",
        "save_period": "epochs between checkpoints (default: 1)",
        "checkpoint_steps": "also write a checkpoint every N updates (default: only at the end of"
        " an epoch, and on SIGTERM)",
        "load_epoch": "start from the checkpoint of this epoch, or score it",
        "init_from": "start with the weights of a checkpoint (the newest of a PREFIX, or a"
        " file); the last layer is new if the number of classes differs",
        "resume": "continue from the newest checkpoint of --model-prefix that verifies",
        "report": "write a JSON report, after every epoch",
        "logger": "log to tensorboard (in the run's folder), or call"
        " FILE.py:FUNCTION with each line of progress.jsonl and the report; repeatable",
        "no_val": "train only",
        "only_inference": "validate only",
        "no_metrics": "measure speed, not accuracy",
        "benchmark_iters": "iterations per epoch (default: the whole data set)",
        "num_examples": "use only this many training images per epoch",
        "test_io": "time the input pipeline alone",
        "override": "NAME=FILE:FUNCTION replaces a part of the run with your function; repeatable",
        "disp_batches": "iterations between progress lines (default: 20)",
    },
    "many workers": {
        "launcher": "program that starts the workers (default: horovodrun for Horovod, torchrun"
        " for DDP)",
        "hosts": "hosts of the workers, HOST:SLOTS,... (default: all on this machine)",
        "comm_timeout": "seconds after which a worker that does not answer fails the run (default:"
        " Horovod 120, DDP 1800 with Gloo, 600 with NCCL)",
        "max_restarts": "restart a run that fails up to N times, from the newest checkpoint",
    },
    "machine": {
        "threads": "compute threads per worker (default: the cores it may use)",
        "data_nthreads": "loader workers per worker; 0 loads in the training process (default:"
        " the cores)",
        "engine": "what computes the answers of `rn50 score`, `predict` and `benchmark"
        " --only-inference` on a processor; auto is the fastest installed one (default: torch, or"
        " auto if the work takes much longer than its start)",
        "compile": "compile the model with torch.compile",
        "profile": "ci limits the run to seconds and prints every limit (default: gpu or cpu)",
    },
}
RARE_HELP = {  # the fields without a flag of their own
    "loss_scale": "factor on the loss that keeps small gradients from vanishing: dynamic,"
    " dynamic:START:STEPS (doubles after STEPS good steps) or a number (default: dynamic"
    " for float16, none otherwise)",
    "resnet_version": "v1 or v1.5: which convolution of a bottleneck is strided (default: v1.5)",
    "bn_decay": "true: weight decay on batch norm's gamma and beta and on the bias too; false: on"
    " weights only (default: the recipe's)",
    "zero_gamma": "true: start the last batch norm of each block at 0, so that the block begins as"
    " its shortcut (default: the recipe's)",
    "val_resize": "shorter side of a validation image before the crop (default: size x 256 / 224)",
    "keep": "keep the checkpoints of only this many newest epochs (default: all)",
    "step": "images per second of a simulated device, which waits instead of running the model",
}
# The flags of timm's and torchvision's train.py and of the reference's programs, with what to use
# here. The file has them by answer; none is a flag of a run.
FOREIGN_FLAGS = {
    name: answer
    for answer, names in read_json(Path(__file__).with_name("foreign_flags.json")).items()
    for name in names.split()
}
SHORT = {"n": "-n", "batch_size": "-b", "num_epochs": "-e", "lr": "-l"}
FIRST_PAGE = """\
usage: rn50 run [FLAGS]

Train; anything you omit is chosen for this machine.

  rn50 run                                    the built-in road signs; minutes on two cores
  rn50 run --data-root photos -e 20           photos/train/CLASS/*.jpg, photos/val/CLASS/*.jpg
  rn50 run -n 2 --model-prefix signs          two workers; checkpoints with that name
  rn50 run --model-prefix signs --resume      continue after a crash or a Ctrl-C
  rn50 run --preset RN50_FP16_8GPU --dry-run  what a published run would do, and its learning rate

  --data-root FOLDER     images in a folder per class, record files or TFRecord shards
  -n N                   workers: one per GPU, or processes on the CPU
  -b, --batch-size N     images per worker and step
  -e, --num-epochs N     epochs
  -l, --lr RATE          learning rate at a global batch of 256, scaled to yours
  --dtype NAME           float32, tf32, bfloat16 or float16
  --model-prefix PREFIX  name of the checkpoints
  --resume               continue from the newest checkpoint
  --preset NAME          a published or built-in run (docs/recipes.md)
  --config FILE          flags from a YAML or JSON file; --print config writes one

`rn50 run --help all` explains every flag.
"""


class Parser(errors.Parser):
    """The parser of a verb; knows the flags that other training programs use."""

    def suggest(self, unknown: str) -> str:
        """Return what to pass instead of an unknown flag."""
        if self.trains:
            name = unknown.replace("_", "-")
            field = name.removeprefix("--").removeprefix("no-").replace("-", "_")
            if field in config.RARE:
                value = "false" if name.startswith("--no-") else "VALUE"
                return f"pass --set {field}={value}"
            if name in FOREIGN_FLAGS:
                return FOREIGN_FLAGS[name]
            if not unknown.startswith("-"):
                return f"values follow their flags, a data set --data-root; see {self.help_command}"
        return super().suggest(unknown)

    @property
    def trains(self) -> bool:
        """True for the verbs that take all flags of a run."""
        return any("--set" in action.option_strings for action in self._actions)

    def format_help(self) -> str:
        """Return the help text, with the names for --set."""
        lines = [f"{name:21} {text}" for name, text in RARE_HELP.items()] if self.trains else []
        names = [textwrap.fill(line, 96, initial_indent="  ", subsequent_indent=" " * 24)
                 for line in lines]  # fmt: skip
        return "\n".join([super().format_help(), *["names for --set:"] * self.trains, *names, ""])

    @property
    def help_command(self) -> str:
        """The command that explains every flag."""
        return f"`{self.prog} --help{' all' if self.prog == 'rn50 run' else ''}`"


class Help(argparse.Action):
    """`rn50 run --help` shows the first page, `--help all` every flag."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Print the help and exit."""
        if values not in (None, "all"):
            parser.error(f"--help {values}: see `{parser.prog} --help` or `--help all`")
        first = parser.prog == "rn50 run" and values is None
        print(FIRST_PAGE if first else parser.format_help(), end="")
        parser.exit()


def image_shape(text: str) -> int:
    """Return the size in pixels of '3,224,224', the reference's form, or '224'."""
    parts = [int(part) for part in text.split(",")]
    if len(parts) == 3 and parts[0] == 3 and parts[1] == parts[2]:
        parts = parts[1:2]
    if len(parts) != 1 or parts[0] < 32:
        raise ValueError("must be '3,SIZE,SIZE' or 'SIZE' with a size of at least 32 pixels")
    return parts[0]


def epoch_list(text: str) -> tuple[float, ...]:
    """Return the numbers of '30,60,80'; an empty text means no decay."""
    return tuple(float(part) for part in text.split(",") if part.strip())


def truth(text: str) -> bool:
    """Return the value of 'true' or 'false'."""
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


READERS: dict[str, Callable[[str], Any]] = {
    "image_shape": image_shape, "lr_step_epochs": epoch_list, "int": int, "float": float,
    "bool": truth,
}  # fmt: skip


def kind_of(name: str) -> str:
    """Return the type of a field, without None."""
    return config.FIELDS[name].type.removesuffix(" | None")


def from_text(name: str, text: str) -> Any:
    """Return the value of a field for what was typed. Raises ValueError."""
    read = READERS.get(name) or READERS.get(kind_of(name), str)
    return config.checked(name, read(text))


def assignment(text: str) -> tuple[str, Any]:
    """Return the name and the value of 'keep=2', as for --set. Raises ValueError."""
    name, _, value = text.partition("=")
    if name not in config.RARE:
        raise ValueError(f"must be NAME=VALUE with one of the names {', '.join(config.RARE)}")
    return name, from_text(name, value)




def config_parser(verb: str) -> Parser:
    """Return a parser of every field of TrainConfig."""
    parser = Parser(
        prog=f"rn50 {verb}", description=VERBS[verb].capitalize() + ".", allow_abbrev=False,
        add_help=False,
    )  # fmt: skip
    parser.add_argument(
        "-h", "--help", nargs="?", metavar="all", action=Help, help="this text; all: every flag"
    )
    for title, texts in HELP.items():
        group = parser.add_argument_group(title)
        for name, text in texts.items():
            kind = kind_of(name)
            options: dict[str, Any] = {"dest": name, "help": text, "default": argparse.SUPPRESS}
            if kind == "bool":
                options["action"] = "store_true"
            elif kind == "tuple[str, ...]":
                options |= {"action": "append", "metavar": name.upper()}
            else:
                if choices := config.FIELDS[name].metadata.get("choices"):
                    options |= {"type": int if kind == "int" else str, "choices": choices}
                else:
                    convert = converter(partial(from_text, name))
                    options |= {"type": convert, "metavar": name.upper()}
            names = [SHORT[name]] if name in SHORT else []
            group.add_argument(*names, config.flag_name(name), **options)
        if title == "axes":
            group.add_argument("--no-dali", action="store_true", help="the same as --loader native")
            group.add_argument(
                "--config", type=Path, metavar="FILE",
                help="JSON or YAML file with names and values of flags, or a run's experiment.json;"
                " flags on the command line win",
            )  # fmt: skip
            group.add_argument("--preset", help="a named set of flags; other flags win")
            group.add_argument(
                "--set", action="append", default=[], type=converter(assignment),
                metavar="NAME=VALUE", help="set what has no flag (names below); repeatable",
            )  # fmt: skip
    return parser


def parse_given(
    parser: Parser, argv: list[str], without: Container[str] = ()
) -> tuple[Given, argparse.Namespace]:
    """Return the values that `argv` gives, and the other flags.

    A flag wins over the preset, and that over the file of --config, of which the flags in
    `without` are left out.
    """
    from rn50.presets import PRESETS

    args = parser.parse_args(argv)
    given: Given = {} if args.config is None else read_values(args.config, without)
    if args.preset is not None:
        if args.preset not in PRESETS:
            raise UserError(f"--preset {args.preset}: there are {', '.join(PRESETS)}")
        verb, own = parser.prog.split()[-1], PRESETS[args.preset].command
        if own not in ("run", verb):
            raise UserError(f"--preset {args.preset} is for `rn50 {own}`, not for `rn50 {verb}`")
        args = parser.parse_args([*PRESETS[args.preset].flags, *argv])
    flags = fields_in(args)
    if args.no_dali:
        if flags.get("loader", "native") != "native":
            raise UserError(f"--no-dali and --loader {args.loader} contradict each other")
        flags["loader"] = "native"
    given |= flags
    if given.get("profile") == "auto":
        del given["profile"]
    return given, args


def fields_in(args: argparse.Namespace) -> Given:
    """Return the fields among parsed flags."""
    found = {
        name: value
        for name, value in vars(args).items()
        if name in config.FIELDS and value is not None
    }
    found = {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}
    return found | dict(args.set)


def read_values(path: Path, without: Container[str] = ()) -> Given:
    """Return the values of a file of names or flags, or of one that `rn50 run` wrote.

    Raises UserError for an unknown name, and for a value that the flag would not take.
    """
    known = {flag: name for name, flag in SHORT.items()} | {"--n-GPUs": "n"}
    known |= {flag_of(name): name for name in config.FIELDS}
    hints = FOREIGN_FLAGS | {"--preset": "pass --preset next to --config",
                     "--no-dali": "write loader: native"}  # fmt: skip
    found: Given = {}
    for key, value in read_file(path).items():
        flag = flag_of(key)
        if flag in without or flag.lstrip("-").replace("-", "_") in config.REMOVED:
            continue
        if flag not in known:
            close = difflib.get_close_matches(flag, [f for f in known if len(f) > 3], n=1)
            name = close[0].lstrip("-").replace("-", "_") if close else ""
            meant = f"did you mean {name}?" if close else "`rn50 run --help all` lists all"
            raise UserError(f"{path}: there is no {key!r}: {hints.get(flag, meant)}")
        if known[flag] in found:
            raise UserError(f"{path}: {key!r} is set twice, by two of its names")
        try:
            if value is not None:
                found[known[flag]] = from_file(known[flag], value)
        except ValueError as error:
            raise UserError(f"{path}: {key} {value!r} {what_instead(error)}") from error
    return found


def flag_of(key: object) -> str:
    """Return the flag that a key of a file means: 'batch_size', 'b' and '--batch-size' are fine."""
    name = str(key).lstrip("-").replace("_", "-")
    return f"--{name}" if len(name) > 1 else f"-{name}"


def from_file(name: str, value: Any) -> Any:
    """Return a field's value from a file's, which may be a text. Raises ValueError."""
    if kind_of(name) in ("bool", "tuple[str, ...]"):
        return config.checked(name, value)
    if isinstance(value, (bool, dict)):
        raise ValueError("must be one value")
    if isinstance(value, list):
        value = ",".join(map(config.text_of, value))
    return from_text(name, config.text_of(value))


def read_file(path: Path) -> dict[str, Any]:
    """Return the names and values in a YAML or JSON file. Raises UserError."""
    form = "YAML" if path.suffix in (".yaml", ".yml") else "JSON"
    try:
        content = read_yaml(path) if form == "YAML" else read_json(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not {form}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no names and values, such as batch_size: 64")
    inner = content.get("experiment")
    return inner if isinstance(inner, dict) else content


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file. Raises ValueError if it is not YAML."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
        names = [key.value for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
        for i, name in enumerate(names):  # PyYAML would take the last one
            if name in names[:i]:
                raise ValueError(f"{name!r} is set twice")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from error

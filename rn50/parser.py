"""The verbs of `rn50` and their flags: each field of `rn50lib.config.Experiment` is one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rn50lib import argparser
from rn50lib.errors import UserError

if TYPE_CHECKING:
    from rn50lib.config import Experiment

VERBS = {
    "run": "train, in processes of its own, with everything not given chosen for this machine",
    "train": "one worker of a run, in this process",
    "score": "validate a checkpoint: rn50 score PREFIX EPOCH",
    "benchmark": "images per second over numbers of workers and batch sizes",
    "predict": "class probabilities of pictures: rn50 predict PREFIX EPOCH a.jpg",
    "import": "weights of torchvision or timm as a checkpoint: rn50 import torchvision FILE",
    "export": "a checkpoint as an ONNX file, a TensorFlow SavedModel or weights for torchvision",
    "plot": "loss and accuracy curves from report files",
    "compare": "reports and benchmarks beside each other, and beside published figures",
    "scale": "what a training would do on other numbers of GPUs, what it takes and costs",
    "diagnose": "where the time of a run goes, and which change would help most",
    "doctor": "what this machine has, what is missing and what to do about it",
    "workshop": "build, check and run the notebooks",
}

REPEATED = ("logger", "override")  # flags that may be given several times
FIRST_PAGES = {  # what `--help` shows of a verb with a hundred flags; `--help all` shows the rest
    "rn50 run": """\
usage: rn50 run [FLAGS]

Train, in processes of its own, with everything not given chosen for this machine.

  rn50 run                                    the built-in road signs: minutes on two cores
  rn50 run --data-root photos -e 20           photos/train/CLASS/*.jpg, photos/val/CLASS/*.jpg
  rn50 run -n 2 --model-prefix signs          two workers; checkpoints of that name
  rn50 run --model-prefix signs --resume      go on after a crash or a Ctrl-C
  rn50 run --preset RN50_FP16_8GPU --dry-run  what a published run would do, and its learning rate

  --data-root FOLDER     pictures in folders of their classes, record files or TFRecord shards
  -n N                   workers, one a GPU; without GPUs, processes
  -b, --batch-size N     images per worker and step
  -e, --num-epochs N     epochs
  -l, --lr RATE          learning rate at a global batch of 256, scaled to yours
  --dtype NAME           float32, tf32, bfloat16 or float16
  --model-prefix PREFIX  name of the checkpoints
  --resume               go on from the newest of them
  --preset NAME          a published or built-in run (docs/recipes.md)
  --config FILE          flags from a YAML or JSON file; --print-config writes one

`rn50 run --help all` explains every flag.
""",
    "rn50 benchmark": """\
usage: rn50 benchmark [FLAGS] -o FILE

Images per second over numbers of workers and batch sizes.

  rn50 benchmark -n 1,2 -b 8,32 -e 2 -w 1 -o bench.json            four cells
  rn50 benchmark -b 1,8,32 --only-inference -o inference.json      inference alone
  rn50 benchmark --preset BENCHMARK_FP16 -o out.json --dry-run     the reference's sweep

  -n, --n-GPUs N,N,...         numbers of workers
  -b, --batch-size N,N,...     batch sizes per worker
  -i, --benchmark-iters N      iterations per epoch (100)
  -e, --num-epochs N           epochs (1)
  -w, --warmup N               first epochs to leave out (0)
  -o, --output FILE            JSON file to write
  --dry-run                    print every cell's run, and stop
  --preset NAME, --config FILE a named or saved set of flags

Every other flag of `rn50 run` applies to every cell; `rn50 benchmark --help all` lists them.
""",
}


class Parser(argparser.Parser):
    """The parser of a verb; knows the flags that other training programs use."""

    def suggest(self, unknown: str) -> str:
        """Return what to pass instead of an unknown flag."""
        if any("--data-root" in action.option_strings for action in self._actions):
            from rn50.foreign_flags import TABLE

            name = unknown.replace("_", "-")
            if name in TABLE:
                return TABLE[name]
            if not unknown.startswith("-"):
                return f"values follow their flags, a data set --data-root; see {self.help_command}"
        return super().suggest(unknown)

    @property
    def help_command(self) -> str:
        """The command that explains every flag."""
        return f"`{self.prog} --help{' all' if self.prog in FIRST_PAGES else ''}`"


class Help(argparse.Action):
    """`--help` shows the first page of a verb that has one, `--help all` every flag."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if values not in (None, "all"):
            parser.error(f"--help {values}: see `{parser.prog} --help` or `--help all`")
        page = FIRST_PAGES.get(parser.prog)
        print(page if page and values is None else parser.format_help(), end="")
        parser.exit()


def experiment_parser(verb: str) -> Parser:
    """A parser with a flag for every field of Experiment."""
    from rn50lib.config import Experiment

    parser = Parser(
        prog=f"rn50 {verb}", description=VERBS[verb].capitalize() + ".", allow_abbrev=False,
        add_help=False,
    )  # fmt: skip
    parser.add_argument(
        "-h", "--help", nargs="?", metavar="all", action=Help, help="this text; all: every flag"
    )
    groups: dict[str, Any] = {}
    for f in fields(Experiment):
        meta = f.metadata
        if meta["group"]:
            group = groups[meta["group"]] = parser.add_argument_group(meta["group"])
        add = group.add_argument
        options: dict[str, Any] = {"dest": f.name, "help": meta["help"], "default": f.default}
        if meta["kind"] is None:
            add(*meta["names"], action="store_true", **options)
        elif meta["kind"] is bool:
            add(*meta["names"], action=argparse.BooleanOptionalAction, **options)
        elif meta["kind"] is list:
            add(*meta["names"], action="append", **(options | {"default": None}))
        else:
            options |= {"type": checked(meta["kind"]), "choices": meta["choices"]}
            if not meta["choices"]:
                options["metavar"] = f.name.upper()
            add(*meta["names"], **options)
    group = groups["axes"]
    group.add_argument("--no-dali", action="store_true", help="the same as --loader native")
    group.add_argument(
        "--config", type=Path, metavar="FILE",
        help="JSON or YAML with names and values of flags, or a run's experiment.json; flags given"
        " beside it win",
    )  # fmt: skip
    group.add_argument("--preset", help="a named set of flags; flags given beside it win")
    return parser


def checked(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """`kind` with its ValueError's text in the message: argparse would hide it."""
    from rn50lib.config.kinds import why_not

    def convert(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} {why_not(error)}") from error

    return convert


def parse_experiment(
    parser: Parser, argv: list[str], without: Container[str] = ()
) -> tuple[Experiment, argparse.Namespace]:
    """The experiment that `argv` gives, and the other flags. A flag wins over the preset, and that
    over the file of --config, of which the flags in `without` are left out."""
    from rn50.presets import PRESETS
    from rn50lib.config import Experiment, read_experiment

    first = parser.parse_args(argv)
    lists: dict[str, Any] = {}
    if first.config is not None:
        from rn50.foreign_flags import TABLE

        filed = read_experiment(first.config, without, TABLE).given()
        lists = {name: filed.pop(name) for name in REPEATED if name in filed}
        parser.set_defaults(**filed)  # not the lists: argparse would append the flags to them
    if first.preset is not None:
        if first.preset not in PRESETS:
            raise UserError(f"--preset {first.preset}: there are {', '.join(PRESETS)}")
        verb, own = parser.prog.split()[-1], PRESETS[first.preset].command
        if own != "run" and own != verb:
            raise UserError(f"--preset {first.preset} is for `rn50 {own}`, not for `rn50 {verb}`")
        argv = [*PRESETS[first.preset].flags, *argv]
    values = vars(parser.parse_args(argv))
    if values.pop("no_dali"):
        if first.loader not in (None, "native"):
            raise UserError(f"--no-dali and --loader {first.loader} contradict each other")
        values["loader"] = "native"
    values |= {name: tuple(values[name] or lists.get(name, ())) for name in REPEATED}
    names = {f.name for f in fields(Experiment)}
    experiment = Experiment(**{name: values.pop(name) for name in names})
    return experiment, argparse.Namespace(**values)

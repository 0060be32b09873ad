"""The flags of a run on the command line and in files, and the help.

Each flag, and each name for --set, is a field of `rn50lib.config.TrainConfig`.
"""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from data_prep import command_line
from rn50.verbs import VERBS
from rn50lib.config import FLAGS, RARE, Flag, scoped, text_of, validated
from rn50lib.errors import UserError
from rn50lib.files import load_json
from rn50lib.recipe import REFERENCE

Given = dict[str, Any]  # values by the names of fields, of those that were passed

PRESETS = {f.stem: f for f in sorted(Path(__file__).with_name("configs").glob("*.yaml"))}
ELSEWHERE = {name: flag for flag in FLAGS.values() for name in flag.also.split()}
OTHER_NAMES = {
    "preset": "pass --preset next to --config",
    "warmup": "it is for `rn50 benchmark`; a schedule has warmup_epochs",
    "n_GPUs": "here it is n",
}
LOGGERS = ("--logger", "--wandb", "--mlflow", "--log-dir", "--tensorboard")
FIRST_PAGE = """\
usage: rn50 run [FLAGS]

Train; anything you omit is chosen for this machine.

  rn50 run                                    the built-in road signs; minutes on two cores
  rn50 run --data-root photos -e 20           photos/train/CLASS/*.jpg, photos/val/CLASS/*.jpg
  rn50 run -n 2 --model-prefix signs          two workers; checkpoints with that name
  rn50 run --model-prefix signs --resume      continue after a crash or a Ctrl-C
  rn50 run --preset RN50_FP16_8GPU --dry-run  what a published run would do, and its learning rate

{flags}
  --preset NAME          a published or built-in run (docs/recipes.md)
  --config FILE          flags from a YAML or JSON file; --print config writes one

`rn50 run --help all` explains every flag.
"""


class Parser(command_line.Parser):
    """The parser of a verb that takes the flags of a run; knows those of other programs."""

    run_flags: list[argparse.Action]

    def suggest(self, unknown: str) -> str:
        """Return what to pass instead of an unknown flag."""
        if answer := answer_to(unknown.replace("_", "-")):
            return answer
        if not unknown.startswith("-"):
            return f"values follow their flags, a data set --data-root; see {self.help_command}"
        return f"{super().suggest(unknown)} (docs/reference.md has the reference's flags)"

    @property
    def help_command(self) -> str:
        return f"`{self.prog} --help all`"


def answer_to(name: str) -> str | None:
    """Return what to pass for a flag of another program, or for one that only --set sets."""
    field = name.removeprefix("--").removeprefix("no-").replace("-", "_")
    if field in RARE:
        value = "false" if name.startswith("--no-") else "VALUE"
        return f"pass --set {field}={value}"
    if name in LOGGERS:
        return "every run writes progress.jsonl, which docs/commands.md shows in TensorBoard"
    if flag := ELSEWHERE.get(name):
        return f"here it is {flag.option}: {explanation(flag)}"
    return None


def explanation(flag: Flag) -> str:
    """Return a flag's help text, with the choices and the default."""
    of_recipe = "the recipe's" if flag.name in vars(REFERENCE) else ""
    default = "" if flag.default in (..., None, False, ()) else text_of(flag.default)
    default = flag.chosen or of_recipe or default
    notes = [", ".join(map(str, flag.choices)), default and f"default: {default}"]
    text = "; ".join(filter(None, notes))
    return f"{flag.help} ({text})" if text else flag.help


def first_page() -> str:
    rows = []
    for flag in (FLAGS[name] for name in scoped("first")):
        words = f"{', '.join(flag.names.split())} {'' if flag.kind is bool else flag.metavar}"
        text = f"{flag.help}: {', '.join(flag.choices)}" if flag.choices else flag.help
        rows.append(f"  {words:22} {text}")
    return FIRST_PAGE.format(flags="\n".join(rows))


class Help(argparse.Action):
    """`--help` shows a verb's own flags and the common ones of a run, `--help all` every flag."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if values is None:
            for flag in parser.run_flags:
                common = flag.dest in scoped("first") and FLAGS[flag.dest].group == "axes"
                flag.help = flag.help if common else argparse.SUPPRESS
            parser.epilog = f"{parser.help_command} explains every flag and the names for --set."
        first = parser.prog == "rn50 run" and values is None
        print(first_page() if first else parser.format_help(), end="")
        parser.exit()


def config_parser(verb: str) -> Parser:
    rows = [f"  {name:21} {explanation(FLAGS[name])}" for name in RARE]
    filled = [textwrap.fill(row, 96, subsequent_indent=" " * 24) for row in rows]
    parser = Parser(
        prog=f"rn50 {verb}", usage=f"rn50 {verb} [FLAGS]", allow_abbrev=False,
        description=VERBS[verb][0].upper() + VERBS[verb][1:] + ".", add_help=False,
        epilog="\n".join(["names for --set:", *filled]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "-h", "--help", nargs="?", choices=["all"], action=Help, help="this text; all: every flag"
    )
    titles = dict.fromkeys(flag.group for flag in FLAGS.values())
    groups = {title: parser.add_argument_group(title) for title in titles}
    either = groups["axes"].add_mutually_exclusive_group()
    parser.run_flags = []
    for flag in FLAGS.values():
        if not flag.rare:
            group = either if flag.name == "loader" else groups[flag.group]
            parser.run_flags.append(group.add_argument(*flag.names.split(), **options_of(flag)))
    no_dali = either.add_argument(
        "--no-dali", dest="loader", action="store_const", const="native",
        default=argparse.SUPPRESS, help="the same as --loader native")  # fmt: skip
    parser.run_flags.append(no_dali)
    add = groups["axes"].add_argument
    add("--config", type=Path, metavar="FILE",
        help="JSON or YAML file with names and values of flags, or a run's experiment.json; flags"
        " on the command line win")  # fmt: skip
    add("--preset", choices=PRESETS, metavar="NAME",
        help="a named set of flags; wins over --config, other flags win")  # fmt: skip
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="set what has no flag (names: --help all); repeatable")  # fmt: skip
    return parser


def options_of(flag: Flag) -> dict[str, Any]:
    """Return what argparse needs to know of a flag; `validated` reads the texts."""
    options = {"dest": flag.name, "help": explanation(flag), "default": argparse.SUPPRESS}
    if flag.kind is bool:
        return options | {"action": argparse.BooleanOptionalAction if flag.chosen else "store_true"}
    action = "append" if flag.kind == tuple[str, ...] else "store"
    return options | {"action": action, "type": str, "metavar": flag.metavar}


def parse_given(
    parser: Parser, argv: list[str], without: Container[str] = ()
) -> tuple[Given, argparse.Namespace]:
    """Return the values that `argv` gives, and the other flags.

    A flag wins over the preset, and that over the file of --config. Of both, the names in `without`
    are left out. Raises UserError.
    """
    args = parser.parse_intermixed_args(argv)
    given: Given = {}
    for source, values in sources(args):
        given |= read_values(values, source, without)
    flags = {name: value for name, value in vars(args).items() if name in FLAGS}
    for text in args.set:
        name, _, value = text.partition("=")
        if name not in RARE or "=" not in text:
            names = ", ".join(RARE)
            raise UserError(f"--set {text}: must be NAME=VALUE with one of the names {names}")
        flags[name] = value
    return given | validated(flags, texts=True), args


def sources(args: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """Return the values of --config and of --preset, each with its name. Raises UserError."""
    files = {str(args.config): args.config, f"--preset {args.preset}": PRESETS.get(args.preset)}
    return [(name, read_file(file)) for name, file in files.items() if file is not None]


def read_values(values: Mapping[str, Any], source: str, without: Container[str] = ()) -> Given:
    """Return the values of fields for names and values from `source`.

    Raises UserError for an unknown name, and for a value that the flag would not take.
    """
    found = {str(key).replace("-", "_"): value for key, value in values.items()}
    found = {name: value for name, value in found.items() if name not in without}
    for name in found:
        if name not in FLAGS:
            close = difflib.get_close_matches(name, FLAGS, n=1)
            meant = f"did you mean {close[0]}?" if close else "`rn50 run --help all` lists all"
            meant = answer_to("--" + name.replace("_", "-")) or OTHER_NAMES.get(name, meant)
            raise UserError(f"{source}: there is no {name!r}: {meant}")
    passed = {name: value for name, value in found.items() if value is not None}
    return validated(passed, source, texts=True)


def read_file(file: Path) -> dict[str, Any]:
    """Return the names and values in a YAML or JSON file. Raises UserError."""
    if file.suffix not in (".yaml", ".yml"):
        content = load_json(file)
    else:
        import yaml

        try:
            text = file.read_text(encoding="utf-8")
            content, node = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
            names = [key.value for key, _ in node.value] if isinstance(content, dict) else []
            for name in names:
                if names.count(name) > 1:  # YAML takes the last
                    raise UserError(f"{file} has {name!r} twice: remove one of them")
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            raise UserError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no names and values, such as batch_size: 64")
    inner = content.get("experiment")
    return inner if isinstance(inner, dict) else content

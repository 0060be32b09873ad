"""The verbs of `rn50`, the flags of a run, and how their texts become values.

Each flag of a run, and each name for --set, is a field of `rn50lib.config.TrainConfig`.
"""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Container, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rn50.verbs import VERBS
from rn50lib import config, errors
from rn50lib.config import FLAGS, Flag
from rn50lib.errors import UserError, converter, what_instead
from rn50lib.files import load_json

Given = dict[str, Any]  # values by the names of fields, of those that were passed

PRESETS = {f.stem: f for f in sorted(Path(__file__).with_name("configs").glob("*.yaml"))}
ELSEWHERE = {name: flag for flag in FLAGS.values() for name in flag.also.split()}
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


class Parser(errors.Parser):
    """The parser of a verb; knows the flags that other training programs use."""

    def suggest(self, unknown: str) -> str:
        """Return what to pass instead of an unknown flag."""
        name = unknown.replace("_", "-")
        if self.trains and (answer := answer_to(name)):
            return answer
        if self.trains and not unknown.startswith("-"):
            return f"values follow their flags, a data set --data-root; see {self.help_command}"
        more = "; docs/reference.md has the reference's flags" if self.trains else ""
        return super().suggest(unknown) + more

    @property
    def trains(self) -> bool:
        """True for the verbs that take all flags of a run."""
        return any("--set" in action.option_strings for action in self._actions)

    @property
    def help_command(self) -> str:
        return f"`{self.prog} --help{' all' if self.prog == 'rn50 run' else ''}`"


def answer_to(name: str) -> str | None:
    """Return what to pass for a flag of another program, or for one that only --set sets."""
    field = name.removeprefix("--").removeprefix("no-").replace("-", "_")
    if field in config.rare():
        value = "false" if name.startswith("--no-") else "VALUE"
        return f"pass --set {field}={value}"
    if flag := ELSEWHERE.get(name):
        return f"here it is {flag.option}: {flag.explanation}"
    return None


def first_page() -> str:
    """Return the short help of `rn50 run`."""
    rows = []
    for flag in (FLAGS[name] for name in config.scoped("first")):
        words = f"{', '.join(flag.names)} {'' if flag.kind is bool else flag.metavar}"
        text = f"{flag.help}: {', '.join(flag.choices)}" if flag.choices else flag.help
        rows.append(f"  {words:22} {text}")
    return FIRST_PAGE.format(flags="\n".join(rows))


class Help(argparse.Action):
    """`rn50 run --help` shows the first page, `--help all` every flag."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        first = parser.prog == "rn50 run" and values is None
        print(first_page() if first else parser.format_help(), end="")
        parser.exit()


def from_text(name: str, text: str) -> Any:
    """Return the value of a field for what was typed. Raises ValueError."""
    read = FLAGS[name].read
    return config.checked(name, read(text) if read else text, strict=False)


def assignment(text: str) -> tuple[str, Any]:
    """Return the name and the value of 'keep=2', as for --set. Raises ValueError."""
    name, _, value = text.partition("=")
    if name not in config.rare():
        raise ValueError(f"must be NAME=VALUE with one of the names {', '.join(config.rare())}")
    return name, from_text(name, value)


def config_parser(verb: str) -> Parser:
    """Return a parser of every field of TrainConfig."""
    rows = [f"  {name:21} {FLAGS[name].explanation}" for name in config.rare()]
    filled = [textwrap.fill(row, 96, subsequent_indent=" " * 24) for row in rows]
    parser = Parser(
        prog=f"rn50 {verb}", description=VERBS[verb].capitalize() + ".", allow_abbrev=False,
        add_help=False, epilog="\n".join(["names for --set:", *filled]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "-h", "--help", nargs="?", choices=["all"], action=Help, help="this text; all: every flag"
    )
    titles = dict.fromkeys(flag.group for flag in FLAGS.values())
    groups = {title: parser.add_argument_group(title) for title in titles}
    either = groups["axes"].add_mutually_exclusive_group()
    for flag in FLAGS.values():
        if not flag.rare:
            group = either if flag.name == "loader" else groups[flag.group]
            group.add_argument(*flag.names, **options_of(flag))
    either.add_argument("--no-dali", dest="loader", action="store_const", const="native",
                        default=argparse.SUPPRESS, help="the same as --loader native")  # fmt: skip
    add = groups["axes"].add_argument
    add("--config", type=Path, metavar="FILE",
        help="JSON or YAML file with names and values of flags, or a run's experiment.json; flags"
        " on the command line win")  # fmt: skip
    add("--preset", choices=PRESETS, metavar="NAME", help="a named set of flags; other flags win")
    add("--set", action="append", default=[], type=converter(assignment), metavar="NAME=VALUE",
        help="set what has no flag (names below); repeatable")  # fmt: skip
    return parser


def options_of(flag: Flag) -> dict[str, Any]:
    """Return what argparse needs to know of a flag."""
    options = {"dest": flag.name, "help": flag.explanation, "default": argparse.SUPPRESS}
    metavar = flag.metavar or ("N" if flag.kind is int else flag.name.upper())
    if flag.kind is bool:
        return options | {"action": "store_true"}
    if flag.kind == tuple[str, ...]:
        return options | {"action": "append", "metavar": metavar}
    if flag.choices:
        return options | {"type": flag.kind, "choices": flag.choices}
    return options | {"type": converter(partial(from_text, flag.name)), "metavar": metavar}


def parse_given(
    parser: Parser, argv: list[str], without: Container[str] = ()
) -> tuple[Given, argparse.Namespace]:
    """Return the values that `argv` gives, and the other flags.

    A flag wins over the preset, and that over the file of --config. Of both, the flags in
    `without` are left out.
    """
    args = parser.parse_args(argv)
    given: Given = {}
    for source, values in sources(args):
        given |= read_values(values, source, without)
    flags = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(args).items()
        if name in FLAGS and value is not None
    }
    given |= flags | dict(args.set)
    if given.get("profile") == "auto":
        del given["profile"]
    return given, args


def sources(args: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """Return the values of --config and of --preset, each with its name. Raises UserError."""
    found = []
    if args.config is not None:
        found.append((str(args.config), read_file(args.config)))
    if args.preset is not None:
        found.append((f"--preset {args.preset}", read_file(PRESETS[args.preset])))
    return found


def read_values(values: Mapping[str, Any], source: str, without: Container[str] = ()) -> Given:
    """Return the values of fields for names and values from `source`.

    Raises UserError for an unknown name, and for a value that the flag would not take.
    """
    hints = {"preset": "pass --preset next to --config", "no_dali": "write loader: native"}
    found: Given = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name in without:
            continue
        if name not in FLAGS:
            close = difflib.get_close_matches(name, FLAGS, n=1)
            meant = f"did you mean {close[0]}?" if close else "`rn50 run --help all` lists all"
            meant = hints.get(name) or answer_to("--" + name.replace("_", "-")) or meant
            raise UserError(f"{source}: there is no {key!r}: {meant}")
        try:
            if value is not None:
                found[name] = from_file(name, value)
        except ValueError as error:
            raise UserError(f"{source}: {key} {value!r} {what_instead(error)}") from error
    return found


def from_file(name: str, value: Any) -> Any:
    """Return a field's value from a file's, which may be a text. Raises ValueError."""
    if FLAGS[name].kind in (bool, tuple[str, ...]):
        return config.checked(name, value)
    if isinstance(value, (bool, dict)):
        raise ValueError("must be one value")
    if isinstance(value, list):
        value = ",".join(map(config.text_of, value))
    return from_text(name, config.text_of(value))


def read_file(path: Path) -> dict[str, Any]:
    """Return the names and values in a YAML or JSON file. Raises UserError."""
    content = (read_yaml if path.suffix in (".yaml", ".yml") else load_json)(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no names and values, such as batch_size: 64")
    inner = content.get("experiment")
    return inner if isinstance(inner, dict) else content


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file. Raises UserError."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
        names = [key.value for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
        for i, name in enumerate(names):  # PyYAML would take the last one
            if name in names[:i]:
                raise ValueError(f"{name!r} is set twice")
        return yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error

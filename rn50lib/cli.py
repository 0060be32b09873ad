"""The command line: `rn50 VERB`, or `python -m rn50lib.cli VERB` from a bare checkout.

Every flag of a run is a field of `rn50lib.experiment.Experiment`; no framework is imported here.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any, NoReturn

from rn50lib.errors import UserError

VERBS = {
    "run": "train, in processes of its own, with everything not given chosen for this machine",
    "train": "one worker of a run, in this process",
    "score": "validate a checkpoint: rn50 score PREFIX EPOCH",
    "benchmark": "images per second over numbers of workers and batch sizes",
    "predict": "class probabilities of pictures: rn50 predict PREFIX EPOCH a.jpg",
    "export": "a checkpoint as an ONNX file or a TensorFlow SavedModel",
    "plot": "loss and accuracy curves from report files",
    "compare": "reports and benchmarks beside each other, and beside published figures",
    "scale": "what a training would do on other numbers of GPUs, what it takes and costs",
    "diagnose": "where the time of a run goes, and which change would help most",
    "doctor": "what this machine has, what is missing and what to do about it",
    "workshop": "build, check and run the notebooks",
}

PACKAGES = {  # module: what is installed to have it
    "PIL": "pillow",
    "google_crc32c": "google-crc32c",
    "matplotlib": "matplotlib",
    "psutil": "psutil",
    "safetensors": "safetensors",
    "tqdm": "tqdm",
}


class Parser(argparse.ArgumentParser):
    """Errors in one line, with the flag that was probably meant."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            unknown = message.split(": ", 1)[1].split()[0]
            known = [name for action in self._actions for name in action.option_strings]
            close = difflib.get_close_matches(unknown.split("=")[0], known, n=1)
            meant = f"did you mean {close[0]}?" if close else f"see `{self.prog} --help`"
            message = f"unknown flag or argument {unknown}: {meant}"
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)


def experiment_parser(verb: str) -> Parser:
    """A parser with a flag for every field of Experiment."""
    from rn50lib.experiment import Experiment

    parser = Parser(
        prog=f"rn50 {verb}", description=VERBS[verb].capitalize() + ".", allow_abbrev=False
    )
    groups: dict[str, Any] = {}
    for f in fields(Experiment):
        meta = f.metadata
        if meta["group"] not in groups:
            groups[meta["group"]] = parser.add_argument_group(meta["group"])
        add = groups[meta["group"]].add_argument
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
    group.add_argument("--preset", help="a named set of flags; flags given beside it win")
    return parser


def checked(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """`kind` with its ValueError's text in the message: argparse would hide it."""

    def convert(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            why = str(error)
            if not why.startswith("must be"):  # Python's own words
                why = "must be a whole number" if "int()" in why else "must be a number"
            raise argparse.ArgumentTypeError(f"{text!r} {why}") from error

    return convert


def parse_experiment(parser: Parser, argv: list[str]) -> tuple[Any, argparse.Namespace]:
    """The Experiment that `argv` asks for, and the other flags. Flags win over the preset."""
    from rn50lib.experiment import Experiment
    from rn50lib.presets import PRESETS

    first = parser.parse_args(argv)
    if first.preset is not None:
        if first.preset not in PRESETS:
            raise UserError(f"--preset {first.preset}: there are {', '.join(PRESETS)}")
        verb, own = parser.prog.split()[-1], PRESETS[first.preset].command
        if own != "run" and own != verb:
            raise UserError(f"--preset {first.preset} is for `rn50 {own}`, not for `rn50 {verb}`")
        first = parser.parse_args([*PRESETS[first.preset].flags, *argv])
    values = vars(first)
    if values.pop("no_dali"):
        if values["loader"] not in (None, "native"):
            raise UserError(f"--no-dali and --loader {values['loader']} contradict each other")
        values["loader"] = "native"
    values["override"] = tuple(values["override"] or ())
    names = {f.name for f in fields(Experiment)}
    asked = Experiment(**{name: values.pop(name) for name in names})
    return asked, argparse.Namespace(**values)


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0, 2 for bad input, 130 after Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    lines = "\n".join(f"  {verb:10} {text}" for verb, text in VERBS.items())
    if not argv or argv[0] in ("-h", "--help"):
        print(
            f"usage: rn50 VERB [FLAGS]\n\n{lines}\n\n`rn50 VERB --help` lists the flags of a verb."
        )
        return 0
    if argv[0] == "--version":
        from rn50lib import __version__

        print(f"rn50 {__version__}")
        return 0
    verb, rest = argv[0], argv[1:]
    if verb not in VERBS:
        close = difflib.get_close_matches(verb, VERBS, n=1)
        meant = f"did you mean `rn50 {close[0]}`?" if close else f"there are {', '.join(VERBS)}"
        print(f"error: no verb {verb!r}: {meant}", file=sys.stderr)
        return 2
    try:
        if verb == "workshop":
            return workshop(rest)
        from rn50lib import commands

        return getattr(commands, verb)(rest)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        package = PACKAGES.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        print(
            f"error: this needs the package {package}, which is not installed: `make setup`"
            f" installs all that the workbook needs, `pip install {package}` this one",
            file=sys.stderr,
        )
        return 2
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):
            raise  # that is how PyTorch says it
        told = str(error).partition("DefaultCPUAllocator: ")[2] or str(error)
        print(
            f"error: the memory does not suffice ({told.splitlines()[0] if told else 'no more'}): a"
            " smaller -b or --image-shape needs less",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `rn50 ... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def workshop(argv: list[str]) -> int:
    """`rn50 workshop`: a verb that another package brings, found by its entry point."""
    for found in entry_points(group="rn50.verbs", name="workshop"):
        return found.load()(argv)
    raise UserError("rn50 workshop: the workshop is not installed here: run `make setup`")


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:  # a worker: threads of its group may outlive its work
        from rn50lib.launch import end_with

        end_with(main)
    sys.exit(main())

"""The command line: `rn50 VERB`, or `python -m rn50 VERB`. Imports no framework."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

from data_prep.command_line import whole_output
from rn50 import remedies  # noqa: F401 - registers what to run against an error
from rn50.allocator import spins
from rn50.verbs import MODULES, VERBS
from rn50lib.errors import status_of


@whole_output()
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
    os.environ |= spins(os.environ)  # before PyTorch is imported
    return status_of(lambda: function_of(verb)(rest))


def function_of(verb: str) -> Callable[[list[str]], int]:
    """Return the function of a verb; only now is loaded what it needs."""
    if verb in ("run", "train", "score"):
        return getattr(import_module("rn50.run"), verb)
    return import_module(MODULES.get(verb, f"rn50.{verb}")).main


def program() -> NoReturn:
    if sys.argv[1:2] == ["train"]:  # a worker: threads of its group may outlive its work
        from rn50lib.lifetime import end_with

        end_with(main)
    sys.exit(main())

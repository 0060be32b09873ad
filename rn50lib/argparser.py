"""An argument parser whose errors are one line."""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line and suggests the closest flag."""

    def print_help(self, file: Any = None) -> None:
        """Print the help text; unlike argparse's, a failing write raises OSError."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr and exit with status 2."""
        if message.startswith("unrecognized arguments: "):
            unknown = message.split(": ", 1)[1].split()[0]
            message = f"unknown flag or argument {unknown}: {self.suggest(unknown.split('=')[0])}"
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)

    def suggest(self, unknown: str) -> str:
        """Return what to pass instead of an unknown flag."""
        known = [name for action in self._actions for name in action.option_strings]
        bare = {name.lstrip("-"): name for name in known}
        close = difflib.get_close_matches(unknown.lstrip("-"), bare, n=1, cutoff=0.8)
        return f"did you mean {bare[close[0]]}?" if close else f"see {self.help_command}"

    @property
    def help_command(self) -> str:
        """The command that explains every flag."""
        return f"`{self.prog} --help`"

"""Errors as a notebook shows them: the message without a traceback."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rn50lib.errors import UserError


class RunFailed(UserError):
    """A training run that ended with an error. `log` holds the last lines that it printed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints instead of a traceback."""
        return [f"RunFailed: {self}", *(f"    {line}" for line in self.log.splitlines())]


def show_user_errors_plainly() -> None:
    """Make this kernel show a UserError as one line. Does nothing outside IPython."""
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()
    if shell is not None:
        shell.set_custom_exc((UserError,), _handler)


def _handler(
    shell: Any, kind: type, value: BaseException, trace: TracebackType, tb_offset: int | None = None
) -> list[str]:
    render = getattr(value, "_render_traceback_", None)
    lines = render() if render else [f"error: {value}"]
    shell._showtraceback(kind, value, lines)
    return lines

"""Errors as a notebook shows them: the message without a traceback."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any

from rn50lib.errors import UserError
from workshop import catalogue

HINTS = {  # what a failed script printed, and what to do
    r"has no attribute 'synchronize'": "the optimizer has to be hvd.DistributedOptimizer(…)",
    r"module 'horovod(\.tensorflow)?' has no": "PyTorch's part is `import horovod.torch as hvd`",
    r"Default process group": "with Horovod, pass both numbers:"
    " DistributedSampler(data, hvd.size(), hvd.rank())",
    r"does not expose valid metadata": 'the iterator finds the reader by its name: name="reader"',
    r"libcuda\.so": "without a GPU, a pipeline needs device_id=None",
    r"Long or Byte, but got Int": "DALI's labels are int32: labels.long()",
    r"num_samples=0": "there are no images in train/CLASS: is --data right?",
}


class RunFailed(UserError):
    """A training run that ended with an error.

    `log` holds the last lines that it printed, and a hint if the error is a common one.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        hints = [f"\nHint: {hint}" for text, hint in HINTS.items() if re.search(text, log)]
        self.log = log + "".join(hints)

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints instead of a traceback."""
        return [f"RunFailed: {self}", *(f"    {line}" for line in self.log.splitlines())]


def show_user_errors_plainly() -> None:
    """Make this kernel show errors for users as one line.

    That is a UserError, and the use of an answer whose cell has not been run. Does nothing outside
    IPython.
    """
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()
    if shell is not None:
        shell.set_custom_exc((UserError, NameError), _handler)


def _handler(
    shell: Any, kind: type, value: BaseException, trace: TracebackType, tb_offset: int | None = None
) -> list[str]:
    if isinstance(value, NameError):
        lines = _not_run(value, trace)
        if not lines:
            shell.showtraceback((kind, value, trace), tb_offset=tb_offset)
            return []
    else:
        render = getattr(value, "_render_traceback_", None)
        lines = render() if render else [f"error: {value}"]
    shell._showtraceback(kind, value, lines)
    return lines


def _not_run(value: NameError, trace: TracebackType) -> list[str]:
    """Return a message if a check cell uses an answer that does not exist yet, else nothing."""
    while trace.tb_next is not None:
        trace = trace.tb_next
    in_cell = trace.tb_frame.f_code.co_name == "<module>"
    if not in_cell or value.name not in {item.answer for item in catalogue.EXERCISES}:
        return []
    return [
        f"○ {value.name} does not exist yet.",
        "  Run the cell above in which you write it, then this one again.",
    ]

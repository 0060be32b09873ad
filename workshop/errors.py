"""Errors as a notebook shows them: the message without a traceback."""

from __future__ import annotations

import re
import subprocess
import traceback
from types import TracebackType
from typing import Any

from rn50lib.errors import UserError
from workshop import catalogue, session

HINTS = {  # what a failed script printed, and what to do
    r"has no attribute 'synchronize'": "the optimizer has to be hvd.DistributedOptimizer(…)",
    r"module 'horovod(\.tensorflow)?' has no": "PyTorch's part is `import horovod.torch as hvd`",
    r"Default process group": "DDP needs dist.init_process_group() first; with Horovod, pass both"
    " numbers: DistributedSampler(data, hvd.size(), hvd.rank())",
    r"does not expose valid metadata": 'the iterator finds the reader by its name: name="reader"',
    r"libcuda\.so": "without a GPU, a pipeline needs device_id=None",
    r"Long or Byte, but got Int": "DALI's labels are int32: labels.long()",
    r"Tensor is required to be contiguous": "Horovod broadcasts no weights in channels last:"
    " convert the images only",
    r"Target \d+ is out of bounds": "do the labels count from 1, as in shards? Subtract 1",
    r"(?i)cuda.*\n?.*out of memory": "shut down the other notebooks that use this GPU, or use"
    " smaller batches",
    r"num_samples=0": "there are no images in train/CLASS: is --data right?",
}
FRAMES = re.compile(r"^(Stacktrace \(\d+ entries\):|\[frame \d+\].*)\n?", re.M)  # of DALI's C++


class RunFailed(UserError):
    """A training run that ended with an error.

    `log` holds the last lines that it printed, and a hint if the error is a common one. They are
    notes of the exception too, which tracebacks and pytest show.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        log = FRAMES.sub("", log)
        hints = [f"\nHint: {hint}" for text, hint in HINTS.items() if re.search(text, log)]
        self.log = log + "".join(hints)
        self.__notes__ = [self.log] if self.log else []

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints instead of a traceback."""
        return [f"RunFailed: {self}", *(f"    {line}" for line in self.log.splitlines())]


def show_user_errors_plainly() -> None:
    """Make this kernel show errors for users as one line.

    That is a UserError, a failed shell cell, and the use of an answer whose cell has not been run.
    Does nothing outside IPython.
    """
    from IPython import get_ipython

    if (shell := get_ipython()) is not None:
        shell.set_custom_exc((UserError, NameError, subprocess.CalledProcessError), _handler)


def _handler(
    shell: Any, kind: type, value: BaseException, trace: TracebackType, tb_offset: int | None = None
) -> list[str]:
    if isinstance(value, NameError):
        *_, (frame, _) = traceback.walk_tb(trace)
        here = session.current()
        answers = {item.answer for item in catalogue.of_notebook(here.number)} if here else ()
        if frame.f_code.co_name != "<module>" or value.name not in answers:
            shell.showtraceback((kind, value, trace), tb_offset=tb_offset)
            return []
        lines = [f"○ {value.name} does not exist yet."]
        lines.append("  Run the cell above in which you write it, then this one again.")
    elif isinstance(value, subprocess.CalledProcessError) and type(value.cmd) is bytes:  # %%bash
        if value.returncode is None:  # interrupted: IPython cannot print it without a status
            value.returncode = 130
        lines = [f"The command ended with status {value.returncode}."]
    else:
        render = getattr(value, "_render_traceback_", None)
        lines = render() if render else [f"error: {value}"]
    shell._showtraceback(kind, value, lines)
    return lines

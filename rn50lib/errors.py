"""The exception for bad input, and the words of error lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

TERMINATED = 143  # the exit status after SIGTERM: 128 + its number, as a shell says


REMEDIES: dict[str, Callable[..., str]] = {}
"""What to run against an error, by the key that the library gives: only a command knows."""

Remedy = Sequence[object]  # a key of REMEDIES, and the arguments of its function


class UserError(Exception):
    """Bad input: the message names the file, record or flag and says what to do about it.

    The command line prints it as one line, ``error: ...``, and exits with status 2. The sentence of
    a `remedy` ends the message if a command has registered it.
    """

    def __init__(self, message: str, remedy: Remedy = ()) -> None:
        super().__init__(message)
        self.remedy = tuple(map(str, remedy))

    def __str__(self) -> str:
        message, (key, *words) = self.args[0], self.remedy or ("",)
        return f"{message}; {REMEDIES[key](*words)}" if key in REMEDIES else message


def expected(error: BaseException) -> UserError | None:
    """Return the error to print in one line instead of a traceback; None for a fault of ours."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("rn50"):
        return UserError(str(error), ("setup",))
    # PyTorch on the CPU raises a plain RuntimeError if memory runs out
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        text = str(error).partition("DefaultCPUAllocator: ")[2] or str(error) or "allocation failed"
        line = text.splitlines()[0]
        return UserError(f"out of memory ({line}): use a smaller -b or --image-shape")
    return None


def status_of(work: Callable[[], int]) -> int:
    """Do the work and return its exit status; print one line for an expected error."""
    try:
        return work()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if (line := expected(error)) is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        return 2


def first_line(error: BaseException) -> str:
    """Return the first line of a framework's error message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"[:200]


def first_names(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are; "none" if there are none."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


def memory_full(batch: int, accumulates: bool) -> UserError:
    """Return the error for a full device memory, which names half of the batch size.

    `accumulates` says whether the updates can stay as large.
    """
    fits, problem = batch // 2, f"--batch-size {batch}: the device's memory is full"
    if fits < 1:
        return UserError(f"{problem}: not even one image fits; use a smaller --image-shape")
    more = f"; with --macrobatch-size {batch // fits * fits} the updates stay about as large"
    return UserError(f"{problem}: use -b {fits}{more if accumulates else ''}")

"""What a check asks of an answer: to be called, to be a number or an array, to be equal.

Each function gives back the value in one form, or raises Wrong with a diagnosis.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import operator
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

T = TypeVar("T")


class Wrong(Exception):
    """What a check raises: what is wrong with the answer, and what to do about it. `share` is how
    much of an exercise with parts is right, from 0 to 1."""

    def __init__(self, diagnosis: str, remedy: str, share: float = 0.0) -> None:
        super().__init__(diagnosis)
        self.diagnosis, self.remedy, self.share = diagnosis, remedy, share


def wrong(diagnosis: str, remedy: str, share: float = 0.0) -> NoReturn:
    """Say what is wrong with the answer, and what to do about it."""
    raise Wrong(diagnosis, remedy, share)


LIMIT_S = 30.0  # of a check that runs in this process
AGAIN_S = 5.0
ENDLESS = "Look for a loop that does not end."


class TooLong(BaseException):
    """An answer that is still running at its time limit; `except Exception` does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float | None = None) -> Iterator[None]:
    """Raise TooLong in the main thread after LIMIT_S, or `seconds`, and again if it is swallowed.

    Does nothing in other threads, or if the alarm is in use, as it is while a class is graded.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        yield
        return
    limit = LIMIT_S if seconds is None else seconds

    def stop(number: int, frame: Any) -> NoReturn:
        raise TooLong(f"it was still running after {limit:g} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def known(
    got: Any,
    mistakes: Iterable[tuple[Any, str, str]],
    same: Callable[[Any, Any], Any] = operator.eq,
    cases: Sequence[tuple] | None = None,
) -> None:
    """Raise Wrong for the first of the `mistakes` that gives what was got.

    A mistake is what comes of it, its diagnosis and the remedy. With `cases` it is a function, and
    `got` holds what the answer gave for each of these arguments.
    """
    for result, diagnosis, remedy in mistakes:
        if same(got, result if cases is None else [result(*case) for case in cases]):
            wrong(diagnosis, remedy)


def beside(function: Callable[..., T]) -> Callable[..., T]:
    """For a part of a check that must run where its first argument, the answer, lives.

    When a class is graded the answer is in another process, which runs this part and sends data
    back; so it should return what was seen, and leave the verdict to the rest of the check.
    """

    @functools.wraps(function)
    def run(answer: Any, *values: Any, **named: Any) -> T:
        away = getattr(type(answer), "beside", None)
        if away is None:
            return function(answer, *values, **named)
        found: T = away(answer, f"{function.__module__}:{function.__name__}", values, named)
        return found

    return run


@beside
def call(answer: Callable[..., Any], *arguments: Any, may_be_none: bool = False) -> Any:
    """What a function returns.

    Raises Wrong where it changes one of its arguments or, unless `may_be_none`, returns None. It
    runs where the answer lives, because arguments travel to another process as copies.
    """
    before = copied(arguments)
    result = answer(*arguments)
    for number, (value, copy) in enumerate(zip(arguments, before, strict=True)):
        if not unchanged(value, copy):
            wrong(
                f"{parameter(answer, number)} is changed by your function, and whoever has called"
                " it still needs it as it was.",
                "Make a new one: sorted(x) and x - y do; x.sort(), x -= y and x[0] = y change x.",
            )
    if result is None and not may_be_none:
        returns_nothing()
    return result


def returns_nothing() -> NoReturn:
    wrong(
        "your function returns nothing: is a `return` missing?",
        "End it with `return` and the result.",
    )


def copied(value: Any) -> Any:
    """A copy of arrays, tensors and containers; what else there is, itself."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.clone() if is_tensor(value) else value


def unchanged(value: Any, copy: Any) -> bool:
    """Whether a value still is what its copy says; NaN is equal to NaN here."""
    if isinstance(value, Mapping):
        return value.keys() == copy.keys() and all(unchanged(value[key], copy[key]) for key in copy)
    if isinstance(value, list | tuple):
        same = isinstance(copy, list) and len(value) == len(copy)
        return same and all(map(unchanged, value, copy))
    if isinstance(value, np.ndarray):
        same = isinstance(copy, np.ndarray) and value.dtype == copy.dtype
        return same and value.shape == copy.shape and value.tobytes() == copy.tobytes()
    if is_tensor(value):
        return is_tensor(copy) and value.dtype == copy.dtype and bool(value.equal(copy))
    return value is copy or (type(value) is type(copy) and bool(value == copy))


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def parameter(answer: Callable[..., Any], number: int) -> str:
    """What a function calls its argument: "`order`", else "argument 1"."""
    try:
        names = list(inspect.signature(answer).parameters)
    except (TypeError, ValueError):
        names = []
    return f"`{names[number]}`" if number < len(names) else f"argument {number + 1}"


def number(value: Any, what: str = "the answer") -> float:
    """A finite number as a float. Raises Wrong for anything else, NaN too."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError
        found = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        found = math.inf
    except (TypeError, ValueError):
        kind = "None" if value is None else f"of type {type(value).__name__}, not a number"
        wrong(f"{what} is {kind}.", "A number is asked for.")
    if not math.isfinite(found):
        wrong(f"{what} is {found}, which is no number to compute with.", NOT_FINITE)
    return found


NOT_FINITE = "Look for a division by zero, an overflow, or a value that was never filled in."


def whole(value: Any, what: str = "the answer") -> int:
    """A whole number; 4.0 is one. Raises Wrong for anything else."""
    found = number(value, what)
    if not found.is_integer():
        wrong(f"{what} is {found:g}, and should be a whole number.", "Compute with // and not /.")
    return int(value) if isinstance(value, int) else int(found)


def numbers(value: Any, what: str = "the answer") -> np.ndarray:
    """Finite numbers as an array of float64. Raises Wrong for anything else, NaN too."""
    try:
        array = np.asarray(value)
    except ValueError:
        wrong(f"{what}: its rows differ in length.", "An array has the same number in each row.")
    if array.dtype.kind not in "biuf":
        wrong(f"{what}: not all of it are numbers (NumPy calls it {array.dtype}).",
              "An array of numbers is asked for.")  # fmt: skip
    array = array.astype(np.float64)
    if bad := array[~np.isfinite(array)].tolist():
        wrong(f"{what}: {len(bad)} of {array.size} numbers are {bad[0]}.", NOT_FINITE)
    return array


def dictionary(value: Any, example: str) -> dict[Any, Any]:
    """A dictionary. Raises Wrong for anything else."""
    if not isinstance(value, Mapping):
        kind = "None" if value is None else f"of type {type(value).__name__}, not a dictionary"
        wrong(f"the answer is {kind}.", f"Write one: {example}.")
    return dict(value)


def predictions(value: Any, keys: Sequence[int], of: str) -> list[float]:
    """The finite numbers that a dictionary such as {2: 1.0} has for the `keys`, which count what
    `of` says; a key may be "2" too."""
    example = "{" + ", ".join(f"{key}: …" for key in keys) + "}"
    found = {str(key): item for key, item in dictionary(value, example).items()}
    if missing := [key for key in keys if str(key) not in found]:
        wrong(f"there is no prediction for {missing[0]} {of}.", f"Write one for each: {example}.")
    return [number(found[str(key)], f"the prediction for {key}") for key in keys]


def max_difference(a: Any, b: Any) -> float:
    """The largest difference between two arrays of one shape; infinite where one of them holds
    what is no number."""
    differences = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
    if not np.isfinite(differences).all():
        return math.inf
    return float(differences.max(initial=0.0))

"""The building blocks of checks: call an answer, read its values, compare, diagnose.

A mistake is a row `(wrong, diagnosis, remedy)`, in which `wrong` is a value or an implementation.
The check recognises it by its results, and the tests run it as a learner's answer.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import is_dataclass
from typing import Any, NoReturn

import numpy as np
import psutil

Mistake = tuple[Any, str, str]  # see above

NO_RETURN = "your function returns nothing: is a `return` missing?"
RETURN = "End it with `return` and the result."
NOT_FINITE = "Look for a division by zero, an overflow, or a value that was never filled in."
ENDLESS = "Look for a loop that does not end, or try again when the machine is less busy."
LIMIT_S = 30.0  # of a check in this process
LIMIT_BYTES = 2 * 2**30  # and of its growth: an endless loop may append to a list
LOOK_S = 1.0  # how often both are looked at
SHOWN = 56  # bytes of a result: all of a short record, so that a difference is seen


class Wrong(Exception):
    """A wrong answer: the diagnosis, the remedy, and the share of its parts that are right."""

    def __init__(self, diagnosis: str, remedy: str, share: float = 0.0) -> None:
        super().__init__(diagnosis)
        self.diagnosis, self.remedy, self.share = diagnosis, remedy, share


class Failed(Exception):
    """The error of an answer in a different process: its text, and its place in the code."""

    def __init__(self, text: str, place: str) -> None:
        super().__init__(text)
        self.text, self.place = text, place


def wrong(diagnosis: str, remedy: str, share: float = 0.0) -> NoReturn:
    """Raise Wrong with a diagnosis and a remedy; `share`, from 0 to 1, is how much is right."""
    raise Wrong(diagnosis, remedy, share)


def refuse(*rows: tuple[Any, str, str]) -> None:
    """Raise Wrong for the first row `(condition, diagnosis, remedy)` whose condition is true."""
    for condition, diagnosis, remedy in rows:
        if condition:
            wrong(diagnosis, remedy)


class TooLong(BaseException):
    """An answer that exceeds a limit of time or memory; `except Exception` does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float | None = None) -> Iterator[None]:
    """Raise TooLong in the main thread after `seconds` or LIMIT_S, and again if it is swallowed.

    Also raise it if the process has grown by LIMIT_BYTES. Do nothing in other threads, or if the
    alarm is already in use.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        yield
        return
    limit, process = LIMIT_S if seconds is None else seconds, psutil.Process()
    begin, before = time.monotonic(), process.memory_info().rss

    def look(number: int, frame: Any) -> None:
        if time.monotonic() - begin > limit:
            raise TooLong(f"it was still running after {limit:g} s")
        if process.memory_info().rss - before > LIMIT_BYTES:
            raise TooLong(f"it took more than {LIMIT_BYTES / 2**30:g} GiB of memory")

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, min(limit, LOOK_S), LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


# --- comparing ------------------------------------------------------------------------------------


def known(got: Any, mistakes: Iterable[Mistake], same: Callable[..., Any]) -> None:
    """Raise Wrong for the first of the mistakes whose value is the `same` as `got`."""
    refuse(*((same(got, value), diagnosis, remedy) for value, diagnosis, remedy in mistakes))


def examine(
    answer: Callable[..., Any],
    cases: Sequence[tuple[Any, ...]],
    right: Callable[..., Any],
    mistakes: Sequence[Mistake] = (),
    one_case: bool = False,
    why: Callable[..., str] = lambda *case: "",
    rel_tol: float = 1e-5,
) -> None:
    """Raise Wrong unless a function returns for all cases the same as the function `right`.

    The diagnosis is the first wrong case, its call and its result; the remedy is the right result
    and `why(*case)`. A mistake is recognised if it agrees with the answer in every case, or, with
    `one_case`, in the first case that is wrong. If the result is True or False, only all cases
    decide: in a single one, any mistake agrees. A call that fails counts only if those before it
    are right.
    """
    expected = [right(*case) for case in cases]
    results: list[Any] = []
    failed: Exception | None = None
    for case in cases:
        try:
            results.append(call(answer, *deepcopy(case), may_be_none=True))
        except Exception as error:
            call_of, form = as_called(answer, case), shown(expected[len(results)])
            note = f"The call was {call_of}, which should give {form}."
            error.__notes__ = [note]  # type: ignore[attr-defined]
            failed = error  # Python 3.10 has no add_note
            break
    forms = list(zip(cases, results, expected, strict=False))
    unlike = [result is None is not form for _, result, form in forms]
    if any(unlike) and all(result is None for result in results):
        wrong(NO_RETURN, RETURN)
    got: list[Any] = []
    for case, result, form in forms:
        try:
            got.append(None if result is None else like(result, form))
        except Wrong as problem:
            failed = Wrong(f"{as_called(answer, case)}: {problem.diagnosis}", problem.remedy)
            break
    at = next((i for i, x in enumerate(got) if not same(x, expected[i], rel_tol)), None)
    if at is None:
        if failed is not None:
            raise failed
        return
    decisive = [range(len(got)), range(at, at + 1)]
    for places in decisive[: 1 + (one_case and not isinstance(expected[at], bool))]:
        for mistake, diagnosis, remedy in mistakes:
            if all(same(got[i], mistake(*deepcopy(cases[i])), rel_tol) for i in places):
                wrong(diagnosis, remedy)
    reason = why(*cases[at])
    gives = "returns nothing" if got[at] is None else f"gives {shown(got[at])}"
    wrong(
        f"{as_called(answer, cases[at])} {gives}.",
        f"It should be {shown(expected[at])}. {reason}".strip(),
    )


def as_called(answer: Callable[..., Any], case: tuple[Any, ...]) -> str:
    return f"{getattr(answer, '__name__', 'your function')}{shown(case)}"


def predicted(
    answer: Any,
    right: Mapping[Any, Any],
    mistakes: Sequence[Mistake],
    remedy: str,
    rel_tol: float = 0.02,
) -> None:
    """Raise Wrong unless a dictionary has the `right` numbers, or tuples of numbers.

    A mistake is a dictionary with one or more of the values. A key may be a string too; `remedy`
    is for a number that no mistake explains.
    """
    got = like(answer, right, "the answer")
    off = [key for key in right if not same(got[key], right[key], rel_tol)]
    for mistake, diagnosis, then in mistakes if off else ():
        if all(same(got[key], value, rel_tol / 20) for key, value in mistake.items()):
            wrong(diagnosis, then)
    times = np.concatenate([np.ravel(got[key]) / np.ravel(right[key]) for key in right])
    for power in (-9, -6, -3, 3, 6, 9):
        if np.allclose(times, 10.0**power, rtol=rel_tol, atol=0):
            wrong(f"every number is 10^{power} times what it should be.", "Look at the unit.")
    for key in off:
        for value, asked in zip(np.ravel(got[key]), np.ravel(right[key]), strict=True):
            if not same(value, asked, rel_tol):
                which = "too high" if value > asked else "too low"
                wrong(f"{key}: {value:g} is {which}.", remedy)


def same(value: Any, other: Any, rel_tol: float = 1e-5) -> bool:
    """Return True for equal values; numbers that are not whole may differ by rounding."""
    if isinstance(value, Mapping):
        return all(same(item, other[key], rel_tol) for key, item in value.items())
    if isinstance(value, list | tuple):
        pairs = zip(value, other, strict=False)
        return len(value) == len(other) and all(same(a, b, rel_tol) for a, b in pairs)
    if isinstance(value, float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=rel_tol, abs_tol=1e-9)
    return bool(value == other)


def shown(value: Any) -> str:
    """Return a value as short text for a diagnosis."""
    if isinstance(value, bytes):
        more = " …" if len(value) > SHOWN else ""
        return f"{len(value)} bytes ({value[:SHOWN].hex(' ')}{more})" if value else "no bytes"
    if isinstance(value, float):
        return f"{value:.10g}"
    if getattr(value, "ndim", 0) > 1:  # an array or a tensor
        return f"{type(value).__name__} {shown(value.tolist())}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {shown(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        items = [*map(shown, value[:7]), *["…"][: len(value) > 7]]
        return f"[{', '.join(items)}]" if isinstance(value, list) else f"({', '.join(items)})"
    if is_dataclass(value) and hasattr(value, "name"):
        return f"{type(value).__name__} {value.name!r}"
    return textwrap.shorten(repr(value), 90, placeholder=" …")


class Clock:
    """A simulated time, and how often it was read."""

    now = 0.0
    readings = 0

    def clock(self) -> float:
        self.readings += 1
        return self.now

    def measure(self, answer: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns that is passed `clock`; raise Wrong if it is not read."""
        found = call(answer, *arguments)
        if not self.readings:
            wrong("the time is not taken from `clock`.", "Use it as the task says.")
        return found


# --- calling --------------------------------------------------------------------------------------


def call(answer: Callable[..., Any], *arguments: Any, may_be_none: bool = False) -> Any:
    """Return what a function returns.

    Raises Wrong if it changes one of its arguments or, unless `may_be_none`, returns None.
    """
    before = snapshot(arguments)
    result = answer(*arguments)
    names = inspect.signature(answer).parameters
    new = snapshot(arguments)
    for name, now, then, value in zip(names, new, before, arguments, strict=False):
        if now != then:
            wrong(
                f"`{name}` is changed by your function, but its caller still needs the old values.",
                f"Work on {name}.clone(): -=, {name}[0] = … and dist.all_reduce change a tensor."
                if hasattr(value, "clone")
                else "Create a new one: sorted(x) and x - y do; x.sort(), x.pop(), x -= y and"
                " x[0] = y change x.",
            )
    return result if may_be_none else returned(result)


def returned(result: Any) -> Any:
    """Return what a function has returned. Raises Wrong for None."""
    if result is None:
        wrong(NO_RETURN, RETURN)
    return result


def snapshot(value: Any) -> Any:
    """Return arrays and tensors, also inside containers, as values that do not change with them."""
    if isinstance(value, Mapping):
        return {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [snapshot(item) for item in value]
    torch = sys.modules.get("torch")  # which is not imported for this
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return value


# --- reading values -------------------------------------------------------------------------------


def like(value: Any, form: Any, what: str = "the result") -> Any:
    """Return a value in the `form` of a right one: bytes, text, a number, or a container.

    A tuple has a fixed length, a list any. A dictionary may have strings as keys instead, and more
    of them. In place of a whole number there may be None. Raises Wrong for anything else.
    """
    if isinstance(form, bytes):
        if not isinstance(value, bytes | bytearray):
            wrong(f"{what} is {kind_of(value, 'bytes')}.", "Return bytes.")
        return bytes(value)
    if isinstance(form, str):
        return str(value)
    if isinstance(form, bool):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # an array of several values
            if value in (0, 1):
                return bool(value)
        wrong(f"{what} is {kind_of(value, 'a bool')}.", f"{asks_for(what)} True or False.")
    if isinstance(form, Mapping):
        example = "{" + ", ".join(f"{key!r}: …" for key in form) + "}"
        if not isinstance(value, Mapping):
            wrong(f"{what} is {kind_of(value, 'a dictionary')}.", f"{asks_for(what)} {example}.")
        given = {str(key): item for key, item in value.items()}
        if missing := [key for key in form if str(key) not in given]:
            wrong(f"the value for {missing[0]} is missing.", f"{asks_for(what)} {example}.")
        return {key: like(given[str(key)], item, f"{what}'s {key}") for key, item in form.items()}
    if form is None:  # any other result is shown as it is
        return value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(form, list | tuple):
        if isinstance(form, float):
            return number(value, what)
        return None if value is None else whole(value, what)
    several = "a pair" if len(form) == 2 else f"{len(form)} values"
    kind = "a list" if isinstance(form, list) else several
    try:
        items = list(value)
    except TypeError:
        wrong(f"{what} is {kind_of(value, kind)}.", f"{asks_for(what)} {kind}.")
    if isinstance(form, tuple) and len(items) != len(form):
        wrong(f"{what} is {shown(value)}.", f"{asks_for(what)} {kind}.")
    if not form:
        return [item.tolist() if isinstance(item, np.ndarray) else item for item in items]
    forms = form if isinstance(form, tuple) else [form[0]] * len(items)
    part = what if what.startswith("a value in") else f"a value in {what}"
    return type(form)(like(x, f, part) for x, f in zip(items, forms, strict=True))


def number(value: Any, what: str = "the answer") -> float:
    """Return a finite number as a float. Raises Wrong for anything else, NaN too."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError
        if hasattr(value, "detach"):  # a tensor with a gradient would warn
            value = value.detach()
        found = float(value)
    except (TypeError, ValueError):
        wrong(f"{what} is {kind_of(value, 'a number')}.", f"{asks_for(what)} a number.")
    if not math.isfinite(found):
        wrong(f"{what} is {found}.", NOT_FINITE)
    return found


def whole(value: Any, what: str = "the answer") -> int:
    """Return a whole number; 4.0 is one. Raises Wrong for anything else."""
    found = number(value, what)
    if not found.is_integer():
        wrong(f"{what} is {found:g}, and should be a whole number.", "Use // or math.ceil.")
    return int(found)


def numbers(value: Any, what: str = "the answer") -> np.ndarray:
    """Return finite numbers as an array of float64. Raises Wrong for anything else, NaN too."""
    try:
        array = np.asarray(value)
    except ValueError:
        wrong(f"{what}: the rows differ in length.", "Make all rows equally long.")
    if array.dtype.kind not in "biuf":
        wrong(f"{what}: not all values are numbers (NumPy's type is {array.dtype}).",
              "Return an array of numbers.")  # fmt: skip
    array = array.astype(np.float64)
    if bad := array[~np.isfinite(array)].tolist():
        wrong(f"{what}: {len(bad)} of {array.size} numbers are {bad[0]}.", NOT_FINITE)
    return array


def asks_for(what: str) -> str:
    """Return how a learner gives `what`: a result is returned, an answer written."""
    if what.startswith("a value in"):
        return "Each entry must be"
    return "Return" if "result" in what.lower() else "Write"


def kind_of(value: Any, asked: str) -> str:
    """Return "None" or "of type str, not a number"."""
    return "None" if value is None else f"of type {type(value).__name__}, not {asked}"

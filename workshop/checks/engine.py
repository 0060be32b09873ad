"""From an answer to one of four outcomes: passed, wrong with a diagnosis, not attempted, error.

`judge("ex03.shard", shard)` runs the check and tells how it went; it prints, stores and raises
nothing.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from workshop.checks import table

PASSED, WRONG, NOT_ATTEMPTED, ERROR = OUTCOMES = ("passed", "wrong", "not attempted", "error")
T = TypeVar("T")
MARKS = {PASSED: "✓", WRONG: "✗", NOT_ATTEMPTED: "○", ERROR: "✗"}


class Wrong(Exception):
    """What a check raises: what is wrong with the answer, and what to do about it."""

    def __init__(self, diagnosis: str, remedy: str) -> None:
        super().__init__(diagnosis)
        self.diagnosis, self.remedy = diagnosis, remedy


def wrong(diagnosis: str, remedy: str) -> NoReturn:
    """Say what is wrong with the answer, and what to do about it."""
    raise Wrong(diagnosis, remedy)


@dataclass(frozen=True)
class Result:
    """How a check went: the two lines that the learner reads are `said` and `then`."""

    exercise: str
    outcome: str
    said: str
    then: str

    @property
    def passed(self) -> bool:
        return self.outcome == PASSED

    @property
    def lines(self) -> tuple[str, str]:
        how = {
            PASSED: f"passed: {self.said}",
            WRONG: f"is not right yet: {self.said}",
            NOT_ATTEMPTED: f"is not attempted yet: {self.said}",
            ERROR: f"stopped with {self.said}",
        }[self.outcome]
        return f"{MARKS[self.outcome]} {self.exercise} {how}", f"  {self.then}"

    @property
    def record(self) -> dict[str, str]:
        return asdict(self)


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


# --- what every check asks of an answer -----------------------------------------------------------


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


def by_number(value: Any, example: str, of: str) -> dict[int, float]:
    """A dictionary of finite numbers by whole ones, such as {2: 1.0}; a key may be "2"."""
    found = {}
    for key, item in dictionary(value, example).items():
        key = int(key) if isinstance(key, str) and key.strip().isdecimal() else key
        found[whole(key, of)] = number(item, f"the prediction for {key}")
    return found


def max_difference(a: Any, b: Any) -> float:
    """The largest difference between two arrays of one shape; infinite where one of them holds
    what is no number."""
    differences = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
    if not np.isfinite(differences).all():
        return math.inf
    return float(differences.max(initial=0.0))


# --- how it goes ----------------------------------------------------------------------------------


def judge(name: str, answer: Any) -> Result:
    """Check an answer. Raises UserError only for an exercise that does not exist."""
    exercise = table.find(name)
    if exercise.lacks:
        said = f"it needs {exercise.lacks}, which is not installed here."
        return Result(name, NOT_ATTEMPTED, said, "Go on with the next one; nothing waits for this.")
    help_ = f'workshop.hint("{name}") helps.'
    left = unanswered(answer)
    if left:
        then = f"Fill it in, run that cell and then this one again; {help_}"
        untouched = Result(name, NOT_ATTEMPTED, left, then)
        if not inspect.isfunction(answer) or only_dots(answer):
            return untouched
    result = tried(exercise, answer, help_)
    # a line `name = ...` of the stub that a right answer did not need is no reason to refuse it
    return untouched if left and not result.passed else result


def tried(exercise: table.Exercise, answer: Any, help_: str) -> Result:
    """The result of running the check."""
    name = exercise.name
    if answer is None:
        said = f"`{exercise.answer}` is None."
        return Result(name, WRONG, said, f"Write the answer into its cell; {help_}")
    if exercise.function and not callable(answer):
        said = f"`{exercise.answer}` is of type {type(answer).__name__}, and should be a function."
        return Result(name, WRONG, said, f"Pass the function itself, without calling it; {help_}")
    try:
        said = exercise.check(answer)
    except Wrong as problem:
        return Result(name, WRONG, problem.diagnosis, f"{problem.remedy} {capital(help_)}")
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        if place := own_frame(error, answer):
            return Result(name, ERROR, what, f"{place} {capital(help_)}")
        said = f"the check can do nothing with this answer ({what})."
        return Result(name, WRONG, said, f"Compare its form with the one asked for; {help_}")
    return Result(name, PASSED, said, onward(exercise))


def capital(text: str) -> str:
    return text[:1].upper() + text[1:] if not text.startswith("workshop.") else text


def first_line(error: BaseException) -> str:
    return (str(error).strip() or "without a message").splitlines()[0]


def onward(exercise: table.Exercise) -> str:
    """What a passed exercise says last."""
    all_here = table.of_notebook(exercise.notebook)
    place = all_here.index(exercise)
    if place + 1 < len(all_here):
        return f"Next: {all_here[place + 1].name}."
    return "That was the last one of this notebook."


def unanswered(answer: Any) -> str:
    """Where an answer still holds `...`, as the end of a sentence; empty where it does not."""
    if inspect.isfunction(answer):
        found = dotted_line(answer)
        if not found and parsed(answer) and only_dots(answer):
            return f"`{answer.__name__}` is still empty."
        return f"`{answer.__name__}` still holds `...` in line {found}." if found else ""
    if answer is ... or any(item is ... for item in flat(answer)):
        return "the answer still holds `...`."
    return ""


def flat(value: Any) -> Iterator[Any]:
    """The values inside containers."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set):
        yield value
        return
    for item in value:
        yield from flat(item)


def parsed(function: Any) -> ast.FunctionDef | None:
    """The definition of a function, None where its source is not to be had."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return node if isinstance(node, ast.FunctionDef) else None


def is_dots(node: ast.AST) -> bool:
    """Whether a statement is `...`, `name = ...` or `return ...`; an index as in `pixels[..., 0]`
    is code."""
    value = getattr(node, "value", None)
    kinds = ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return
    return isinstance(node, kinds) and isinstance(value, ast.Constant) and value.value is ...


def dotted_line(function: Any) -> int:
    """The line, from 1 at the `def`, where `...` waits for code; 0: nowhere."""
    tree = parsed(function)
    if tree is None:
        return 1 if Ellipsis in function.__code__.co_consts else 0
    found = (node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt) and is_dots(node))
    return next(found, 0)


def only_dots(function: Any) -> bool:
    """Whether nothing has been written into a stub yet."""
    tree = parsed(function)
    return tree is None or all(is_left(node) for node in tree.body)


def is_left(node: ast.stmt) -> bool:
    """Whether a statement stands in a stub: a docstring, an import, dots, a function of these."""
    if isinstance(node, ast.FunctionDef):
        return all(is_left(inner) for inner in node.body)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return is_dots(node) or isinstance(node, ast.Import | ast.ImportFrom | ast.Pass)


def own_frame(error: BaseException, answer: Any) -> str:
    """Where in the learner's own code an error arose, innermost; empty where it was elsewhere."""
    if known := getattr(error, "learners_place", ""):  # from an answer in another process
        return str(known)
    code = getattr(inspect.unwrap(answer), "__code__", None) if callable(answer) else None
    if code is None:
        return ""
    place, trace = "", error.__traceback__
    while trace is not None:
        frame = trace.tb_frame.f_code
        if frame.co_filename == code.co_filename:
            line = linecache.getline(frame.co_filename, trace.tb_lineno).strip()
            number = trace.tb_lineno - frame.co_firstlineno + 1
            place = f"In {frame.co_name}, line {number}: `{line}`."
        trace = trace.tb_next
    return place

"""From an answer to one of four outcomes: passed, wrong with a diagnosis, not attempted, error.

`judge("ex03.shard", shard)` runs the check and tells how it went; it prints, stores and raises
nothing.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import linecache
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from workshop.checks import compare, table
from workshop.checks.compare import Wrong

PASSED, WRONG, NOT_ATTEMPTED, ERROR = OUTCOMES = ("passed", "wrong", "not attempted", "error")
MARKS = {PASSED: "✓", WRONG: "✗", NOT_ATTEMPTED: "○", ERROR: "✗"}


@dataclass(frozen=True)
class Result:
    """How a check went: the two lines that the learner reads are `said` and `then`. `share` is how
    much of the points it earns, from 0 to 1."""

    exercise: str
    outcome: str
    said: str
    then: str = ""
    share: float = 0.0

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
    # a check that starts processes has its own limits, and so has a class that is graded
    limited = not exercise.launches and not hasattr(type(answer), "beside")
    if limited and exercise.needs:  # its import does not count as the answer's time
        importlib.import_module(exercise.needs)
    try:
        with compare.time_limit() if limited else contextlib.nullcontext():
            said = exercise.check(answer)
    except compare.TooLong as error:
        then = f"{own_frame(error, answer)} {compare.ENDLESS} {capital(help_)}".strip()
        return Result(name, ERROR, f"a time limit: {error}.", then)
    except Wrong as problem:
        then = f"{problem.remedy} {capital(help_)}"
        return Result(name, WRONG, problem.diagnosis, then, problem.share)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        if place := own_frame(error, answer):
            return Result(name, ERROR, what, f"{place} {capital(help_)}")
        said = f"the check can do nothing with this answer ({what})."
        return Result(name, WRONG, said, f"Compare its form with the one asked for; {help_}")
    return Result(name, PASSED, said, onward(exercise), share=1.0)


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


def not_ready(name: str, answer: Any) -> str:
    """Why an answer cannot be run yet, as the end of a sentence; empty where it can."""
    lacks = table.find(name).lacks
    return f"it needs {lacks}." if lacks else unanswered(answer)


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

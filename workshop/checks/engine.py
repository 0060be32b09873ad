"""Judge an answer: passed, wrong with a diagnosis, not attempted, or error.

`judge("ex03.shard", shard)` runs the check and returns a Result; it prints, stores and raises
nothing.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import linecache
import re
import textwrap
import traceback
from dataclasses import dataclass
from typing import Any

from workshop import catalogue, output
from workshop.checks import compare

PASSED, WRONG, NOT_ATTEMPTED, ERROR = OUTCOMES = ("passed", "wrong", "not attempted", "error")
MARKS = {PASSED: "✓", WRONG: "✗", NOT_ATTEMPTED: "○", ERROR: "✗"}
HOW = ("passed:", "is not right yet:", "is not attempted yet:", "stopped with")


@dataclass(frozen=True)
class Result:
    """The outcome of a check, in two lines: `said` is in the first, and `then` is the second.

    `share` is the part of the points that the answer earns, from 0 to 1.
    """

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
        """Return the two lines that the learner reads."""
        how = HOW[OUTCOMES.index(self.outcome)]
        return f"{MARKS[self.outcome]} {self.exercise} {how} {self.said}", f"  {self.then}"


def judge(name: str, answer: Any) -> Result:
    """Check an answer. Raises UserError only for an exercise that does not exist."""
    exercise = catalogue.find(name)
    if exercise.lacks:
        said = f"it needs {exercise.lacks}, which is not installed here."
        return Result(name, NOT_ATTEMPTED, said, "Skip it; no other exercise needs it.")
    hint = f'workshop.hint("{name}") helps.'
    if left := unanswered(answer):
        then = f"Fill it in, run that cell and then this one again; {hint}"
        return Result(name, NOT_ATTEMPTED, left, then)
    limited = not exercise.launches  # a check that starts processes has its own limits
    if limited:  # their import does not count as the answer's time
        with output.quiet_stderr():
            for package in exercise.needs.split():
                importlib.import_module(package)
    try:
        form = compare.kind_of(answer, "a function")
        compare.refuse(
            (answer is None, f"`{exercise.answer}` is None.", "Write the answer into its cell."),
            (exercise.function and not callable(answer), f"`{exercise.answer}` is {form}.",
             "Pass the function itself, without calling it."),
        )  # fmt: skip
        with compare.time_limit() if limited else contextlib.nullcontext():
            said = exercise.check(answer)
    except compare.TooLong as error:
        remedy = "Look for a loop that does not end." if "GiB" in str(error) else compare.ENDLESS
        then = f"{own_frame(error, answer)} {remedy} {hint}".strip()
        return Result(name, ERROR, f"a limit: {error}.", then)
    except compare.Wrong as problem:
        then = f"{problem.remedy} {hint}"
        return Result(name, WRONG, problem.diagnosis, then, problem.share)
    except compare.Failed as error:
        then = " ".join([error.place, *getattr(error, "__notes__", ()), hint]).strip()
        return Result(name, ERROR, error.text, then)
    except (Exception, SystemExit) as error:
        what, place = message(error), own_frame(error, answer)
        if not place:
            what = f"the check cannot use this answer ({what})."
        first = place or "Compare its type and shape with the task."
        then = " ".join([first, *getattr(error, "__notes__", ()), hint])
        return Result(name, ERROR if place else WRONG, what, then)
    names = [item.name for item in catalogue.of_notebook(exercise.notebook)]
    following = names[names.index(name) + 1 :]
    then = f"Next: {following[0]}." if following else "That was the last exercise in this notebook."
    return Result(name, PASSED, said, then, share=1.0)


def unanswered(answer: Any) -> str:
    """Return where an answer still holds `...`, as the end of a sentence; empty if nowhere."""
    if inspect.isfunction(answer):
        line = dotted_line(answer)
        return f"`{answer.__name__}` still holds `...` in line {line} of its cell." if line else ""
    return "the answer still holds `...`." if repr(...) in repr(answer) else ""


def dotted_line(function: Any) -> int:
    """Return the first line of its cell in which `...` waits for code; 0 if there is none.

    The dots wait in `...`, `name = ...` and `return ...`, but not in `x[..., 0]`, in a handler of
    errors or in a class.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return 0
    kinds = ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return
    others = {inner for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler | ast.ClassDef)
              for inner in ast.walk(node)}  # fmt: skip
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds) and node not in others]
    dots = [n.lineno for n in nodes if isinstance(n.value, ast.Constant) and n.value.value is ...]
    return min(dots) + inspect.unwrap(function).__code__.co_firstlineno - 1 if dots else 0


def message(error: BaseException) -> str:
    """Return an error's type and the first line of its text."""
    text = re.sub(r"^\{\{.*?\}\} ", "", str(error).strip())  # TensorFlow's name for the place
    if text.startswith("in user code:"):  # TensorFlow's, with a traceback before the message
        text = text.rpartition("\n\n")[2].strip().removeprefix(f"{type(error).__name__}: ")
    return f"{type(error).__name__}: {(text or 'without a message').splitlines()[0]}"


def own_frame(error: BaseException, answer: Any) -> str:
    """Return the innermost line of the learner's code in a traceback, or an empty string."""
    code: Any = getattr(inspect.unwrap(answer), "__code__", None) if callable(answer) else None
    place = ""
    for frame, number in traceback.walk_tb(error.__traceback__) if code else ():
        if frame.f_code.co_filename == code.co_filename:
            line = linecache.getline(code.co_filename, number).strip()
            place = f"In {frame.f_code.co_name}, line {number}: `{line}`."
    return place

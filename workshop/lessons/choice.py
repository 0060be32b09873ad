"""The functions that a learner writes in a lesson: judged at once, or replaced by finished ones."""

from __future__ import annotations

import ast
import dis
import html
import inspect
import tempfile
import textwrap
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from workshop import output
from workshop.checks.alone import cell_of
from workshop.checks.compare import Failed, Wrong, examine, returned
from workshop.checks.engine import message, own_frame

Function = Callable[..., Any]
_refused: dict[str, str] = {}  # what was printed about a function that is not used, by its name
# what a notebook has imported by then
IMPORTED = {"time.": "import time", "np.": "import numpy as np", "torch.": "import torch"}


def choose(
    name: str, own: Function, finished: Function, judge: Callable[[], str | None], hint: str = ""
) -> Function:
    """Print what `judge` finds; return the learner's function if it is right, else the finished.

    `judge` raises Wrong; it may return what to print about a right function. If nothing is written
    yet, the hint and the finished version are shown, folded. A cell that runs again, and so gives
    the finished version, prints what it printed before.
    """
    if is_stub(own):
        _refused[name] = f"○ `{name}` is not written yet. Until it is, a finished version is used."
    elif code_of(own) is not code_of(finished) or name not in _refused:
        try:
            print("✓", judge() or f"`{name}` is right: the notebook uses yours.")
        except Exception as error:
            _refused[name] = describe(name, own, error)
        else:
            return own
    print(_refused[name])
    if _refused[name].startswith("○"):
        show_folded(pasteable(finished, name), hint)
    return finished


def describe(name: str, own: Function, error: Exception) -> str:
    """Return what to print about a function that is not right."""
    if isinstance(error, Wrong):
        said = f"✗ `{name}`: {error.diagnosis} {error.remedy}"
    elif isinstance(error, Failed):
        said = f"✗ `{name}` ended with {sentence(error.text)} {error.place}"
    else:
        said = f"✗ `{name}` ended with {sentence(message(error))} {own_frame(error, own)}"
    return f"{said.rstrip()}\nUntil it is right, a finished version is used."


def code_of(function: Function) -> Any:
    return getattr(inspect.unwrap(function), "__code__", function)


def is_stub(function: Function) -> bool:
    """Return True if the body of a function does nothing but return None."""
    code = code_of(function)
    if not isinstance(code, CodeType):
        return False
    done = (dis.get_instructions(code), dis.get_instructions(lambda: None))
    own, nothing = ([(it.opname, it.argval) for it in all if it.opname != "NOP"] for all in done)
    return own == nothing


def sentence(text: str) -> str:
    """Return a text with a full stop at its end."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def pasteable(function: Function, name: str) -> str:
    """Return a function's code under another name, and without types, which may not be imported."""
    return without_types(textwrap.dedent(inspect.getsource(function)), name)


def without_types(code: str, name: str) -> str:
    """Return a function's code under another name, without the types of arguments and results."""
    lines, (tree,) = code.splitlines(), ast.parse(code).body
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in functions[::-1]:  # from the inside, so that the lines before keep their numbers
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        called = name if node is tree else node.name
        head = f"{' ' * node.col_offset}def {called}({ast.unparse(node.args)}):"
        lines[node.lineno - 1 : node.body[0].lineno - 1] = [head]
    return "\n".join(lines[tree.lineno - 1 :])


def show_folded(code: str, hint: str = "") -> None:
    page = f"<details><summary>Show it</summary><pre>{html.escape(code)}</pre></details>"
    if hint:
        page = f"<details><summary>Hint</summary>{html.escape(hint)}{page}</details>"
    output.show(page, code)


def write_chosen(file: str, chosen: Function, finished: Function, name: str) -> None:
    """Write the version that `choose` has returned to a file, as a function called `name`."""
    if chosen is finished:
        text = inspect.getsource(chosen).replace(f"def {chosen.__name__}(", f"def {name}(", 1)
    else:
        text = cell_of(chosen)
    imports = [line for used, line in IMPORTED.items() if used in text]
    first = "from __future__ import annotations"
    head = "\n".join([first, *imports])
    Path(file).write_text(f"{head}\n\n\n{text.replace(first, '').strip()}\n")


def lesson_check(*tasks: tuple[Any, ...], **special: Function) -> Callable[..., Function]:
    """Return the `check` of a lesson: `f = check("f", f)` keeps a learner's `f` if it is right.

    A task is a finished function, its judge, and perhaps a hint. The judge takes the learner's
    function, and what `check` is given after it. Or it is a finished function, cases, mistakes as
    in `compare.examine`, and perhaps a hint: a right function returns in each case what the
    finished one does. `special` has whole checks, by name.
    """
    known = {task[0].__name__: task for task in tasks}

    def check(name: str, own: Function, *given: Any) -> Function:
        if name in special:
            return special[name](own, *given)
        finished, judge, *rest = known[name]
        if not callable(judge):
            return by_cases(own, finished, judge, *rest)
        return choose(name, own, finished, partial(judge, own, *given), *rest)

    return check


def in_folder(judge: Callable[..., str | None]) -> Callable[..., str | None]:
    """Return a judge for `lesson_check` that gives `judge` an empty folder after the function."""

    def judged(own: Function, *given: Any) -> str | None:
        with tempfile.TemporaryDirectory() as folder:
            return judge(own, Path(folder), *given)

    return judged


def by_cases(
    own: Function, finished: Function, cases: Any, mistakes: Any, hint: str = ""
) -> Function:
    name = finished.__name__

    def judge() -> str:
        returned(own(*deepcopy(cases[0])))
        examine(own, cases, finished, mistakes, one_case=True)
        return f"`{name}` is right in all {len(cases)} test cases."

    return choose(name, own, finished, judge, hint)

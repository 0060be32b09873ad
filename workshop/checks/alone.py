"""Answers outside their notebook: the cell of a function as a file, and a test of such a file.

`python -m workshop.checks.alone FILE NAME…` imports a file and looks for names that its functions
use but the file does not define. Python itself would find them only in the middle of a run.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from rn50lib.errors import UserError

DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
REMEDY = "write everything it needs into the same cell, as imports, definitions and constants"


def cell_of(function: Callable[..., Any]) -> str:
    """Return the cell that defines a function: its imports, definitions and constants.

    Other processes import the result, so nothing else may run there. The lines left out are empty,
    so that the others keep their numbers. Raises UserError if the cell cannot be found.
    """
    source = "".join(linecache.getlines(function.__code__.co_filename))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        tree = ast.Module([], [])
    defined = {node.name for node in tree.body if isinstance(node, DEFINITION)}
    if function.__name__ not in defined:
        raise UserError(
            f"the cell that defines {function.__name__} was not found, or has a line that is not"
            " Python: define it with `def` in a separate cell"
        )
    lines = source.splitlines()
    for node in tree.body:
        if not is_kept(node, defined | {"workshop"}):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            lines[first:last] = [""] * (last - first)
    return "\n".join(lines) + "\n"


def is_kept(node: ast.stmt, active: set[str]) -> bool:
    """Return True for a docstring, an import, a definition and a constant.

    A constant is an assignment that uses none of the `active` names: `MAGIC = struct.pack("<I", 7)`
    is one, `run = train(data)` is not.
    """
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return active.isdisjoint(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, DEFINITION | ast.Import | ast.ImportFrom)


def load(path: Path) -> ModuleType:
    """Import a file and return its module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def globals_of(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function and the functions inside it use."""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from globals_of(constant)


def problem_of(path: Path, names: list[str]) -> str:
    """Return why a file does not work alone or has no function of a name; empty if it is fine."""
    try:
        module = load(path)
    except (Exception, SystemExit) as error:
        return f"your cell does not work outside of the notebook: {error!r}: {REMEDY}"
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) == module.__name__ and hasattr(value, "__code__"):
            for used in globals_of(value.__code__):
                if not hasattr(module, used) and not hasattr(builtins, used):
                    return f"{name} uses `{used}`, which its cell does not define: {REMEDY}"
    for name in names:
        if not callable(getattr(module, name, None)):
            return f"{path.name} has no function {name}: {REMEDY}"
    return ""


def main(argv: list[str]) -> int:
    """Print the problem of a file; returns 1 if it has one."""
    problem = problem_of(Path(argv[0]), argv[1:])
    print(problem, end="\n" if problem else "")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

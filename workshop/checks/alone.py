"""Answers away from their notebook: the cell of a function as a file, and whether such a file works
by itself, `python -m workshop.checks.alone FILE NAME…`.

That imports the file and looks for names that its functions use and nobody defines there, which
Python itself would find only when the line is reached, in the middle of a run.
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
            f"the cell that defines {function.__name__} was not found, or holds a line that is not"
            " Python: define it with `def` in a cell of its own"
        )
    lines = source.splitlines()
    for node in tree.body:
        if not is_kept(node, defined | {"workshop"}):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            lines[first:last] = [""] * (last - first)
    return "\n".join(lines) + "\n"


def is_kept(node: ast.stmt, active: set[str]) -> bool:
    """Return True for a docstring, an import, a definition, and an assignment that needs none of
    the `active` names: `MAGIC = struct.pack("<I", 7)` is a constant, `run = train(data)` is not."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return active.isdisjoint(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, DEFINITION | ast.Import | ast.ImportFrom)


def load(path: Path) -> ModuleType:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def globals_of(code: CodeType) -> Iterator[str]:
    """The global names that a function's code asks for, those of functions inside it too."""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from globals_of(constant)


def lacking(module: ModuleType) -> list[tuple[str, str]]:
    """(function, name) for each global name that a function uses and the file does not have."""
    found = []
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) == module.__name__ and hasattr(value, "__code__"):
            found += [
                (name, used)
                for used in dict.fromkeys(globals_of(value.__code__))
                if not hasattr(module, used) and not hasattr(builtins, used)
            ]
    return found


def main(argv: list[str]) -> int:
    path, names = Path(argv[0]), argv[1:]
    remedy = "write all that it needs into the same cell, as imports, definitions and constants"
    try:
        module = load(path)
    except (Exception, SystemExit) as error:
        print(f"your cell does not work outside of the notebook: {error!r}: {remedy}")
        return 1
    for function, used in lacking(module):
        print(f"{function} uses `{used}`, which its cell does not define: {remedy}")
        return 1
    for name in names:
        if not callable(getattr(module, name, None)):
            print(f"{path.name} has no function {name}: {remedy}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

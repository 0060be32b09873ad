"""Answers outside their notebook: the cell of a function as a file, for a separate process."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import symtable
from collections.abc import Callable
from typing import Any

from rn50lib.errors import UserError

DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def cell_of(function: Callable[..., Any]) -> str:
    """Return the cell that defines a function: its imports, definitions and constants.

    Other processes import the result, so nothing else may run there. The lines left out are empty,
    so that the others keep their numbers. Raises UserError if the cell cannot be found.
    """
    source = "".join(linecache.getlines(inspect.unwrap(function).__code__.co_filename))
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


def script_of(function: Callable[..., Any]) -> str:
    """Return `cell_of` a function. Raises UserError if it uses a name that it does not define."""
    cell = cell_of(function)
    if name := undefined(cell):
        raise UserError(
            f"the cell uses `{name}`, but does not define it: write everything it needs into the"
            " same cell, as imports, definitions and constants"
        )
    return cell


def is_kept(node: ast.stmt, active: set[str]) -> bool:
    """Return True for a docstring, an import, a definition and a constant.

    A constant is an assignment that uses none of the `active` names: `MAGIC = struct.pack("<I", 7)`
    is one, `run = train(data)` is not. `try` and `if` are kept if all their statements are; a
    handler of `try` may do anything.
    """
    if isinstance(node, ast.Try | ast.If):
        if isinstance(node, ast.If) and not active.isdisjoint(names(node.test)):
            return False
        inner = [*node.body, *node.orelse, *getattr(node, "finalbody", [])]
        return all(isinstance(each, ast.Pass) or is_kept(each, active) for each in inner)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return active.isdisjoint(names(node))
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, DEFINITION | ast.Import | ast.ImportFrom)


def names(node: ast.AST) -> set[str]:
    """Return the names that a piece of code uses."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def undefined(source: str) -> str:
    """Return a name that a function of a cell or script uses, but nothing in it defines; else "".

    Python itself would find it only in the middle of a run.
    """
    cell = symtable.symtable(source, "cell", "exec")
    symbols = cell.get_symbols()
    defined = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()} | {"__file__"}
    tables = [] if "import *" in source else cell.get_children()
    for table in tables:
        tables += table.get_children()
        symbols = table.get_symbols()
        defined |= {s.get_name() for s in symbols if s.is_declared_global() and s.is_assigned()}
    for table in tables:
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if symbol.is_global() and name not in defined and not hasattr(builtins, name):
                return name
    return ""

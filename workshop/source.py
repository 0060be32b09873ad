"""`show(obj)`: the real source of what is being taught, with its file and line.

The text is read from the installed file, so a notebook always shows the code that runs.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from rn50lib.errors import UserError
from workshop import paths


def find(obj: Any) -> tuple[str, int, str, str]:
    """Return (file, first line, name, source) of an object or a name like "rn50lib.recipe:MEAN".

    Raises:
        UserError: The name does not exist, or has no source in Python.
    """
    if isinstance(obj, str):
        module_name, _, name = obj.partition(":")
        try:  # found, not imported: what belongs to a framework is shown without it
            spec = importlib.util.find_spec(module_name)
        except ImportError as problem:
            raise UserError(f"show({obj!r}): no module {module_name}: {problem}") from None
        if spec is None:
            raise UserError(f"show({obj!r}): no module {module_name}")
        if name and spec.origin and spec.origin.endswith(".py"):
            return _named(spec.origin, name, obj)
        return find(importlib.import_module(module_name))
    if isinstance(obj, ModuleType):
        source = inspect.getsource(obj)
        return inspect.getsourcefile(obj) or obj.__name__, 1, obj.__name__, source
    if isinstance(obj, property):
        obj = obj.fget
    try:
        target = inspect.unwrap(obj)
        lines, first = inspect.getsourcelines(target)
        file = inspect.getsourcefile(target) or "?"
    except (TypeError, OSError):
        raise UserError(
            f"show: {obj!r} has no Python source; show a constant by its name, as in"
            ' show("rn50lib.recipe:MEAN")'
        ) from None
    return file, max(first, 1), getattr(obj, "__qualname__", repr(obj)), "".join(lines)


def _named(file: str, name: str, asked: str) -> tuple[str, int, str, str]:
    """Find a definition or assignment in a file by its dotted name, including comments above it."""
    lines = Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
    body = ast.parse("".join(lines)).body
    node: ast.stmt | None = None
    for part in name.split("."):
        node = next((item for item in body if part in _names(item)), None)
        if node is None:
            raise UserError(f"show({asked!r}): {file} defines no {name}")
        body = getattr(node, "body", [])
    assert node is not None
    first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return file, first, name, "".join(lines[first - 1 : node.end_lineno])


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def short_path(file: str) -> str:
    """Return the path below the checkout, or a name for a notebook cell."""
    if "ipykernel" in file or file.startswith("<"):
        return "this notebook"
    root = paths.checkout()
    path = Path(file)
    if root is not None and path.is_relative_to(root):
        return str(path.relative_to(root))
    return str(path)


def show(obj: Any) -> None:
    """Show the source of a function, class, method or module, or of a name "module:NAME"."""
    from IPython.display import display

    file, first, name, source = find(obj)
    last = first + len(source.splitlines()) - 1
    head = f"{short_path(file)}:{first}–{last}  {name}"
    code = textwrap.dedent(source).rstrip() + "\n"
    # Markdown, coloured by the reader's theme; the fence is longer than any in a source
    shown = f"`{head}`\n\n`````python\n{code}`````"
    display({"text/markdown": shown, "text/plain": f"{head}\n\n{code}"}, raw=True)

"""`show(obj)`: the real source of what is being taught, with its file and line.

The text is read from the installed file, so a notebook always shows the code that runs.
"""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from workshop import paths


def find(obj: Any) -> tuple[str, int, str, str]:
    """Return (file, first line, name, source) of a function, a class or a name "module:NAME".

    A name is not imported. Raises UserError if it is not defined at the top of a module.
    """
    asked = obj if isinstance(obj, str) else f"{obj.__module__}:{obj.__qualname__}"
    module, _, name = asked.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        spec = None
    if spec is None or not spec.origin:
        raise UserError(f"show({asked!r}): no module {module}")
    text = Path(spec.origin).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node)
        if name and name in (getattr(target, "name", ""), getattr(target, "id", "")):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            lines = text.splitlines(keepends=True)[first - 1 : node.end_lineno]
            return spec.origin, first, name, "".join(lines)
    raise UserError(f"show({asked!r}): {spec.origin} defines no {name}")


def show(obj: Any) -> None:
    """Show the source of a function or class, or of a name "module:NAME"."""
    from IPython.display import display

    file, first, name, source = find(obj)
    last = first + len(source.splitlines()) - 1
    path, root = Path(file), paths.checkout()
    if root is not None and path.is_relative_to(root):
        path = path.relative_to(root)
    head = f"{path}:{first}–{last}  {name}"
    code = textwrap.dedent(source).rstrip() + "\n"
    # Markdown, coloured by the reader's theme; the fence is longer than any in a source
    shown = f"`{head}`\n\n`````python\n{code}`````"
    display({"text/markdown": shown, "text/plain": f"{head}\n\n{code}"}, raw=True)

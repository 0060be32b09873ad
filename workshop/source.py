"""`show(obj)`: the real source of what is being taught, with its file and line.

The text is read from the installed file, so a notebook cannot show anything else than what runs.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

from rn50lib.errors import UserError
from workshop import paths

# Token classes of Pygments in the colours of JupyterLab's editor, so that every theme fits.
COLOURS = {
    "keyword-color": ("#0b6e2e", ".k,.kc,.kd,.kn,.kr,.kt,.ow"),
    "string-color": ("#a31515", ".s,.s1,.s2,.sa,.sb,.sc,.sd,.se,.si,.sr,.ss,.dl,.sh"),
    "comment-color": ("#4d6b6b", ".c,.c1,.cm,.ch,.cs"),
    "number-color": ("#0b5c3b", ".mi,.mf,.mh,.mb,.mo,.m"),
    "def-color": ("#0550ae", ".nf,.nc,.nd,.fm"),
    "operator-color": ("#8a3ffc", ".o"),
}


def _style() -> str:
    rules = []
    for name, (fallback, selectors) in COLOURS.items():
        classes = ",".join(f".rn50-src {item}" for item in selectors.split(","))
        rules.append(f"{classes}{{color:var(--jp-mirror-editor-{name},{fallback})}}")
    return (
        "<style>.rn50-src{margin:2px 0 8px;border:1px solid var(--jp-border-color2,#d0d7de);"
        "border-radius:6px;overflow:hidden;color:var(--jp-content-font-color1,#1f2328)}"
        ".rn50-src header{padding:4px 12px;font:12px/1.6 var(--jp-code-font-family,monospace);"
        "background:var(--jp-layout-color2,#eef1f4);color:var(--jp-ui-font-color1,#1f2328)}"
        ".rn50-src pre{margin:0;padding:8px 12px;overflow-x:auto;background:none;"
        "font:13px/1.45 var(--jp-code-font-family,ui-monospace,monospace)}"
        + "".join(rules)
        + "</style>"
    )


def find(obj: Any) -> tuple[str, int, str, str]:
    """(file, first line, name, source) of an object, or of a name such as "rn50lib.recipe:MEAN".

    Raises UserError where there is no such name, or no source in Python.
    """
    if isinstance(obj, str):
        module_name, _, name = obj.partition(":")
        try:  # found, not imported: what belongs to a framework is shown without it
            spec = importlib.util.find_spec(module_name)
        except ImportError as problem:
            raise UserError(f"show({obj!r}): there is no module {module_name}: {problem}") from None
        if spec is None:
            raise UserError(f"show({obj!r}): there is no module {module_name}")
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
            f"show: {obj!r} has no Python source of its own; a constant is shown by its name, as in"
            ' show("rn50lib.recipe:MEAN")'
        ) from None
    return file, max(first, 1), getattr(obj, "__qualname__", repr(obj)), "".join(lines)


def _named(file: str, name: str, asked: str) -> tuple[str, int, str, str]:
    """A definition or an assignment of a file by its dotted name, comments above it included."""
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
    """The path below the checkout; a notebook's own cell as such."""
    if "ipykernel" in file or file.startswith("<"):
        return "this notebook"
    root = paths.checkout()
    path = Path(file)
    if root is not None and path.is_relative_to(root):
        return str(path.relative_to(root))
    return str(path)


def show(obj: Any) -> None:
    """Show the source of a function, class, method or module, or of a name "module:NAME"."""
    import textwrap

    file, first, name, source = find(obj)
    last = first + len(source.splitlines()) - 1
    head = f"{short_path(file)}:{first}–{last}  {name}"
    code = textwrap.dedent(source).rstrip() + "\n"
    html = (
        f'{_style()}<div class="rn50-src"><header>{escape(head)}</header>'
        f"<pre>{highlight(code)}</pre></div>"
    )
    from IPython.display import display

    display({"text/html": html, "text/plain": f"{head}\n\n{code}"}, raw=True)


def highlight(code: str) -> str:
    """Python code as HTML spans; plain escaped text where Pygments is not installed."""
    try:
        from pygments import highlight as colour
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return escape(code)
    return str(colour(code, PythonLexer(), HtmlFormatter(nowrap=True)))

"""Masters: their cells, and the part between `### BEGIN SOLUTION` and `### END SOLUTION`.

The markers are nbgrader's. A stub assigns `...` to the names that the solution assigns; it runs
without an error, and the checks recognise it as "not attempted".
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


Cell = dict[str, Any]


def read_master(path: Path) -> list[Cell]:
    """Return the cells of a master: cell_type, source and tags."""
    import jupytext

    book = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    return [
        {
            "cell_type": cell.cell_type,
            "source": cell.source.replace("  # fmt: skip", ""),  # for ruff, not for readers
            "tags": [str(tag) for tag in cell.metadata.get("tags", [])],
        }
        for cell in book.cells
    ]


def regions(source: str, where: str) -> list[tuple[str, list[str], bool]]:
    """Split a cell into (indent, lines, is_solution). Raises UserError for unpaired markers."""
    pieces: list[tuple[str, list[str], bool]] = [("", [], False)]
    for line in source.splitlines():
        mark = line.strip()
        inside = pieces[-1][2]
        if mark == BEGIN or mark == END:
            if (mark == BEGIN) == inside:
                raise UserError(f"{where}: {mark} without its partner in the cell {source[:40]!r}")
            indent = line[: len(line) - len(line.lstrip())]
            pieces.append((indent, [], mark == BEGIN))
        else:
            pieces[-1][1].append(line)
    if pieces[-1][2]:
        raise UserError(f"{where}: {BEGIN} without {END} in the cell {source[:40]!r}")
    return pieces


def solved(source: str, where: str = "exercise") -> str:
    """Return the cell with its solution and without the markers."""
    return "\n".join(line for _, lines, _ in regions(source, where) for line in lines)


def stub(source: str, where: str = "exercise", keep: bool = False) -> str:
    """Return the cell with each solution replaced by assignments of `...`.

    With `keep`, the solution stays between its markers, and nbgrader removes it. A function needs
    no stub then, because nbgrader leaves `...` there.
    """
    out: list[str] = []
    for indent, lines, is_solution in regions(source, where):
        if is_solution and not (keep and indent):
            try:
                left = stub_lines(textwrap.dedent("\n".join(lines)))
            except SyntaxError as problem:
                raise UserError(f"{where}: a solution is not valid Python: {problem}") from None
            out += [indent + line for line in left]
        if keep and is_solution:
            out += [indent + BEGIN, *lines, indent + END]
        elif not is_solution:
            out += lines
    return "\n".join(out)


def stub_lines(solution: str) -> list[str]:
    """Return the stub of a solution: `def` lines with docstrings, `name = ...`, `return ...`."""
    lines: list[str] = []
    for node in ast.parse(solution).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            kept = node.body[:1] if ast.get_docstring(node) is not None else []
            node.body = [*kept, ast.Expr(ast.Constant(...))]
            lines += ast.unparse(node).splitlines()
        elif isinstance(node, ast.Return):
            lines.append("return ...")
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for part in [part for target in targets for part in ast.walk(target)]:
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    lines += [f"{part.id} = ..."] if f"{part.id} = ..." not in lines else []
    return lines or ["..."]

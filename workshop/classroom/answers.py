"""A learner's code out of a notebook: for each exercise its answer cell, and what that cell needs.

Lessons are not run again. Of the other cells only those statements are taken that define what an
answer uses (an import, a helper function), from the learner's notebook, or from the master where
the learner has deleted them. Nothing here runs any of it.
"""

from __future__ import annotations

import ast
import builtins
import dis
import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

MAX_NOTEBOOK = 30 * 2**20
MAX_CELL = 2**20
DAMAGE = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
Plan = list[tuple[str, str, list[int]]]  # of each cell: its name, its text, which statements to run


class Unreadable(Exception):
    """A file that is no notebook."""


@dataclass(frozen=True)
class Cell:
    """A code cell. `name` is what its lines are called in messages."""

    name: str
    id: str
    tags: tuple[str, ...]
    source: str

    @property
    def is_check(self) -> bool:
        return "check" in self.tags

    def stands_for(self, other: Cell) -> bool:
        """Whether a learner's cell is this cell of the master, by its id or its tags."""
        return self.id == other.id or self.tags[:2] == other.tags[:2]


@dataclass(frozen=True)
class Answer:
    """What is to be run for one exercise. `problem` says why there is nothing to run."""

    cell: Cell | None
    plan: Plan
    problem: str = ""
    notes: tuple[str, ...] = ()


@dataclass
class Statement:
    """A statement at the top level of a cell, with the names that it binds, reads and changes."""

    cell: Cell
    number: int
    binds: set[str]
    reads: set[str]
    changes: set[str]
    is_import: bool


def code_cells(text: str, where: str) -> list[Cell]:
    """The code cells of an .ipynb. Raises Unreadable for anything else."""
    if len(text) > MAX_NOTEBOOK:
        raise Unreadable(f"is larger than {MAX_NOTEBOOK // 2**20} MiB")
    try:
        book = json.loads(text)
        cells = book["cells"]
        found = []
        for number, cell in enumerate(cells, 1):
            if cell["cell_type"] != "code":
                continue
            source = cell["source"]
            source = "".join(source) if isinstance(source, list) else source
            tags = cell.get("metadata", {}).get("tags", [])
            if not isinstance(source, str) or len(source) > MAX_CELL:
                raise Unreadable(f"has a cell without code, or with too much (cell {number})")
            name = f"<{where}, cell {number}>"
            found.append(Cell(name, str(cell.get("id", "")), tuple(map(str, tags)), source))
    except Unreadable:
        raise
    except (LookupError, TypeError, AttributeError, *DAMAGE):
        raise Unreadable("is no notebook: it cannot be read as one") from None
    return found


def plain(source: str) -> str:
    """A cell as Python: lines that only IPython knows (%time, !ls) are turned into calls."""
    lines = source.splitlines()
    if not any(line.lstrip().startswith(("%", "!", "?")) or line.endswith("?") for line in lines):
        return source
    if lines and lines[0].startswith("%%"):
        source = "\n".join(["", *lines[1:]]) if lines[0].startswith(("%%time", "%%cap")) else ""
    from IPython.core.inputtransformer2 import TransformerManager

    return str(TransformerManager().transform_cell(source))


def names_of(code: CodeType) -> Iterator[tuple[str, str]]:
    """("read" or "bind", name) for the global names of some code, functions inside it too."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            yield "read", str(step.argval)
        elif step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            yield "bind", str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            for what, name in names_of(constant):
                # a class or function binds its own names, not those of the cell
                if what == "read":
                    yield what, name


def statements(cell: Cell) -> list[Statement]:
    """The statements of a cell; empty where it is not Python."""
    try:
        body = ast.parse(plain(cell.source)).body
        found = []
        for number, node in enumerate(body):
            code = compile(ast.Module([node], []), cell.name, "exec")
            names = list(names_of(code))
            reads = {name for what, name in names if what == "read"}
            if "get_ipython" in reads:
                continue
            binds = {name for what, name in names if what == "bind"}
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            found.append(Statement(cell, number, binds, reads, changed_by(node), is_import))
    except DAMAGE:
        return []
    return found


def changed_by(node: ast.stmt) -> set[str]:
    """The names whose objects a statement changes: `x[0] = 1`, `x.y = 1`, `x.append(1)`."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        found = list(node.targets)
    elif isinstance(node, ast.AugAssign):
        found = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        found = [node.value.func]
    names = set()
    for target in found:
        if not isinstance(target, ast.Attribute | ast.Subscript):
            continue
        root: ast.expr = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name):
            names.add(root.id)
    return names


def find(exercise: str, name: str, cells: list[Cell], master: list[Cell]) -> Answer:
    """The answer to one exercise: the cell that defines `name`, and what that needs."""
    given = next(c for c in master if c.tags[:2] == ("answer", exercise))
    check = next(c for c in master if c.tags[:2] == ("check", exercise))
    notes = _notes(exercise, check, cells)
    checks = {c.id for c in master if c.is_check}
    own = [c for c in cells if not (c.is_check or c.id in checks)]
    cell = _answer_cell(name, given, check, cells, own)
    if cell is None:
        return Answer(None, [], "its answer cell has been deleted.", notes)
    try:
        ast.parse(plain(cell.source))
    except DAMAGE as error:
        return Answer(cell, [], _syntax(error, cell), notes)
    if "workshop.checks" in cell.source:
        notes = (*notes, f"{exercise}: the answer cell uses the course's own checks; look at it")
    return Answer(cell, _plan(name, cell, own, master), "", notes)


def _syntax(error: BaseException, cell: Cell) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        lines = cell.source.splitlines()
        shown = lines[error.lineno - 1].strip()[:120] if error.lineno <= len(lines) else ""
        return f"SyntaxError: {error.msg} in line {error.lineno} of the cell: `{shown}`."
    return f"{type(error).__name__}: the cell cannot be read as Python."


def _notes(exercise: str, check: Cell, cells: list[Cell]) -> tuple[str, ...]:
    """What the learner has done to the check; it makes no difference to the result."""
    theirs = [c for c in cells if c.stands_for(check)]
    if not theirs:
        return (f"{exercise}: the check cell was deleted, and has been put back",)
    if theirs[0].source.strip() != check.source.strip():
        return (f"{exercise}: the check cell was changed, and has been put back",)
    return ()


def _answer_cell(
    name: str, given: Cell, check: Cell, cells: list[Cell], own: list[Cell]
) -> Cell | None:
    """The last cell before its check that defines the answer, as Run All would have it."""
    tagged = [c for c in own if c.stands_for(given)]
    ends = [i for i, c in enumerate(cells) if c.stands_for(check)]
    binding = [c for c in own if any(name in s.binds for s in statements(c))]
    early = [c for c in binding if ends and c in cells[: ends[0]]]
    return next((some[-1] for some in (early, tagged, binding) if some), None)


def _plan(name: str, cell: Cell, own: list[Cell], master: list[Cell]) -> Plan:
    """The answer cell whole, and of the others the statements that it depends on."""
    wanted = statements(cell)
    place = own.index(cell)
    before = [s for c in own[:place] for s in statements(c)]
    after = [s for c in own[place + 1 :] for s in statements(c) if name not in s.binds]
    stubs = [s for c in master if not c.is_check for s in statements(c) if name not in s.binds]
    known = set(dir(builtins)).union(*(s.binds for s in wanted))
    need = set().union(*(s.reads for s in wanted)) - set(dir(builtins))
    taken: list[Statement] = []
    for group in (before, after, stubs):  # from the place that is looked at first
        chosen = _needed(group, need - known if group is not before else need)
        known |= {n for s in chosen for n in s.binds}
        need |= {n for s in chosen for n in s.reads} - set(dir(builtins))
        taken = chosen + taken if group is stubs else taken + chosen
    plan: Plan = []
    for each in taken:
        if plan and plan[-1][0] == each.cell.name:
            plan[-1][2].append(each.number)
        else:
            plan.append((each.cell.name, plain(each.cell.source), [each.number]))
    return [*plan, (cell.name, plain(cell.source), [s.number for s in wanted])]


def _needed(group: list[Statement], names: set[str]) -> list[Statement]:
    """The statements that bind or change one of the names, and what those need in turn."""
    names, chosen, grown = set(names), set[int](), True
    modules = {n for s in group if s.is_import for n in s.binds}
    while grown:
        grown = False
        for i, each in enumerate(group):
            if i not in chosen and (each.binds | (each.changes - modules)) & names:
                chosen.add(i)
                names |= each.reads - set(dir(builtins))
                grown = True
    return [each for i, each in enumerate(group) if i in chosen]

"""Rules for masters that protect readers, and what a lesson consists of.

That is its cells and words, plain framework code, and helpers of the workshop. `rn50 workshop build
--check` includes the rules.

No rule is needed against committed outputs: a notebook with outputs differs from its master.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from rn50lib.errors import UserError
from workshop import catalogue, expected, masters
from workshop.course import build
from workshop.masters import Cell

CEILINGS = {"cells": 50, "words": 2000, "figures": 5, "helpers": 12}  # of a notebook
LEAST_PLAIN = 0.65  # of a lesson's code cells; the first is a map
RULES = (  # cell type, pattern, what is wrong with it
    ("code", r"^\s*(!|%pip\b|%conda\b|%%(bash(?! -e$)|sh|script|!)|get_ipython\(\)\.system\()",
     "a shell line: papermill ignores its failure; use a cell that begins with `%%bash -e`"),
    ("code", r"(?s)\A%%bash.*(?<![-\w])(nproc|timeout|taskset|sha256sum|shuf|sed -i|readlink -f)\b",
     "a command that macOS lacks"),
    ("code", r"\bplt\.show\(|\bfigure\([^)]*alt=(\"\"|'')",
     "a figure without alt text: use workshop.figure(fig, alt=...)"),
    ("markdown", r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"]+\")", "an image without alt text"),
)  # fmt: skip
HIDING = {"raises-exception", "skip-execution"}  # tags that let a broken cell pass
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```|`[^`]*`", re.M | re.S)
FRAMEWORKS = {"PIL", "horovod", "numpy", "nvidia", "onnxruntime", "tarfile", "tensorflow", "torch"}
STARTS_SCRIPT = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:torchrun|horovodrun|mpirun|python) .*\.py", re.M)
MAGIC = re.compile(r"^[%!].*\n?", re.M)  # such as %%writefile
DRAWS = {"figure", "ladder.figure", "trace", "show_step"}


def lint(root: Path) -> list[str]:
    """Check the masters of a checkout and the recorded results; return a line for each error."""
    errors = []
    built = {build.target(master) for master in build.masters(root)}
    for master in build.masters(root):
        cells = masters.read_master(master)
        found = check_tags(cells, master)
        for number, cell in enumerate(cells, 1):
            found += [f"cell {number}: {line}" for line in check_cell(cell)]
            markdown = cell["source"] if cell["cell_type"] == "markdown" else ""
            for link in LINK.findall(CODE.sub("", markdown)):
                path = (master.parent.parent / link).resolve()
                exists = path in built or (path.suffix != ".ipynb" and path.exists())
                if not exists and "://" not in link:
                    found.append(f"cell {number}: the link to {link} leads nowhere")
        counts = content(cells)
        for what, most in CEILINGS.items():
            if counts[what] > most:
                found.append(f"{counts[what]} {what}, at most {most}")
        if counts["plain"] < LEAST_PLAIN and "01" <= master.stem[:2] <= "99":
            share = f"{counts['plain']:.0%} of the code cells are plain"
            found.append(f"{share}, at least {LEAST_PLAIN:.0%}: see workshop/course/lint.py")
        errors += [f"{master.relative_to(root)}: {line}" for line in found]
    try:
        expected.load(root / "notebooks" / "expected")
    except UserError as wrong:
        errors.append(str(wrong))
    return errors


def contents(root: Path) -> Iterator[str]:
    """Yield a line per lesson: how many cells, words, figures and helpers, how much is plain."""
    for lesson in catalogue.existing(root):
        counts = content(masters.read_master(build.find(root, lesson.number)))
        parts = [f"{counts[what]:6,} {what}" for what in CEILINGS]
        yield f"{lesson.name:26}{','.join(parts)}, {counts['plain']:4.0%} of the code cells plain"


def check_tags(cells: list[Cell], master: Path) -> list[str]:
    """Return what is wrong with the tags that the runner, the checks and grading look for."""
    count = sum("parameters" in cell["tags"] for cell in cells)
    if not build.is_exercise(master):
        return [] if count == 1 else [f"{count} cells are tagged parameters instead of one"]
    tags = [set(cell["tags"]) for cell in cells]
    return [
        f'no cell has the tags "{tag}" and "{item.name}"'
        for item in catalogue.of_notebook(master.stem[:4])
        for tag in ("answer", "check")
        if not any({tag, item.name} <= found for found in tags)
    ]


def check_cell(cell: Cell) -> list[str]:
    source = cell["source"]
    text = CODE.sub("", source) if cell["cell_type"] == "markdown" else source
    found = [what for kind, pattern, what in RULES
             if kind == cell["cell_type"] and re.search(pattern, text, re.M)]  # fmt: skip
    found += [f"the tag {tag} hides a failure" for tag in sorted(HIDING & set(cell["tags"]))]
    return found if source.strip() else ["the cell is empty"]


def content(cells: list[Cell]) -> dict[str, float]:
    """Return the counts of a lesson's cells, words, figures and helpers, and its plain share.

    Plain is a code cell that calls a framework, starts a training script, or that the learner
    writes. Predictions, which only assign values, do not count. Helpers are the functions of
    `workshop` that the cells call.
    """
    packages: dict[str, str] = {}  # by the name that an import binds
    plain: list[bool] = []
    helpers: list[str] = []
    figures = 0
    for cell in cells:
        source = cell["source"]
        if cell["cell_type"] != "code" or "parameters" in cell["tags"]:
            continue
        if source.startswith("%%bash"):
            plain.append(bool(STARTS_SCRIPT.search(source)))
            continue
        tree = ast.parse(MAGIC.sub("", source))
        packages |= bound(tree)
        figures += sum(map(draws, ast.walk(tree)))
        used = [name for name in called(tree) if name.split(".")[0] in packages]
        helpers += [short(name) for name in used
                    if packages[name.split(".")[0]] == "workshop"]  # fmt: skip
        if not all(isinstance(node, ast.Assign) for node in tree.body) or [*called(tree)]:
            frameworks = {packages[name.split(".")[0]] for name in used} & FRAMEWORKS
            plain.append(bool(frameworks) or "# your code" in source)
    text = " ".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    return {
        "cells": len(cells),
        "words": len(text.split()),
        "figures": figures,
        "helpers": len(set(helpers)),
        "plain": sum(plain) / max(1, len(plain)),
    }


def short(name: str) -> str:
    return re.sub(r"^(workshop|nb\w+)\.", "", name)


def draws(node: ast.AST) -> bool:
    """Return True for a call that shows a figure, and not for `trace(…, show=False)`."""
    if not isinstance(node, ast.Call) or short(ast.unparse(node.func)) not in DRAWS:
        return False
    return not any(word.arg == "show" for word in node.keywords)


def bound(tree: ast.AST) -> dict[str, str]:
    """Return the package of each name that a cell imports."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                first = name.name.split(".")[0]
                found[name.asname or first] = first
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {it.asname or it.name: node.module.split(".")[0] for it in node.names}
    return found


def called(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted name of each function that a cell calls, and of each class it derives."""
    for node in ast.walk(tree):
        functions = node.bases if isinstance(node, ast.ClassDef) else []
        functions += [node.func] if isinstance(node, ast.Call) else []
        for function in functions:
            name = ast.unparse(function)
            if re.fullmatch(r"[\w.]+", name):
                yield name

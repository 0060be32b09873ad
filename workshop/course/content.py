"""What a lesson consists of: its cells and words, plain framework code, helpers of the workshop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from workshop.masters import Cell

FRAMEWORKS = {"PIL", "horovod", "numpy", "nvidia", "onnxruntime", "tarfile", "tensorflow", "torch"}
STARTS_SCRIPT = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:torchrun|horovodrun|mpirun|python) .*\.py", re.M)
MAGIC = re.compile(r"^[%!].*\n?", re.M)  # such as %%writefile
DRAWS = {"figure", "ladder.figure", "trace", "show_step"}


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

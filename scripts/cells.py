"""What the notebooks' code cells hold: a framework's calls, a helper, a listing, or neither.

    .venv/bin/python scripts/cells.py [NOTEBOOK.ipynb ...]

A cell counts once, by the first that fits: `framework`, where its code (not its strings or
comments) uses something of PyTorch, TensorFlow, Horovod, DALI or ONNX Runtime; `listing`, where it
shows source with `workshop.show`; `helper`, where it calls this project; `plain`, Python and its
libraries. A script that a cell writes to a file (`%%writefile`) is read like any other code.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORKS = {
    "torch", "torchvision", "tensorflow", "tf_keras", "keras", "horovod", "nvidia", "onnx",
    "onnxruntime",
}  # fmt: skip
OURS = {"workshop", "rn50lib", "data_prep"}
SORTS = ("framework", "listing", "helper", "plain")


def main() -> int:
    """Print one row per notebook and their sum; returns 0."""
    files = [Path(name) for name in sys.argv[1:]]
    files = files or sorted((ROOT / "notebooks").glob("0[1-8]*.ipynb"))
    total: Counter[str] = Counter()
    print(f"{'':32}" + "".join(f"{sort:>11}" for sort in SORTS) + f"{'cells':>8}")
    for file in files:
        counts = Counter(sorts(file))
        total += counts
        print_row(file.stem, counts)
    print_row("all", total)
    return 0


def print_row(name: str, counts: Counter[str]) -> None:
    """One line of the table, with the framework's share at its end."""
    cells = counts.total()
    row = "".join(f"{counts[sort]:>11}" for sort in SORTS)
    print(f"{name:32}{row}{cells:>8}  {counts['framework'] / max(cells, 1):.0%} framework")


def sorts(notebook: Path) -> list[str]:
    """The sort of each code cell of one notebook, in their order."""
    imported: dict[str, str] = {}  # name in the notebook's namespace -> package it came from
    found = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        lines = "".join(cell["source"]).splitlines()
        a_file = bool(lines) and lines[0].startswith("%%")
        code = "\n".join(line for line in lines if not line.startswith("%"))
        found.append(sort_of(ast.parse(code), {} if a_file else imported))
    return found


def sort_of(tree: ast.Module, imported: dict[str, str]) -> str:
    """The sort of one cell; notes in `imported` the packages' names that it brings in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.split(".")[0]
                imported[alias.asname or package] = package
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imported[alias.asname or alias.name] = (node.module or "").split(".")[0]
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    used = {imported[name] for name in names if name in imported}
    if used & FRAMEWORKS:
        return "framework"
    if any(isinstance(node, ast.Attribute) and node.attr == "show" for node in ast.walk(tree)):
        return "listing"
    return "helper" if used & OURS or "session" in names else "plain"


if __name__ == "__main__":
    sys.exit(main())

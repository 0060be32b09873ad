"""Build notebooks from masters: `notebooks/source/NN_name.py` to `notebooks/NN_name.ipynb`.

jupytext reads the masters and nbformat writes the notebooks. The same master gives the same bytes
on every machine: cell ids come from the content, and outputs and tool versions are left out.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError, first_line
from workshop import catalogue
from workshop.masters import Cell, read_master, stub
from workshop.masters import solved as with_solution

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def masters(root: Path) -> list[Path]:
    """Return all masters of a checkout: the lessons in order, then the exercises."""
    lessons = root.glob("notebooks/source/[0-9][0-9]_*.py")
    found = [*sorted(lessons), *sorted(root.glob("exercises/source/ex[0-9][0-9]_*.py"))]
    return [path for path in found if path.stem.replace("_", "").isalnum()]  # no "-Copy1"


def is_exercise(master: Path) -> bool:
    return master.stem.startswith("ex")


def target(master: Path) -> Path:
    return master.parent.parent / f"{master.stem}.ipynb"


def find(root: Path, name: str) -> Path:
    """Return the master with a number or name: "02", "ex03", "02_single_gpu". Raises UserError."""
    known = {key: path for path in masters(root) for key in (path.stem.split("_")[0], path.stem)}
    if Path(name).stem not in known:
        names = ", ".join(path.stem for path in masters(root))
        raise UserError(f"no notebook is named {name}: there are {names}")
    return known[Path(name).stem]


def with_links(root: Path, master: Path, cells: list[Cell]) -> list[Cell]:
    """Add the links to all notebooks to the first cell, and a cell of links at the end.

    The last cell leads from a lesson to its exercises, and from both to the next lesson.
    """
    lessons = list(catalogue.existing(root))
    exercises = [path.stem for path in masters(root) if is_exercise(path)]
    name, up = master.stem, "../notebooks/" if is_exercise(master) else ""
    number = name[2:4] if up else name[:2]
    if up:
        entries = [(item[:4], item) for item in exercises]
    else:
        entries = [(f"{x.number} {x.short}", x.name) for x in lessons]
    links = [f"**{label}**" if x == name else f"[{label}]({x}.ipynb)" for label, x in entries]
    top = ("Exercises: " if up else "Course: ") + " › ".join(links)
    first = {**cells[0], "source": f"{cells[0]['source']}\n\n{top}"}
    bottom = [f"[Map of the course]({up}{x.name}.ipynb)" for x in lessons[:1] if x.name != name]
    bottom += [f"[Exercises {item[:4]}](../exercises/{item}.ipynb)"
               for item in exercises if item[2:4] == number and not up]  # fmt: skip
    after = [x for x in lessons if x.number > number]
    bottom += [f"[{x.number} {x.short} →]({up}{x.name}.ipynb)" for x in after[:1]]
    text = "---\n" + " · ".join(bottom)
    last = {"cell_type": "markdown", "source": text, "tags": ["navigation"]}
    return [first, *cells[1:], *([last] if bottom else [])]


def build(root: Path, master: Path, solved: bool = False) -> str:
    """Return the notebook of a master as text; with `solved`, exercises have their solutions.

    Raises UserError if the master is not in the course.
    """
    import nbformat

    cells = read_master(master)
    about: dict[str, Any] = {"exercise": master.stem[2:4]}
    if is_exercise(master):
        fill = with_solution if solved else stub
        for cell in cells:
            if cell["cell_type"] == "code":
                cell["source"] = fill(cell["source"], str(master))
    else:
        item = catalogue.lesson(master.stem[:2])
        about = {"number": item.number, "minutes": item.minutes, "ci_seconds": item.ci_seconds}
    book = nbformat.v4.new_notebook(
        metadata={"kernelspec": KERNELSPEC, "language_info": {"name": "python"}, "rn50": about}
    )
    seen: dict[str, int] = {}
    for cell in with_links(root, master, cells):
        # an id depends on the cell's text alone, so that inserting a cell changes no other id
        text = f"{master.stem}\n{cell['cell_type']}\n{cell['source']}"
        count = seen[text] = seen.get(text, -1) + 1
        metadata: Cell = {"tags": cell["tags"]} if cell["tags"] else {}
        if {"results", "folded"} & set(cell["tags"]):  # for the index page, or with the answer
            metadata["jupyter"] = {"source_hidden": True}
        new = getattr(nbformat.v4, f"new_{cell['cell_type']}_cell")
        key = hashlib.sha256(f"{text}\n{count}".encode()).hexdigest()[:12]
        book.cells.append(new(cell["source"], id=key, metadata=metadata))
    return str(nbformat.writes(book, version=4)) + "\n"


def read_notebook(path: Path) -> Any:
    """Return any notebook as nbformat 4. Raises UserError if it is damaged."""
    import nbformat

    try:  # as Jupyter and papermill do
        return nbformat.read(path, as_version=4)
    except Exception as problem:  # each kind of damage has its own exception
        why = getattr(problem, "strerror", None) or first_line(problem)
        raise UserError(f"{path} cannot be read as a notebook: {why}") from None


def is_built(root: Path, master: Path) -> bool:
    """Return True if the notebook of a master is exactly what the master gives."""
    path = target(master)
    return path.exists() and path.read_bytes() == build(root, master).encode()


def drift(root: Path) -> list[str]:
    """Return one line for each committed notebook that differs from what its master gives."""
    known = {target(master): master for master in masters(root)}
    numbered = {*root.glob("notebooks/[0-9]*.ipynb"), *root.glob("exercises/ex[0-9]*.ipynb")}
    lines = []
    for path in sorted({*known, *numbered}):
        name = path.relative_to(root)
        if path not in known and ".changed-" not in path.name:
            lines.append(f"{name} has no master: delete it, or add the master")
        elif path in known and not is_built(root, known[path]):
            lines.append(f"{name} differs: edit its master, then run `rn50 workshop build`")
    return lines

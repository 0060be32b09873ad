"""Build notebooks from masters: `notebooks/source/NN_name.py` to `notebooks/NN_name.ipynb`.

jupytext reads the masters and nbformat writes the notebooks. The same master gives the same bytes
on every machine: cell ids come from the content, and outputs and tool versions are left out.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from workshop.course import catalogue, solutions

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
FOLDERS = {"notebooks": r"\d\d_[a-z0-9_]+", "exercises": r"ex\d\d_[a-z0-9_]+"}  # names of masters
CHANGED = ".changed-"  # in the name of a copy of a notebook that a learner changed

Cell = dict[str, Any]


@dataclass(frozen=True)
class Built:
    """A notebook as its master gives it: its path and its text."""

    path: Path
    text: str

    @property
    def is_written(self) -> bool:
        """True if the file contains exactly this text."""
        return self.path.exists() and self.path.read_bytes() == self.text.encode()


def read_master(path: Path) -> list[Cell]:
    """Return the cells of a master as (cell_type, source, tags). Raises UserError."""
    import jupytext

    try:
        book = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} cannot be read as a py:percent master: {problem}") from None
    return [
        {
            "cell_type": cell.cell_type,
            "source": cell.source.replace("  # fmt: skip", ""),  # for ruff, not for readers
            "tags": [str(tag) for tag in cell.metadata.get("tags", [])],
        }
        for cell in book.cells
    ]


def masters(root: Path) -> list[Path]:
    """Return all masters of a checkout: the lessons in order, then the exercises."""
    return [
        file
        for folder, pattern in FOLDERS.items()
        for file in sorted((root / folder / "source").glob("*.py"))
        if re.fullmatch(pattern, file.stem)
    ]


def is_exercise(master: Path) -> bool:
    """Return True for the master of an exercise notebook."""
    return re.fullmatch(FOLDERS["exercises"], master.stem) is not None


def with_links(root: Path, master: Path, cells: list[Cell]) -> list[Cell]:
    """Add the links to all notebooks to the first cell, and a cell of links at the end.

    The last cell leads from a lesson to its exercises, and from both to the next lesson.
    """
    lessons = list(catalogue.existing(root))
    exercises = [path.stem for path in masters(root) if is_exercise(path)]
    name, up = master.stem, "../notebooks/" if is_exercise(master) else ""
    number = name[2:4] if up else name[:2]
    if up:
        top = "Exercises: " + line([(item[:4], item) for item in exercises], name)
    else:
        top = "Course: " + line([(f"{x.number} {x.short}", x.name) for x in lessons], name)
    first = {**cells[0], "source": f"{cells[0]['source']}\n\n{top}"}
    bottom = [f"[Map of the course]({up}{x.name}.ipynb)" for x in lessons[:1] if x.name != name]
    bottom += [f"[Exercises {item[:4]}](../exercises/{item}.ipynb)"
               for item in exercises if item[2:4] == number and not up]  # fmt: skip
    after = [x for x in lessons if x.number > number]
    bottom += [f"[{x.number} {x.short} →]({up}{x.name}.ipynb)" for x in after[:1]]
    text = "---\n" + " · ".join(bottom)
    last = {"cell_type": "markdown", "source": text, "tags": ["navigation"]}
    return [first, *cells[1:], *([last] if bottom else [])]


def line(notebooks: list[tuple[str, str]], here: str) -> str:
    """Return links to (label, name) in one line, the present notebook in bold."""
    return " › ".join(
        f"**{label}**" if name == here else f"[{label}]({name}.ipynb)" for label, name in notebooks
    )


def build(root: Path, master: Path, solved: bool = False) -> Built:
    """Return the notebook of a master; with `solved`, an exercise's solutions are filled in.

    Raises UserError if the master cannot be read, is empty, or is not in the course.
    """
    import nbformat

    cells = read_master(master)
    if not cells:
        raise UserError(f"{master} has no cells")
    if is_exercise(master):
        about: dict[str, Any] = {"exercise": master.stem[2:4]}
        fill = solutions.solved if solved else solutions.stub
        for cell in cells:
            if cell["cell_type"] == "code":
                cell["source"] = fill(cell["source"], str(master))
    elif any(item.name == master.stem for item in catalogue.existing(root)):
        item = catalogue.lesson(master.stem[:2])
        about = {"number": item.number, "minutes": item.minutes, "ci_seconds": item.ci_seconds}
    else:
        raise UserError(
            f"{master} is not in the course: add its line to COURSE in workshop/course/catalogue.py"
        )
    book = nbformat.v4.new_notebook(
        metadata={"kernelspec": KERNELSPEC, "language_info": {"name": "python"}, "rn50": about}
    )
    seen: dict[str, int] = {}
    for cell in with_links(root, master, cells):
        # an id depends on the cell's text alone, so that inserting a cell changes no other id
        text = f"{master.stem}\n{cell['cell_type']}\n{cell['source']}"
        count = seen[text] = seen.get(text, -1) + 1
        metadata: Cell = {"tags": cell["tags"]} if cell["tags"] else {}
        if "results" in cell["tags"]:  # a cell for the index page, which teaches nothing
            metadata["jupyter"] = {"source_hidden": True}
        new = (
            nbformat.v4.new_code_cell
            if cell["cell_type"] == "code"
            else nbformat.v4.new_markdown_cell
        )
        key = hashlib.sha256(f"{text}\n{count}".encode()).hexdigest()[:12]
        book.cells.append(new(cell["source"], id=key, metadata=metadata))
    path = master.parent.parent / f"{master.stem}.ipynb"
    return Built(path, nbformat.writes(book, version=4) + "\n")


def write(built: Built) -> bool:
    """Write a notebook by renaming a new file; return False if it was up to date.

    Raises UserError if it cannot be written.
    """
    if built.is_written:
        return False
    new = built.path.with_suffix(".ipynb.new")
    try:
        new.write_text(built.text, encoding="utf-8", newline="\n")
        os.replace(new, built.path)
    except OSError as problem:
        raise UserError(f"{built.path} cannot be written: {problem.strerror}") from None
    return True


def move_aside(path: Path) -> Path:
    """Rename a notebook to a name with the time and return it. Raises UserError."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    try:
        return path.rename(path.with_name(f"{path.stem}{CHANGED}{stamp}{path.suffix}"))
    except OSError as problem:
        raise UserError(
            f"{path.parent} is not writable ({problem.strerror}), so {path.name} stays as it is"
        ) from None


def drift(root: Path) -> list[str]:
    """Return one line for each committed notebook that differs from what its master gives."""
    lines, expected = [], set()
    for master in masters(root):
        built = build(root, master)
        expected.add(built.path)
        name = built.path.relative_to(root)
        if not built.path.exists():
            lines.append(f"{name} is missing: write it with `rn50 workshop build`")
        elif not built.is_written:
            lines.append(
                f"{name} is not what {master.relative_to(root)} gives: edit the master, then run"
                " `rn50 workshop build` (`rn50 workshop reset` keeps a copy of the changed one)"
            )
    for folder, pattern in FOLDERS.items():
        for path in sorted((root / folder).glob("*.ipynb")):
            if re.fullmatch(pattern, path.stem) and path not in expected:
                name = path.relative_to(root)
                lines.append(f"{name} has no master: delete it, or add the master")
    return lines

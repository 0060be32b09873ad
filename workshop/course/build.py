"""Masters to notebooks: `notebooks/source/NN_name.py` becomes `notebooks/NN_name.ipynb`, byte
for byte.

The same master gives the same bytes on every machine: cell ids come from the content, there are no
outputs, and nothing of the tool's own versions is written. `rn50 workshop build` writes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import make_folder
from workshop.course import catalogue, solutions

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LESSON = re.compile(r"\d\d_[a-z0-9_]+")
EXERCISE = re.compile(r"ex\d\d_[a-z0-9_]+")

Cell = dict[str, Any]


@dataclass(frozen=True)
class Built:
    """A notebook as it should stand: where, and its bytes."""

    path: Path
    text: str


def read_master(path: Path) -> list[Cell]:
    """The cells of a py:percent master as (cell_type, source, tags). Raises UserError if
    unreadable."""
    import jupytext

    try:
        book = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} cannot be read as a py:percent master: {problem}") from None
    cells: list[Cell] = []
    for cell in book.cells:
        tags = [str(tag) for tag in cell.metadata.get("tags", [])]
        source = cell.source.replace("  # fmt: skip", "")  # for who keeps the master, not a reader
        cells.append({"cell_type": cell.cell_type, "source": source, "tags": tags})
    return cells


def masters(root: Path) -> list[Path]:
    """All masters of a checkout: the lessons in order, then the exercises."""
    found = []
    for folder, pattern in (("notebooks", LESSON), ("exercises", EXERCISE)):
        files = sorted((root / folder / "source").glob("*.py"))
        found += [file for file in files if pattern.fullmatch(file.stem)]
    return found


def is_exercise(master: Path) -> bool:
    return EXERCISE.fullmatch(master.stem) is not None


def course_line(root: Path, here: catalogue.Lesson) -> str:
    """The line of links to every notebook that exists; the present one stands in bold."""
    names = []
    for item in catalogue.existing(root):
        label = f"{item.number} {item.short}"
        names.append(f"**{label}**" if item == here else f"[{label}]({item.name}.ipynb)")
    return "Course: " + " › ".join(names)


def exercises(root: Path) -> dict[str, str]:
    """The exercise notebooks that exist, by the number of their lesson: {"03": "ex03_horovod"}."""
    return {path.stem[2:4]: path.stem for path in masters(root) if is_exercise(path)}


def navigation(root: Path, here: catalogue.Lesson) -> str:
    """The links at the end of a lesson: back, the map, its exercises, forward."""
    before, after = catalogue.neighbours(here, root)
    own = exercises(root).get(here.number)
    parts = []
    if before:
        parts.append(f"[← {before.number} {before.short}]({before.name}.ipynb)")
    if here.number != "00":
        parts.append("[Map of the course](00_start_here.ipynb)")
    if own:
        parts.append(f"[Exercises {own[:4]}](../exercises/{own}.ipynb)")
    if after:
        parts.append(f"[{after.number} {after.short} →]({after.name}.ipynb)")
    return "---\n" + " · ".join(parts)


def with_links(root: Path, master: Path, cells: list[Cell]) -> list[Cell]:
    """The course line put under the first cell and the links into a cell at the end."""
    lessons = [item for item in catalogue.COURSE if item.name == master.stem]
    if not lessons:
        raise UserError(
            f"{master} is not in the course: add its line to COURSE in workshop/course/catalogue.py"
        )
    first = {**cells[0], "source": f"{cells[0]['source']}\n\n{course_line(root, lessons[0])}"}
    last = {"cell_type": "markdown", "source": navigation(root, lessons[0]), "tags": ["navigation"]}
    return [first, *cells[1:], last]


def exercise_line(root: Path, here: str) -> str:
    """The line of links to every exercise notebook that exists; the present one stands in bold."""
    names = [
        f"**{name[:4]}**" if name == here else f"[{name[:4]}]({name}.ipynb)"
        for name in exercises(root).values()
    ]
    return "Exercises: " + " › ".join(names)


def exercise_navigation(root: Path, here: str) -> str:
    """The links at the end of an exercise notebook: back to its lesson, the map, the next lesson
    (or the next exercises where there is none)."""
    there = {item.number: item for item in catalogue.existing(root)}
    lesson = there.get(here[2:4])
    parts = []
    if lesson:
        parts.append(
            f"[← Notebook {lesson.number} {lesson.short}](../notebooks/{lesson.name}.ipynb)"
        )
    if "00" in there:
        parts.append(f"[Map of the course](../notebooks/{there['00'].name}.ipynb)")
    after = catalogue.neighbours(lesson, root)[1] if lesson else None
    if after:
        parts.append(f"[Notebook {after.number} {after.short} →](../notebooks/{after.name}.ipynb)")
    names = list(exercises(root).values())
    following = names[names.index(here) + 1 :] if here in names else []
    if following and not after:
        parts.append(f"[Exercises {following[0][:4]} →]({following[0]}.ipynb)")
    return "---\n" + " · ".join(parts) if parts else ""


def with_exercise_links(root: Path, master: Path, cells: list[Cell]) -> list[Cell]:
    """The line of exercises put under the first cell and the links into a cell at the end."""
    first = {**cells[0], "source": f"{cells[0]['source']}\n\n{exercise_line(root, master.stem)}"}
    text = exercise_navigation(root, master.stem)
    last = {"cell_type": "markdown", "source": text, "tags": ["navigation"]}
    return [first, *cells[1:], *([last] if text else [])]


def cell_ids(name: str, cells: list[Cell]) -> list[str]:
    """An id per cell that depends on the notebook's name and the cell's text alone.

    Cells with equal text are told apart by their count, so inserting a cell changes no other id.
    """
    seen: dict[str, int] = {}
    ids = []
    for cell in cells:
        text = f"{name}\n{cell['cell_type']}\n{cell['source']}"
        again = seen[text] = seen.get(text, -1) + 1
        ids.append(hashlib.sha256(f"{text}\n{again}".encode()).hexdigest()[:12])
    return ids


def to_text(name: str, cells: list[Cell], about: dict[str, Any]) -> str:
    """The .ipynb file: nbformat 4.5, keys sorted, indent 1, as JupyterLab saves it."""
    out = []
    for cell, cell_id in zip(cells, cell_ids(name, cells), strict=True):
        metadata: dict[str, Any] = {"tags": cell["tags"]} if cell["tags"] else {}
        if "results" in cell["tags"]:  # for the index of a course run: nothing to learn from
            metadata["jupyter"] = {"source_hidden": True}
        item: dict[str, Any] = {
            "cell_type": cell["cell_type"],
            "id": cell_id,
            "metadata": metadata,
            "source": cell["source"].splitlines(keepends=True),
        }
        if cell["cell_type"] == "code":
            item |= {"execution_count": None, "outputs": []}
        out.append(item)
    book = {
        "cells": out,
        "metadata": {
            "kernelspec": KERNELSPEC,
            "language_info": {"name": "python"},
            "rn50": about,
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(book, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def build(root: Path, master: Path, solved: bool = False) -> Built:
    """The notebook of one master; an exercise's stubs are filled in where `solved`."""
    cells = read_master(master)
    if not cells:
        raise UserError(f"{master} has no cells")
    if is_exercise(master):
        about: dict[str, Any] = {"exercise": master.stem[2:4]}
        fill = solutions.solved if solved else solutions.stub
        cells = [
            {**cell, "source": fill(cell["source"], str(master))}
            if cell["cell_type"] == "code"
            else cell
            for cell in cells
        ]
        cells = with_exercise_links(root, master, cells)
    else:
        item = catalogue.lesson(master.stem[:2])
        about = {"number": item.number, "minutes": item.minutes, "ci_seconds": item.ci_seconds}
        cells = with_links(root, master, cells)
    path = master.parent.parent / f"{master.stem}.ipynb"
    return Built(path, to_text(master.stem, cells, about))


def write(built: Built) -> bool:
    """Write a notebook, beside and then renamed. False where it stood there already."""
    if built.path.exists() and built.path.read_bytes() == built.text.encode():
        return False
    beside = built.path.with_suffix(".ipynb.new")
    try:
        beside.write_text(built.text, encoding="utf-8", newline="\n")
        os.replace(beside, built.path)
    except OSError as problem:
        raise UserError(f"{built.path} cannot be written: {problem.strerror}") from None
    return True


def build_solutions(root: Path, folder: Path) -> list[Path]:
    """Every exercise with its solution filled in, written to `folder`."""
    make_folder(folder, f"--solutions {folder}")
    paths = []
    for master in masters(root):
        if is_exercise(master):
            done = build(root, master, solved=True)
            path = folder / done.path.name
            path.write_text(done.text, encoding="utf-8", newline="\n")
            paths.append(path)
    return paths


def drift(root: Path) -> list[str]:
    """One line for each committed notebook that is not what its master gives; empty when all
    are."""
    lines = []
    expected = set()
    for master in masters(root):
        built = build(root, master)
        expected.add(built.path)
        name = built.path.relative_to(root)
        if not built.path.exists():
            lines.append(f"{name} is missing: write it with `rn50 workshop build`")
        elif built.path.read_bytes() != built.text.encode():
            lines.append(
                f"{name} is not what {master.relative_to(root)} gives: edit the master, then run"
                " `rn50 workshop build` (`rn50 workshop reset` keeps a copy of the changed one)"
            )
    for folder, pattern in (("notebooks", LESSON), ("exercises", EXERCISE)):
        for path in sorted((root / folder).glob("*.ipynb")):
            if pattern.fullmatch(path.stem) and path not in expected:
                lines.append(
                    f"{path.relative_to(root)} has no master: delete it, or add the master"
                )
    return lines

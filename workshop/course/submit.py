"""`rn50 workshop submit`: a learner's exercises as a zip to hand in, and nothing else.

The zip contains the exercise notebooks the learner changed, without outputs (which may show paths,
and which grading does not read), and the Python files in `answers/`.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import replacing
from workshop.checks import records
from workshop.course import build


def submit(root: Path, learner: str | None, out: Path | None) -> str:
    """Write the zip and return a line about its contents.

    Raises UserError if there is nothing to hand in or the learner's name is unknown.
    """
    learner = learner or os.environ.get("RN50_LEARNER", "")
    slug = re.sub(r"[^\w.-]+", "-", learner).strip("-._")[:60]  # letters of every language stay
    if not slug:
        raise UserError('add your name: rn50 workshop submit --name "Anna Berg"')
    entries: dict[str, str] = {}
    for master in filter(build.is_exercise, build.masters(root)):
        path = root / "exercises" / f"{master.stem}.ipynb"
        if path.exists() and sources(bare(path)) != sources(build.build(root, master).text):
            entries[path.name] = bare(path)
    entries |= answer_files()
    if not entries:
        remedy = "work on one, save it in JupyterLab (Ctrl-S), and try again"
        raise UserError(
            f"nothing to hand in: no exercise in {root / 'exercises'} has changed; {remedy}"
        )
    path = out or Path(f"rn50-{slug}.zip")
    try:
        with replacing(path) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as file:
            for name, text in entries.items():
                file.writestr(name, text)
    except OSError as problem:
        raise UserError(f"{path} cannot be written: {problem.strerror}") from None
    return f"{path}: the work of {learner}: {', '.join(entries)}."


def bare(path: Path) -> str:
    """Return a notebook's cells without outputs, counts and an editor's settings.

    Raises UserError for a file that is not a notebook.
    """
    try:
        book: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        cells = [{"cell_type": cell["cell_type"], "id": str(cell.get("id", number)),
                  "metadata": {"tags": cell.get("metadata", {}).get("tags", [])},
                  "source": "".join(cell["source"])}
                 for number, cell in enumerate(book["cells"])]  # fmt: skip
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        remedy = f"restore it with `rn50 workshop reset {path.stem}`"
        raise UserError(f"{path} cannot be read as a notebook: {remedy}") from None
    for cell in cells:
        cell |= {"execution_count": None, "outputs": []} if cell["cell_type"] == "code" else {}
    about = {"kernelspec": build.KERNELSPEC}
    made = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def sources(text: str) -> list[str]:
    """Return the code of a notebook, cell by cell."""
    cells = json.loads(text)["cells"]
    return ["".join(c["source"]).rstrip() for c in cells if c["cell_type"] == "code"]


def answer_files() -> dict[str, str]:
    """Return the Python files in answers/: what `workshop.use` and the learner wrote."""
    folder, found = records.answers_home(), {}
    for path in sorted(folder.glob("*.py")) if folder.is_dir() else []:
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 2**20:
            found[f"answers/{path.name}"] = path.read_text(encoding="utf-8", errors="replace")
    return found

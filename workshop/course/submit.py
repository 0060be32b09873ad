"""`rn50 workshop submit`: a learner's exercises as a zip to hand in, and nothing else.

The zip contains the exercise notebooks the learner changed, without outputs (which may show paths,
and which grading does not read).
"""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import Output
from workshop.course import build


def submit(root: Path, learner: str, out: Path | None) -> str:
    """Write the zip and return a line about its contents.

    Raises UserError if there is nothing to hand in or the name has no letters.
    """
    import nbformat

    slug = re.sub(r"[^\w.-]+", "-", learner).strip("-._")[:60]  # letters of every language stay
    if not slug:
        raise UserError(f"--name {learner}: write your name, such as Anna Berg")
    path = out or Path(f"rn50-{slug}.zip")
    to = Output("--out", path, "a zip of exercises", is_submission)
    entries: dict[str, str] = {}
    masters = list(filter(build.is_exercise, build.masters(root)))
    for master in masters:
        path, given = build.target(master), nbformat.reads(build.build(root, master), as_version=4)
        if path.exists():
            book = bare(path)
            if sources(book) != sources(given):
                entries[path.name] = nbformat.writes(book)
    known = {build.target(master).name for master in masters}
    others = [path.name for path in sorted((root / "exercises").glob("*.ipynb"))
              if path.name not in known and ".changed-" not in path.name]  # fmt: skip
    more = f" Not packed, because of their names: {', '.join(others)}." if others else ""
    if not entries:
        remedy = "work on one, save it in JupyterLab (Ctrl-S), and try again"
        if others:
            remedy = f"{', '.join(others)}: rename your work to {min(known)} or the like"
        raise UserError(
            f"nothing to hand in: no exercise in {root / 'exercises'} has changed; {remedy}"
        )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in entries.items():
            file.writestr(name, text)
    to.write(packed.getvalue())
    return f"{path}: the work of {learner}: {', '.join(entries)}.{more}"


def is_submission(file: Path) -> bool:
    """Return True if `submit` wrote the file."""
    try:
        with zipfile.ZipFile(file) as content:
            return all(re.fullmatch(r"ex\d\d\w*\.ipynb", name) for name in content.namelist())
    except zipfile.BadZipFile:
        return False


def bare(path: Path) -> Any:
    """Return a notebook without outputs, counts and an editor's settings.

    Raises UserError for a file that is not a notebook.
    """
    from nbconvert.preprocessors import ClearOutputPreprocessor

    try:
        book = build.read_notebook(path)
    except UserError as problem:
        remedy = f"`rn50 workshop reset {path.stem}` restores it and keeps a copy of yours"
        raise UserError(f"{problem}; {remedy}") from None
    book, _ = ClearOutputPreprocessor().preprocess(book, {})
    book.metadata = {"kernelspec": build.KERNELSPEC}
    return book


def sources(book: Any) -> list[str]:
    """Return the code of a notebook, cell by cell."""
    return [
        cell.source.replace("\r\n", "\n").rstrip()
        for cell in book.cells
        if cell.cell_type == "code"
    ]

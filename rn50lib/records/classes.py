"""What the classes of a data set are called: its `classes.txt`."""

from __future__ import annotations

from pathlib import Path


def read_class_names(root: Path) -> tuple[str, ...] | None:
    """The class names in `classes.txt` of the data root or of the folder above, if there is one.

    Each line is `index <tab> id <tab> words`, or just a name. The id, which is what the folder is
    called, names the class; where there is an index it gives the order.
    """
    rows = _class_rows(root)
    if rows is None:
        return None
    if all(len(row) > 1 and row[0].isdigit() for row in rows):
        return tuple(row[1] for row in sorted(rows, key=lambda row: int(row[0])))
    return tuple(row[0] for row in rows)


def read_class_words(root: Path) -> dict[str, str]:
    """Class id → its words, from the same file; empty where there are none."""
    return {row[1]: row[2] for row in _class_rows(root) or [] if len(row) > 2}


def _class_rows(root: Path) -> list[list[str]] | None:
    for folder in (root, root.parent):
        try:
            text = (folder / "classes.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        lines = [line for line in text.splitlines() if line.strip()]
        rows = [[column.strip() for column in line.split("\t")] for line in lines]
        return rows[1:] if rows and rows[0][0] == "index" else rows
    return None

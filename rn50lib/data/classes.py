"""The classes of a data set or model: their names in the order of the labels, and where from.

Class folders, `classes.txt`, records and checkpoints each state them.
`check_agreement` compares the statements, so that a number never means two classes.
"""

from __future__ import annotations

import itertools
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError, first_names

MAX_CLASSES = 1_000_000  # labels beyond are not those of a classifier
CORRECT = "correct the folders or classes.txt, or list and pack the images again"
NAME_THEM = "pack the images again, or name all classes in a classes.txt, one in each line"


@dataclass(frozen=True)
class Classes:
    """The classes of a data set or model, in the order of their labels."""

    names: tuple[str | None, ...]  # None: unknown
    origin: str  # the file or folder that states them
    seen: bool = False  # from the labels of images, so that there may be more

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, label: int) -> str:
        """Return the name of a class, or its number if the name is unknown."""
        return (self.names[label] if label < len(self.names) else None) or str(label)

    def __iter__(self) -> Iterator[str]:
        """Return the names, with numbers for unknown ones."""
        return (self[label] for label in range(len(self)))

    @property
    def known(self) -> bool:
        """Return True if every class has a name."""
        return None not in self.names

    def __str__(self) -> str:
        if self.known:
            return f"{len(self)}, named by {self.origin}"
        return f"{len(self)}, names unknown ({self.origin}): only the number can be compared"

    def fingerprint(self) -> str:
        """Return the number of the classes, and a checksum of their names in order."""
        return f"{len(self)}, names {zlib.crc32(json.dumps(self.names).encode()):08x}"

    def to_dict(self) -> dict[str, Any]:
        """Return the classes for JSON: names (null if unknown), number, origin (absolute)."""
        names = list(self.names) if any(self.names) else None
        return {"names": names, "count": len(self), "origin": os.path.abspath(self.origin)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Classes:
        """Return the classes from a result of `to_dict`."""
        names = values["names"]
        return cls((None,) * values["count"] if names is None else tuple(names), values["origin"])


def unnamed(count: int, origin: str | os.PathLike[str], seen: bool = False) -> Classes:
    """Return classes whose names are unknown."""
    return Classes((None,) * count, os.fspath(origin), seen)


def check_agreement(
    statements: Iterable[Classes | None], name: str = "", remedy: str | None = None
) -> Classes:
    """Return the most complete statement, after comparing every pair.

    Raises UserError for the first two that disagree: its message begins with `name` and ends with
    `remedy`, by default how to correct a data set.
    """
    found = [classes for classes in statements if classes is not None]
    for a, b in itertools.combinations(found, 2):
        if problem := _disagreement(a, b):
            usual = CORRECT if a.known or b.known else NAME_THEM
            raise UserError(f"{name}{': ' if name else ''}{problem}; {remedy or usual}")
    return max(found, key=lambda classes: (classes.known, not classes.seen, len(classes)))


def _disagreement(a: Classes, b: Classes) -> str | None:
    """Return which class has a different number or name in `a` and `b`; None if they agree.

    A statement from seen labels may lack classes that a complete list of names has.
    """
    of_a, of_b = (f"{c.origin} ({len(c)} class{'es' * (len(c) != 1)})" for c in (a, b))
    pairs = enumerate(zip(a.names, b.names, strict=False))
    differing = ((i, x, y) for i, (x, y) in pairs if x != y and x is not None and y is not None)
    first, in_a, in_b = next(differing, None), set(a.names), set(b.names)
    few, many = sorted([a, b], key=len)
    if first is None and (len(few) == len(many) or (few.seen and many.known)):
        return None
    # in ASCII: the same letters may be in two Unicode forms, macOS's and all others'
    only_a = [ascii(name) for name in a.names if name not in in_b]
    only_b = [ascii(name) for name in b.names if name not in in_a]
    if a.known and b.known and (only_a or only_b):
        return f"only in {of_a}: {first_names(only_a)}; only in {of_b}: {first_names(only_b)}"
    if first is not None:
        label, x, y = first
        return f"class {label} is {x!a} in {of_a} and {y!a} in {of_b}"
    return f"{of_a} and {of_b} differ in the number of classes"


# -- classes.txt ---------------------------------------------------------------------------------


def read_class_names(folder: Path) -> Classes | None:
    """Return the classes in `classes.txt` of a folder; None if there is none.

    Each line is `index <tab> id <tab> words`, or just a name. The id, which is the folder's name,
    names the class; the index, if there is one, gives the order. Raises UserError if the indexes
    are not 0 to N - 1.
    """
    rows = read_class_rows(folder)
    if not rows:
        return None
    origin = str(folder / "classes.txt")
    if not all(len(row) > 1 and row[0].isdecimal() for row in rows):
        return Classes(tuple(row[0] for row in rows), origin)
    rows.sort(key=lambda row: int(row[0]))
    for label, row in enumerate(rows):
        if int(row[0]) != label:
            raise UserError(
                f"{origin}: the class numbers should be 0 to {len(rows) - 1}, each once, but"
                f" {row[1]!r} has {row[0]}; correct the file, or remove it"
            )
    return Classes(tuple(row[1] for row in rows), origin)


def read_class_rows(folder: Path) -> list[list[str]] | None:
    """Return the columns of each line of `classes.txt`; None if the file is missing."""
    try:
        data = (folder / "classes.txt").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{folder / 'classes.txt'} cannot be read: {error.strerror}") from error
    if b"\0" in data:
        raise UserError(f"{folder / 'classes.txt'}: this is not UTF-8 (UTF-16?); save it as UTF-8")
    lines = data.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n").split("\n")
    rows = [line.split("\t") for line in lines if line.strip()]
    rows = [row if len(row) > 1 else [row[0].strip()] for row in rows]
    return rows[1:] if rows and rows[0][0] == "index" and len(rows[0]) > 1 else rows


# -- a new last layer ----------------------------------------------------------------------------


def kept_rows(old: Classes, new: Classes) -> dict[int, int]:
    """Return new label -> old label of the classes with the same name, which must be unique."""
    times_old, times_new = Counter(old.names), Counter(new.names)
    rows = {name: row for row, name in enumerate(old.names) if times_old[name] == 1}
    names = enumerate(new.names)
    return {row: rows[name] for row, name in names if name in rows and times_new[name] == 1}

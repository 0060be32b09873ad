"""`--roster class.csv`: everybody of the class, whether something was handed in or not.

The table has the columns id, name and e-mail, in any order. A hand-in is somebody's when its name,
number or account is that person's alone.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rn50lib.errors import UserError

COLUMNS = {"id": "id", "name": "name", "email": "mail", "mail": "mail"}


@dataclass(frozen=True)
class Person:
    id: str
    name: str
    mail: str

    def marks(self) -> set[str]:
        """What this person's hand-ins may be called: Berg-Anna, berganna, aberg, 4711."""
        words = self.name.split()
        family_first = [words[-1], *words[:-1]] if words else []
        names = {key(self.name), "".join(map(plain, family_first)), plain(self.name)}
        return (names | {plain(self.id), plain(self.mail), plain(self.mail.split("@")[0])}) - {""}


class Roster:
    def __init__(self, people: list[Person]) -> None:
        self.people = people
        often = Counter(person.name for person in people)
        self.shown = {p: p.name if often[p.name] == 1 else f"{p.name} ({p.id})" for p in people}
        self.owners: dict[str, list[Person]] = {}
        for person in people:
            for mark in person.marks():
                self.owners.setdefault(mark, []).append(person)

    def names(self) -> list[str]:
        return list(self.shown.values())

    def find(self, marks: list[str]) -> str:
        """Whom the names and numbers of a hand-in stand for; empty where that is not one person."""
        tried = {form(mark) for mark in marks for form in (plain, key)}
        found = {o[0] for mark in tried if len(o := self.owners.get(mark, [])) == 1}
        return self.shown[found.pop()] if len(found) == 1 else ""


def plain(text: str) -> str:
    """Letters and digits alone, small, however they are encoded."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).casefold())


def key(name: str) -> str:
    """A name whatever the order of its words."""
    return "".join(sorted(filter(None, map(plain, re.split(r"[\W_]+", name)))))


def load(path: Path) -> Roster:
    """Raises UserError, with the line, for a table that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(io.StringIO(text), delimiter=";" if ";" in text[:200] else ","))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"{path} cannot be read: {problem}") from None
    head = [COLUMNS.get(plain(cell), "") for cell in rows[0]] if rows else []
    if not {"id", "name"} <= set(head):
        raise UserError(f"{path}, line 1: expected are the columns id,name,e-mail")
    people, seen = [], set[str]()
    for number, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        about = {"mail": ""} | {
            name: " ".join(cell.split()) for name, cell in zip(head, row, strict=False)
        }
        about.pop("", None)
        if not about.get("id") or not about.get("name") or about["id"] in seen:
            raise UserError(f"{path}, line {number}: expected are a name and an id of its own")
        seen.add(about["id"])
        people.append(Person(**about))
    return Roster(people)

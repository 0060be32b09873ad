"""`--roster class.csv`: everybody of the class, whether something was handed in or not.

The table has the columns id, name and e-mail, in any order. A hand-in is somebody's when its name,
number or account is that person's alone.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rn50lib.errors import UserError
from workshop.classroom import sheets
from workshop.classroom.sheets import plain


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

    def person(self, shown: str) -> Person:
        """Whom a name on the pages stands for; somebody without an id where that is not known."""
        return next((p for p, name in self.shown.items() if name == shown), Person("", shown, ""))

    def find(self, marks: list[str]) -> str:
        """Whom the names and numbers of a hand-in stand for; empty where that is not one person."""
        tried = {form(mark) for mark in marks for form in (plain, key)}
        found = {o[0] for mark in tried if len(o := self.owners.get(mark, [])) == 1}
        return self.shown[found.pop()] if len(found) == 1 else ""


def key(name: str) -> str:
    """A name whatever the order of its words."""
    return "".join(sorted(filter(None, map(plain, re.split(r"[\W_]+", name)))))


def load(path: Path) -> Roster:
    """Raises UserError, with the line, for a table that cannot be read."""
    people, seen = [], set[str]()
    for row in sheets.read(path, ("id", "name"), ("e-mail",)):
        if not row["id"] or not row["name"] or row["id"] in seen:
            raise UserError(f"{path}, line {row['line']}: expected are a name and an id of its own")
        seen.add(row["id"])
        people.append(Person(row["id"], row["name"], row["e-mail"]))
    return Roster(people)

"""What makes a notebook readable and its links good: the part of lint that looks at text.

`lint` calls this for every master; each function returns one line per finding.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from workshop.checks import table
from workshop.course import build

MAX_PARAGRAPH = 100  # words; what one reads in half a minute
MAX_STRETCH = 300  # words between two code cells
MIN_ALT = 15  # letters of an alt text that is written out

FENCE = re.compile(r"^```.*?^```", re.M | re.S)
TICKS = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(
    r"`((?:exercises|notebooks|data_prep|rn50lib|workshop|docs|benchmarks|scripts)/[\w./-]*)`"
)
HEADING = re.compile(r"^#{1,6} (.+)$", re.M)
NAMED = re.compile(r"""workshop\.(?:check|hint|solution)\(["'](ex[^"']*)["']""")
ABOUT = re.compile(r"^\*([^*·]+) · ([^*·]+) · (\d+) minutes\*$", re.M)

Cell = dict[str, Any]


def walls(cells: list[Cell]) -> list[str]:
    """Paragraphs and stretches of text that nobody would read to the end."""
    found, stretch = [], 0
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] == "code":
            stretch = 0
            continue
        text = FENCE.sub("", cell["source"])
        for part in re.split(r"\n(?:>? *\n)+|\n(?=[-*] |\d+\. |\|)", text):
            if (count := words(part)) > MAX_PARAGRAPH:
                start = " ".join(part.split()[:5])
                found.append(
                    f"cell {number}: a paragraph of {count} words ({start} …), at most"
                    f" {MAX_PARAGRAPH}"
                )
        before, stretch = stretch, stretch + words(text)
        if before <= MAX_STRETCH < stretch:
            found.append(
                f"cell {number}: {stretch} words without code between them, at most {MAX_STRETCH}"
            )
    return found


def words(text: str) -> int:
    """How many words, tables and the marks of lists left out: a table is looked up, not read."""
    text = re.sub(r"^\|.*$", "", text, flags=re.M)
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def headings(cells: list[Cell]) -> list[str]:
    """Headings of which two have the same name: a link to one would lead to the other."""
    names = [
        name.strip()
        for cell in cells
        if cell["cell_type"] == "markdown"
        for name in HEADING.findall(FENCE.sub("", cell["source"]))
    ]
    double = sorted({name for name in names if names.count(name) > 1})
    return [f"two headings are called {name!r}" for name in double]


def links(root: Path, master: Path, cells: list[Cell]) -> list[str]:
    """Links and paths of the built notebook that lead nowhere, the line of links included."""
    folder = master.parent.parent
    there = {path.parent.parent / f"{path.stem}.ipynb" for path in {*build.masters(root), master}}
    anchors = {
        name.strip().replace(" ", "-")
        for cell in cells
        if cell["cell_type"] == "markdown"
        for name in HEADING.findall(cell["source"])
    }
    found = []
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] != "markdown":
            continue
        text = FENCE.sub("", cell["source"])
        for target in LINK.findall(TICKS.sub("", text)):
            if re.match(r"https?://|mailto:", target):
                continue
            name, _, anchor = unquote(target).partition("#")
            path = (folder / name).resolve() if name else None
            if path is None:
                good = anchor in anchors
            else:
                good = path in there or (path.suffix != ".ipynb" and path.exists())
            if not good:
                found.append(f"cell {number}: the link to {target} leads nowhere")
        found += [
            f"cell {number}: {name} is named and does not exist"
            for name in PATH.findall(text)
            if not (root / name).exists() and root / name not in there
        ]
    return found


def exercises(cells: list[Cell], notebook: str) -> list[str]:
    """What an exercise notebook has to hold for each of its exercises: a heading, the line of kind,
    difficulty and minutes as the table has them, an answer and a check."""
    found = []
    known = {item.name: item for item in table.of_notebook(notebook)}
    texts = [cell["source"] for cell in cells if cell["cell_type"] == "markdown"]
    for name, item in known.items():
        own = [text for text in texts if re.search(rf"^## {re.escape(name)} · \S", text, re.M)]
        if len(own) != 1:
            found.append(f"{name} needs one heading `## {name} · Title`")
        else:
            after = own[0][own[0].index(f"## {name}") :]
            about = ABOUT.search(after)
            said = (about[1], about[2], int(about[3])) if about else None
            if said != (item.kind, item.difficulty, item.minutes):
                wanted = f"*{item.kind} · {item.difficulty} · {item.minutes} minutes*"
                found.append(f"{name}: the line below its heading must be {wanted}")
        for tag in ("answer", "check"):
            if not any({tag, name} <= set(cell["tags"]) for cell in cells):
                found.append(f'{name}: no cell has the tags "{tag}" and "{name}"')
    for number, cell in enumerate(cells, 1):
        for name in NAMED.findall(cell["source"]):
            if name not in known:
                found.append(f"cell {number}: there is no exercise {name} in this notebook")
    if not any("hint(" in text and "solution(" in text for text in texts):
        found.append("nothing tells the learner of workshop.hint(…) and workshop.solution(…)")
    return found


def alt_texts(source: str) -> list[str]:
    """Alt texts of figures that are missing or say nothing."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []  # a magic, or an exercise's deliberate error
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in ("figure", "explore", "images"):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "workshop"):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        alt = given.get("alt", node.args[1] if len(node.args) > 1 else None)
        if alt is None or (isinstance(alt, ast.Constant) and not str(alt.value).strip()):
            found.append(f"workshop.{node.func.attr} without alt text")
        elif isinstance(alt, ast.Constant) and len(str(alt.value).strip()) < MIN_ALT:
            found.append(
                f"workshop.{node.func.attr}: the alt text {alt.value!r} does not say what is seen"
            )
    return found

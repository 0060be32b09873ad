"""What every master must keep to, so that a learner finds the same things in the same places.

`rn50 workshop lint` prints a line per finding; `rn50 workshop build --check` includes it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from workshop import expected
from workshop.checks import table
from workshop.course import build, catalogue, lint_reading, parameters

MAX_LINES = 25
MAX_SCRIPT_LINES = 60  # of a cell that writes a file, `%%writefile`
MAX_PARAMETERS = 7
TIME_LINE = re.compile(
    r"\*\*Time:\*\* (\d+) minutes · \*\*Needs:\*\* \S.* · \*\*On a CPU:\*\* \S.*"
)
SHELL = re.compile(
    r"^\s*(!|%pip\b|%conda\b|%%bash(?! -e$)|%%(sh|script)\b|%%!|get_ipython\(\)\.system\()", re.M
)
HEADING = re.compile(r"^(#{1,6}) (.+)$", re.M)
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
IMAGE = re.compile(r"!\[([^\]]*)\]\(")
FIGURE_MADE = re.compile(r"\b(subplots|plt\.figure|plt\.show|Figure)\(")
FIGURE_SHOWN = re.compile(r"\b(figure|explore|curves_figure)\(")
MATHS = re.compile(r"(?<![\\$\w])\$[^$\n`]+\$(?![\w$])|\$\$")


def lint(root: Path, only: list[Path] | None = None) -> list[str]:
    """One line per finding over the masters of a checkout (or `only` those), and over the recorded
    results; empty when everything is in order."""
    lines = []
    for master in only or build.masters(root):
        name = master.relative_to(root) if master.is_relative_to(root) else master
        try:
            cells = build.read_master(master)
        except UserError as problem:
            lines.append(str(problem))
            continue
        found = lint_cells(cells, build.is_exercise(master), master.stem)
        found += lint_reading.links(root, master, _linked(root, master, cells))
        lines += [f"{name}: {line}" for line in found]
    if only is None:
        lines += expected.problems(root / "notebooks" / "expected")
    return lines


def _linked(root: Path, master: Path, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells with the lines of links that the built notebook has; as they are for a master that
    stands elsewhere."""
    if master.parent.parent.parent != root:
        return cells
    if build.is_exercise(master):
        return build.with_exercise_links(root, master, cells)
    return build.with_links(root, master, cells)


def lint_cells(cells: list[dict[str, Any]], exercise: bool, name: str) -> list[str]:
    """The findings in one master's cells."""
    found = _first_cell(cells, exercise, name) + _parameters(cells, exercise)
    found += _headings(cells) + lint_reading.headings(cells) + lint_reading.walls(cells)
    if exercise:
        found += lint_reading.exercises(cells, name[:4])
    for number, cell in enumerate(cells, 1):
        check = _code if cell["cell_type"] == "code" else _text
        found += [f"cell {number}: {line}" for line in check(cell)]
    return found


def _first_cell(cells: list[dict[str, Any]], exercise: bool, name: str) -> list[str]:
    if not cells or cells[0]["cell_type"] != "markdown":
        return ["the first cell must be text: title, outcome, time"]
    number = name[:4] if exercise else name[:2]
    parts = [part.strip() for part in cells[0]["source"].strip().split("\n\n")]
    if len(parts) < 3:
        return ["the first cell must hold the title, one sentence of outcome and the time line"]
    found = []
    if not re.fullmatch(rf"# {number} · \S.*", parts[0]):
        found.append(f"the first line must be `# {number} · Title`")
    sentence = " ".join(parts[1].split())
    if not sentence.endswith(".") or re.search(r"[.!?] +[A-Z]", sentence):
        found.append("the outcome must be one sentence, ending with a full stop")
    times = TIME_LINE.fullmatch(" ".join(parts[-1].split()))
    if times is None:
        found.append(
            "the first cell must end with `**Time:** N minutes · **Needs:** … · **On a CPU:** …`"
        )
    elif int(times[1]) != (minutes := _minutes(number)):
        found.append(f"the time says {times[1]} minutes, the course table {minutes}")
    return found


def _minutes(number: str) -> int:
    """A lesson's minutes, or those of an exercise notebook's exercises together."""
    if number.startswith("ex"):
        return sum(item.minutes for item in table.of_notebook(number))
    return catalogue.lesson(number).minutes


def _parameters(cells: list[dict[str, Any]], exercise: bool) -> list[str]:
    tagged = [cell for cell in cells if "parameters" in cell["tags"]]
    if not tagged:
        return [] if exercise else ["no cell is tagged parameters"]
    if len(tagged) > 1:
        return ["more than one cell is tagged parameters"]
    if cells.index(tagged[0]) != 1 and not exercise:
        return ["the parameters must be the second cell"]
    found = []
    try:
        known = parameters.parse(tagged[0]["source"])
    except (ValueError, SyntaxError) as problem:
        return [f"parameters: {problem}"]
    if not known or known[0].name != "profile" or known[0].default != "auto":
        found.append('parameters: the first line must be `profile: str = "auto"`')
    if len(known) > MAX_PARAMETERS:
        found.append(f"parameters: {len(known)} of them, at most {MAX_PARAMETERS}")
    for parameter in known:
        if not parameter.help:
            found.append(f"parameters: {parameter.name} has no comment")
    for line in tagged[0]["source"].splitlines():
        if line.count("=") > 1:
            found.append(f"parameters: papermill passes over {line!r}: only one = a line")
    return found


def _headings(cells: list[dict[str, Any]]) -> list[str]:
    found = []
    level = 0
    titles = 0
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] != "markdown":
            continue
        for marks, text in HEADING.findall(FENCE.sub("", cell["source"])):
            titles += len(marks) == 1
            if len(marks) > level + 1:
                found.append(f"cell {number}: heading {text!r} skips a level")
            level = len(marks)
    if titles > 1:
        found.append(f"{titles} headings of the first level: only the title may be one")
    return found


def _code(cell: dict[str, Any]) -> list[str]:
    source = cell["source"]
    found = []
    count = len(source.splitlines())
    most = MAX_SCRIPT_LINES if source.startswith("%%writefile") else MAX_LINES
    if count > most and build.solutions.BEGIN not in source:
        found.append(f"{count} lines of code, at most {most}")
    if not source.strip():
        found.append("the cell is empty")
    if SHELL.search(source):
        found.append(
            "a shell line: papermill ignores its failure; use a cell that begins with `%%bash -e`"
        )
    if "raises-exception" in cell["tags"]:
        found.append("the tag raises-exception hides a failure: catch the exception and print it")
    if "skip-execution" in cell["tags"]:
        found.append("the tag skip-execution leaves the cell out of every headless run")
    if FIGURE_MADE.search(source) and not FIGURE_SHOWN.search(source):
        found.append("the figure must be shown with workshop.figure(fig, alt=...)")
    found += lint_reading.alt_texts(source)
    return found


def _text(cell: dict[str, Any]) -> list[str]:
    source = FENCE.sub("", cell["source"])
    found = []
    if not source.strip() and not cell["source"].strip():
        found.append("the cell is empty")
    if any(not alt.strip() for alt in IMAGE.findall(source)):
        found.append("an image without alt text")
    if re.search(r"<img(?![^>]*\balt=\"[^\"]+\")", source):
        found.append("an <img> without alt text")
    if MATHS.search(re.sub(r"`[^`]*`", "", source)):
        found.append("a formula in $…$: write it as plain text or code, pages carry no MathJax")
    return found

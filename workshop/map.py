"""`course_map()`: the notebooks of the course with their questions, as a table of links."""

from __future__ import annotations

from html import escape
from pathlib import Path

from workshop import output, paths
from workshop.checks import records, table
from workshop.course import catalogue

HEAD = (
    '<thead><tr><th>notebook</th><th>topic</th><th>its question</th><th class="n">your time</th>'
    "<th>exercises</th></tr></thead>"
)


def course_map() -> None:
    """Show a table with a link to each notebook and its exercises."""
    root = paths.checkout()
    rows, lines = [], []
    for item in catalogue.existing(root) if root else ():
        name, minutes = f"{item.number} {item.short}", f"{item.minutes} minutes"
        exercise_link, exercise = exercises(root, item.number)
        rows.append(
            f'<tr><td><a href="{item.name}.ipynb">{escape(name)}</a></td><td>{item.topic}</td>'
            f'<td>{escape(item.question)}</td><td class="n">{minutes}</td>'
            f"<td>{exercise_link}</td></tr>"
        )
        lines.append(f"{name}: {item.question} ({minutes}){exercise and '; '}{exercise}")
    output.show(f"<table>{HEAD}<tbody>{''.join(rows)}</tbody></table>", "\n".join(lines))


def exercises(root: Path | None, number: str) -> tuple[str, str]:
    """Return a lesson's exercises as HTML with a link and as text, both empty if it has none."""
    notebook = f"ex{number}"
    items = table.of_notebook(notebook)
    file = catalogue.exercise_file(root, notebook)
    if not file or not items:
        return "", ""
    known = records.load(notebook)
    passed = sum(bool(known.get(item.name, {}).get("passed_at")) for item in items)
    text = f"{sum(item.minutes for item in items)} minutes, {passed} of {len(items)} passed"
    return f'<a href="../exercises/{file}">{notebook}</a>: {text}', f"{notebook}: {text}"

"""`course_map()`: the course as a diagram, and its notebooks as a table of links."""

from __future__ import annotations

from html import escape
from pathlib import Path

from workshop import output, paths
from workshop.checks import records, table
from workshop.course import catalogue

COLOURS = {  # of a notebook's topic, which is written next to it
    "machine": "#5b6b7a",
    "input": "#009e73",
    "compute": "#0072b2",
    "communication": "#d55e00",
    "latency": "#aa4499",
    "everything": "#5b6b7a",
}
BOX = "display:inline-block;margin:4px 10px 6px 0;padding:4px 10px;border-radius:8px;border:2px "
HEAD = (
    '<thead><tr><th>notebook</th><th>its question</th><th class="n">your time</th>'
    "<th>exercises</th></tr></thead>"
)


def course_map() -> None:
    """Show the course as a row of boxes, and a table with a link to each notebook there is."""
    root = paths.checkout()
    existing = set(catalogue.existing(root)) if root else set()
    boxes, names, rows, lines = [], [], [], []
    for item in catalogue.COURSE:
        name, colour = f"{item.number} {item.short}", COLOURS[item.topic]
        border = "solid" if item in existing else "dashed"
        boxes.append(
            f'<div style="{BOX}{border} {colour}"><b>{escape(name)}</b><br>'
            f'<span class="dim">{item.topic}</span></div>'
        )
        names.append(f"{name} ({item.topic})")
        link, minutes = escape(name), "not there yet"
        if item in existing:
            link, minutes = f'<a href="{item.name}.ipynb">{link}</a>', f"{item.minutes} minutes"
        exercise_link, exercise = exercises(root, item.number)
        rows.append(
            f"<tr><td>{link}</td><td>{escape(item.question)}</td>"
            f'<td class="n">{minutes}</td><td>{exercise_link}</td></tr>'
        )
        lines.append(f"{name}: {item.question} ({minutes}){exercise and '; '}{exercise}")
    alt = f"Map of the course: {', '.join(names)}"
    html = (
        f'<div role="img" aria-label="{escape(alt)}">{"".join(boxes)}</div>'
        f"<table>{HEAD}<tbody>{''.join(rows)}</tbody></table>"
    )
    output.show(html, "\n".join(lines))


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

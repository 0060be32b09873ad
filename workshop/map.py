"""`course_map()`: the course as a diagram, and its notebooks as a table of links."""

from __future__ import annotations

from html import escape
from pathlib import Path

from workshop import output, paths
from workshop.checks import records, table
from workshop.course import catalogue

TOPICS = {  # Okabe and Ito's colours; the topic is next to each as text
    "machine": "#5b6b7a",
    "input": "#009e73",
    "compute": "#0072b2",
    "communication": "#d55e00",
    "latency": "#aa4499",
    "everything": "#5b6b7a",
}
STATION = (
    "display:inline-block;width:150px;min-height:86px;margin:4px 12px 8px 0;padding:6px 10px;"
    "vertical-align:top;border-radius:10px;border:2px "
)


def road(there: set[str]) -> str:
    """Return the stations of the course as HTML; `there` holds the existing notebooks' numbers."""
    stations = []
    for item in catalogue.COURSE:
        exists, colour = item.number in there, TOPICS[item.topic]
        later = "" if exists else " · comes later"
        stations.append(
            f'<div style="{STATION}{"solid" if exists else "dashed"} {colour}">'
            f'<b><span style="color:{colour}">{item.number}</span> {escape(item.short)}</b><br>'
            f'{escape(item.question)}<br><span class="dim">{item.topic}{later}</span></div>'
        )
    return (
        f'<div role="img" aria-label="{escape(alt_text(there))}">'
        '<p class="dim">From a folder of JPEGs … and after every station the same question:'
        f" <b>where is the time going now?</b></p>{''.join(stations)}"
        '<p class="dim">… to a trained, reported ResNet-50 v1.5 at the speed of the hardware</p>'
        "</div>"
    )


def alt_text(there: set[str]) -> str:
    """Return the map in words."""
    parts = []
    for item in catalogue.COURSE:
        later = "" if item.number in there else ", comes later"
        parts.append(f"{item.number} {item.short} ({item.topic}{later})")
    return "Map of the course, a road from a folder of JPEGs to a trained ResNet-50: " + ", ".join(
        parts
    )


def course_map() -> None:
    """Show a diagram of the course, and a table with links to all lessons and exercises."""
    root = paths.checkout()
    existing = {item.number for item in catalogue.existing(root)} if root else set()
    rows, lines = [], []
    for item in catalogue.COURSE:
        name = f"{item.number} {item.short}"
        link, when = escape(name), "comes later"
        if item.number in existing:
            link, when = f'<a href="{item.name}.ipynb">{link}</a>', f"{item.minutes} minutes"
        own, tasks = exercises(root, item.number)
        rows.append(
            f"<tr><td>{link}</td><td>{escape(item.question)}</td>"
            f'<td class="n">{when}</td><td>{own}</td></tr>'
        )
        lines.append(f"{name}: {item.question} ({when}){tasks}")
    head = (
        '<thead><tr><th>notebook</th><th>its question</th><th class="n">your time</th>'
        "<th>exercises</th></tr></thead>"
    )
    html = f"{road(existing)}<table>{head}<tbody>{''.join(rows)}</tbody></table>"
    output.show(html, "\n".join(lines))


def exercises(root: Path | None, number: str) -> tuple[str, str]:
    """Return a lesson's exercises as (HTML with a link, text): notebook, minutes, number passed."""
    notebook = f"ex{number}"
    items = table.of_notebook(notebook)
    file = catalogue.exercise_file(root, notebook)
    if not file or not items:
        return "", ""
    known = records.load(notebook)
    passed = sum(bool(known.get(item.name, {}).get("passed_at")) for item in items)
    told = f"{sum(item.minutes for item in items)} minutes, {passed} of {len(items)} passed"
    return f'<a href="../exercises/{file}">{notebook}</a>: {told}', f"; {notebook}: {told}"

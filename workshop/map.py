"""`course_map()`: the course as a picture, and its notebooks as a table of links."""

from __future__ import annotations

from html import escape
from pathlib import Path

from workshop import output, paths
from workshop.checks import records, table
from workshop.course import catalogue

TOPICS = {  # Okabe and Ito's colours; the topic stands beside each as text
    "machine": "#5b6b7a",
    "input": "#009e73",
    "compute": "#0072b2",
    "communication": "#d55e00",
    "latency": "#aa4499",
    "everything": "#5b6b7a",
}
WIDE, HIGH, GAP, ROW = 172, 74, 18, 5
INK = "var(--jp-ui-font-color1,#1f2328)"
DIM = "var(--jp-ui-font-color2,#59636e)"
ROAD = "var(--jp-border-color2,#c3cad2)"
PAPER = "var(--jp-layout-color1,#ffffff)"


def _place(index: int) -> tuple[int, int]:
    """Top left corner of a station: the road runs right, then back."""
    row, column = divmod(index, ROW)
    if row % 2:
        column = ROW - 1 - column
    return 14 + column * (WIDE + GAP), 46 + row * (HIGH + 46)


def _station(item: catalogue.Lesson, index: int, exists: bool) -> str:
    x, y = _place(index)
    colour = TOPICS[item.topic]
    dashes = "" if exists else ' stroke-dasharray="5 4"'
    topic = item.topic if exists else f"{item.topic} · comes later"
    words = item.question.split()
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) > 22:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    lines.append(line)
    text = "".join(
        f'<text x="{x + 12}" y="{y + 38 + 14 * i}" font-size="11.5" style="fill:{INK}">'
        f"{escape(part)}</text>"
        for i, part in enumerate(lines)
    )
    return (
        f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="10" style="fill:{PAPER}" '
        f'stroke="{colour}" stroke-width="{2.5 if exists else 1.5}"{dashes}/>'
        f'<text x="{x + 12}" y="{y + 21}" font-size="13.5" font-weight="700" style="fill:{INK}">'
        f'<tspan style="fill:{colour}">{item.number}</tspan> {escape(item.short)}</text>{text}'
        f'<text x="{x + 24}" y="{y + HIGH + 15}" font-size="11" '
        f'style="fill:{DIM}">{topic}</text>'
        f'<circle cx="{x + 14}" cy="{y + HIGH + 11}" r="4.5" fill="{colour}"/>'
    )


def svg(there: set[str]) -> str:
    """The map as SVG in the colours of the theme; `there` holds the numbers of existing
    notebooks."""
    width = 28 + ROW * WIDE + (ROW - 1) * GAP
    height = 46 + 2 * HIGH + 46 + 60
    corners = [_place(i) for i in range(len(catalogue.COURSE))]
    middle = [(x + WIDE / 2, y + HIGH / 2) for x, y in corners]
    points = " ".join(f"{x:.0f},{y:.0f}" for x, y in middle)
    end_x, end_y = corners[-1]
    stations = "".join(
        _station(item, i, item.number in there) for i, item in enumerate(catalogue.COURSE)
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" width="100%" style="max-width:{width}px;height:auto" '
        f'role="img" aria-label="{escape(alt_text(there))}" font-family="system-ui,sans-serif">'
        f'<text x="14" y="26" font-size="13" style="fill:{DIM}">'
        "From a folder of JPEGs … and after every station the same question: "
        f'<tspan font-weight="700" style="fill:{INK}">where is the time going now?</tspan></text>'
        f'<polyline points="{points}" fill="none" style="stroke:{ROAD}" stroke-width="12" '
        f'stroke-linejoin="round" stroke-linecap="round"/>{stations}'
        f'<text x="{end_x}" y="{end_y + HIGH + 42}" font-size="13" style="fill:{DIM}">'
        "… to a trained, reported ResNet-50 v1.5 at the speed of the hardware</text></svg>"
    )


def alt_text(there: set[str]) -> str:
    """The map in words."""
    parts = []
    for item in catalogue.COURSE:
        later = "" if item.number in there else ", comes later"
        parts.append(f"{item.number} {item.short} ({item.topic}{later})")
    return "Map of the course, a road from a folder of JPEGs to a trained ResNet-50: " + ", ".join(
        parts
    )


def course_map() -> None:
    """Show the course: a picture of the way, and a table with links to every lesson and exercise
    notebook there is."""
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
    html = f"{svg(existing)}<table>{head}<tbody>{''.join(rows)}</tbody></table>"
    output.show(html, "\n".join(lines))


def exercises(root: Path | None, number: str) -> tuple[str, str]:
    """A lesson's exercises as (HTML with a link, text): which notebook, minutes, what is passed."""
    notebook = f"ex{number}"
    items = table.of_notebook(notebook)
    file = catalogue.exercise_file(root, notebook)
    if not file or not items:
        return "", ""
    known = records.load(notebook)
    passed = sum(bool(known.get(item.name, {}).get("passed_at")) for item in items)
    told = f"{sum(item.minutes for item in items)} minutes, {passed} of {len(items)} passed"
    return f'<a href="../exercises/{file}">{notebook}</a>: {told}', f"; {notebook}: {told}"

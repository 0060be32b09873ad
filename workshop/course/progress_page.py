"""Pages and panels that show which exercises a learner has passed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from workshop import output, paths
from workshop.checks import records, status
from workshop.course import catalogue


def progress() -> None:
    """Show which exercises have been passed, with how much help, and which one is next."""
    found = status.collect()
    output.show(panel(found), status.text(found))


def panel(found: Mapping[str, Any]) -> str:
    """Return the panel as HTML: a bar, a row of marks for each notebook, and what is next."""
    total, passed = len(found["exercises"]), found["passed"]
    how = ", ".join(f"{count} {how}" for how, count in found["how"].items() if count)
    rows = []
    for notebook, entries in groupby(found["exercises"], key=lambda entry: entry["notebook"]):
        title = escape(f"{notebook} · {catalogue.lesson(notebook[2:]).short}")
        file = catalogue.exercise_file(paths.checkout(), notebook)
        link = f'<a href="../exercises/{file}">{title}</a>' if file else title
        rows.append(f"<tr><td>{link}</td><td>{' · '.join(map(mark, entries))}</td></tr>")
    return (
        f"<p><b>{passed} of {total} exercises passed</b>{escape(f': {how}' if how else '')}</p>"
        f'<div class="bar" role="img" aria-label="{passed} of {total} exercises passed">'
        f'<i style="width:{100 * passed / max(1, total):.0f}%"></i></div>'
        f"<table><thead><tr><th>notebook</th><th>exercises: ✓ passed, ✗ tried, ○ not yet</th>"
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<p>{escape(status.onward(found))}</p>"
    )


def mark(entry: status.Entry) -> str:
    """Return '✓ tune (2 hints)' for an exercise, as HTML."""
    sign = "✓" if entry["passed"] else "✗" if entry["tries"] else "○"
    taken = status.help_taken(entry)
    text = f"{sign} {entry['exercise'][5:]}{f' ({taken})' if taken else ''}"
    return f'<span title="You {escape(entry["goal"])}">{escape(text)}</span>'


def write_page(path: Path) -> Path:
    """Write a page of what has been passed, without outside resources. Raises UserError."""
    from workshop.course.pages import environment

    found = status.collect()
    html = environment().get_template("summary.html").render(
        found=found, made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        onward=status.onward(found), help_taken=status.help_taken,
    )  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as problem:
        raise UserError(f"the page {path} cannot be written: {problem.strerror}") from None
    return path


def summary() -> None:
    """Show the panel and write the page `answers/summary.html`, at the end of the course."""
    progress()
    path = write_page(records.answers_home() / "summary.html")
    text = f"A page of this to keep or to print: {path}"
    output.show(f"<p>{escape(text)}</p>", text)

"""What a learner has passed, to look at: a panel in a notebook, and a page at the end."""

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

CHIPS = """<style>
.rn50.rn50 .chip{display:inline-block;border:1px solid var(--jp-border-color2,#d0d7de);
border-radius:6px;padding:0 8px;margin:1px 4px 1px 0;white-space:nowrap}
.rn50.rn50 .chip.passed{border-color:#009e73;border-width:2px}
.rn50.rn50 .chip.tried{border-color:#d55e00;border-style:dashed}
</style>"""


def notebook_title(notebook: str) -> str:
    """'ex03 · Horovod': an exercise notebook by its lesson's short name."""
    short = {item.number: item.short for item in catalogue.COURSE}.get(notebook[2:], "")
    return f"{notebook} · {short}" if short else notebook


def progress() -> None:
    """Show which exercises have been passed, with how much help, and which is the next."""
    found = status.collect()
    output.show(panel(found), status.text(found))


def panel(found: Mapping[str, Any]) -> str:
    """The panel as HTML: a bar, a line of marks for each exercise notebook, and where to go on."""
    total, passed = len(found["exercises"]), found["passed"]
    rows = []
    for notebook, entries in groupby(found["exercises"], key=lambda entry: entry["notebook"]):
        chips = " ".join(_chip(entry) for entry in entries)
        rows.append(f"<tr><td>{_link(notebook)}</td><td>{chips}</td></tr>")
    return (
        f"{CHIPS}<p><b>{passed} of {total} exercises passed</b>{escape(_how(found))}</p>"
        f'<div class="bar" role="img" aria-label="{passed} of {total} exercises passed">'
        f'<i style="width:{100 * passed / max(1, total):.0f}%"></i></div>'
        f"<table><thead><tr><th>notebook</th><th>exercises: ✓ passed, ✗ tried, ○ not yet</th>"
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<p>{escape(status.onward(found))}</p>"
    )


def _how(found: Mapping[str, Any]) -> str:
    parts = [f"{count} {how}" for how, count in found["how"].items() if count]
    return f": {', '.join(parts)}" if parts else ""


def _chip(entry: status.Entry) -> str:
    kind = "passed" if entry["passed"] else "tried" if entry["tries"] else "left"
    mark = {"passed": "✓", "tried": "✗", "left": "○"}[kind]
    taken = status.help_taken(entry)
    text = f"{mark} {entry['exercise'][5:]}{f' ({taken})' if taken else ''}"
    return f'<span class="chip {kind}" title="You {escape(entry["goal"])}">{escape(text)}</span>'


def _link(notebook: str) -> str:
    """The name of an exercise notebook, with a link where it is there; seen from a lesson."""
    file = catalogue.exercise_file(paths.checkout(), notebook)
    title = escape(notebook_title(notebook))
    return f'<a href="../exercises/{file}">{title}</a>' if file else title


def write_page(path: Path) -> Path:
    """Write the page of what has been passed; it stands alone. Raises UserError where it cannot."""
    from workshop.course.pages import environment

    found = status.collect()
    groups = [
        (notebook_title(notebook), list(entries))
        for notebook, entries in groupby(found["exercises"], key=lambda entry: entry["notebook"])
    ]
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    html = environment().get_template("summary.html").render(
        found=found, groups=groups, made=now, onward=status.onward(found),
        state=status.state, help_taken=status.help_taken,
    )  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as problem:
        raise UserError(f"the page {path} cannot be written: {problem.strerror}") from None
    return path


def summary() -> None:
    """The end of the course: the panel, and a page of the same to keep, `answers/summary.html`."""
    progress()
    path = write_page(records.answers_home() / "summary.html")
    output.show(
        f'<p>A page of this to keep or to print: <code>{escape(str(path))}</code></p>',
        f"A page of this to keep or to print: {path}",
    )  # fmt: skip

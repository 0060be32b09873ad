"""The pages of a course run: each executed notebook as HTML, and the index over them.

Every page stands alone: styles and pictures are in it, nothing is loaded from anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from workshop.course import results
from workshop.course.training import Training
from workshop.output import cell_text

TEMPLATES = Path(__file__).parent.parent / "templates"
WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_NOTE = (
    '<p class="widget-note">The controls that stand here work in JupyterLab; the figure shows where'
    " they start.</p>"
)
LINK = re.compile(r'<a href="((?:\.\./)?(?:[a-z]+/)?([\w-]+)\.ipynb)">(.*?)</a>', re.S)
SHOWN = 4  # key results of a notebook that stand open in the index
MARKS = {
    results.PASSED: "✓",
    results.FAILED: "✗",
    results.TIME_LIMIT: "◷",
    results.NOT_RUN: "–",
}


def duration(seconds: float) -> str:
    """'8.2 s', '1 min 05 s'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02d} s"


def day(iso: str) -> str:
    """'21 November 2026, 06:31 UTC'."""
    when = datetime.fromisoformat(iso)
    return f"{when.day} {when:%B %Y, %H:%M} UTC"


@cache
def environment() -> Any:
    """Jinja with the templates of this folder, everything escaped unless marked safe."""
    import jinja2

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    env.filters.update(duration=duration, day=day, value=cell_text)
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    env.globals.update(marks=MARKS, shown=SHOWN, style=style)
    return env


def index(run: results.CourseRun, folder: Path, trained: Training | None = None) -> Path:
    """Write `index.html` and `course.json`; returns the path of the page."""
    pages = {item.name for item in run.notebooks if (folder / item.page).exists()}
    text = environment().get_template("index.html").render(run=run, pages=pages, training=trained)
    (folder / "course.json").write_text(run.to_json(), encoding="utf-8")
    path = folder / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


@cache
def exporter() -> Any:
    """nbconvert's HTML exporter with a template of our own: its others load scripts from the
    net."""
    from nbconvert.exporters import HTMLExporter
    from traitlets.config import Config

    priority = [
        "text/html",
        "text/markdown",
        "image/svg+xml",
        "image/png",
        "image/jpeg",
        "text/plain",
    ]
    config = Config()
    config.NbConvertBase.display_data_priority = priority
    config.HTMLExporter.embed_images = True
    config.HTMLExporter.exclude_input_prompt = True
    config.HTMLExporter.exclude_output_prompt = True
    made = HTMLExporter(config=config, template_name="classic")
    made.raw_template = (TEMPLATES / "page.html").read_text(encoding="utf-8")
    return made


def page(folder: Path, outcome: results.Outcome, names: Sequence[str]) -> Path | None:
    """Write the HTML of an executed notebook; None where there is no notebook to show.

    Links to the notebooks `names` lead to their pages.
    """
    import nbformat

    source = folder / outcome.notebook
    try:
        book = nbformat.read(source, as_version=4)
    except (OSError, ValueError):
        return None
    book.cells = [
        cell
        for cell in book.cells
        if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])
    ]
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if WIDGET in output.get("data", {}):
                output["data"] = {"text/html": WIDGET_NOTE}
    resources = {
        "metadata": {"name": outcome.title, "path": str(folder)},
        "rn50": {
            "style": (TEMPLATES / "style.css").read_text(encoding="utf-8"),
            "title": outcome.title,
            "status": outcome.status,
            "mark": MARKS[outcome.status],
            "duration": duration(outcome.seconds),
            "parameters": outcome.parameters,
            "notebook": outcome.notebook,
        },
    }
    html, _ = exporter().from_notebook_node(book, resources=resources)
    html = LINK.sub(lambda link: _link(link, names), html)
    path = folder / outcome.page
    path.write_text(html, encoding="utf-8")
    return path


def _link(link: re.Match[str], names: Sequence[str]) -> str:
    """A link between notebooks as one between pages; only its text where that page is not here."""
    _, name, text = link.groups()
    if name in names:
        return f'<a href="{name}.html">{text}</a>'
    return f'<span class="unlinked">{text}</span>'

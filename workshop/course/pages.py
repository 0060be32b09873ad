"""The pages of a course run: each executed notebook as HTML, and the index over them.

Every page contains its styles and images and loads nothing from anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from workshop import ladder
from workshop.course.run import FAILED, NOT_RUN, PASSED, TIME_LIMIT, CourseRun, Outcome, read
from workshop.course.training import Training
from workshop.output import cell_text

TEMPLATES = Path(__file__).parent.parent / "templates"
WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_NOTE = (
    "<p><small>These controls work in JupyterLab; the figure shows where they start.</small></p>"
)
LINK = re.compile(r'<a href="((?:\.\./)?(?:[a-z]+/)?([\w-]+)\.ipynb)">(.*?)</a>', re.S)
MARKS = {PASSED: "✓", FAILED: "✗", TIME_LIMIT: "◷", NOT_RUN: "–"}


def duration(seconds: float) -> str:
    """Return '8.2 s' or '1 min 05 s'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"


def day(iso: str) -> str:
    """Return '21 November 2026, 06:31 UTC'."""
    when = datetime.fromisoformat(iso)
    return f"{when.day} {when:%B %Y, %H:%M} UTC"


@cache
def environment() -> Any:
    """Return a Jinja environment with the templates; values are escaped."""
    import jinja2

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    env.filters.update(duration=duration, day=day, value=cell_text)
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    env.globals.update(marks=MARKS, style=style)
    return env


def index(run: CourseRun, folder: Path, trained: Training | None = None) -> Path:
    """Write `index.html` and `course.json`; return the path of the page."""
    pages = {item.name for item in run.notebooks if (folder / item.page).exists()}
    climbed = sorted((folder / "runs").glob("ladder-*.json"))  # what the notebooks recorded
    text = environment().get_template("index.html").render(
        run=run, pages=pages, training=trained,
        ladder=ladder.picture(climbed[-1])["text/html"] if climbed else "",
    )  # fmt: skip
    (folder / "course.json").write_text(run.to_json(), encoding="utf-8")
    path = folder / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


@cache
def exporter() -> Any:
    """Return nbconvert's exporter of the cells alone: its whole pages load scripts from the web."""
    from nbconvert.exporters import HTMLExporter
    from traitlets.config import Config

    config = Config()
    config.NbConvertBase.display_data_priority = [
        "text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain",
    ]  # fmt: skip
    config.HTMLExporter.embed_images = True
    config.HTMLExporter.exclude_input_prompt = True
    config.HTMLExporter.exclude_output_prompt = True
    return HTMLExporter(config=config, template_name="basic")


def page(folder: Path, outcome: Outcome, names: Sequence[str]) -> None:
    """Write the HTML of an executed notebook, if there is one.

    Links to the notebooks `names` lead to their pages; other links to notebooks become text.
    """
    book = read(folder / outcome.notebook)
    if book is None:
        return
    tag = "papermill-error-cell-tag"
    book.cells = [cell for cell in book.cells if tag not in cell.metadata.get("tags", [])]
    book.metadata.pop("widgets", None)  # the state of the controls
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if WIDGET in output.get("data", {}):
                output["data"] = {"text/html": WIDGET_NOTE}
    body, _ = exporter().from_notebook_node(book, resources={"metadata": {"path": str(folder)}})
    body = LINK.sub(
        lambda link: f'<a href="{link[2]}.html">{link[3]}</a>' if link[2] in names else link[3],
        body,
    )
    text = environment().get_template("page.html").render(item=outcome, body=body)
    (folder / outcome.page).write_text(text, encoding="utf-8")

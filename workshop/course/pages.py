"""The pages of a course run: each executed notebook as HTML, and the index over them.

Every page contains its styles and images and loads nothing from anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from rn50lib.files import write_file
from workshop import rungs
from workshop.course.run import FAILED, NOT_RUN, PASSED, TIME_LIMIT, Outcome
from workshop.course.training import Training
from workshop.output import cell_text

TEMPLATES = Path(__file__).parent.parent / "templates"
LINK = re.compile(r'<a href="(?:\.\./\w+/)?([\w-]+)\.ipynb">(.*?)</a>', re.S)
MARKS = {PASSED: "✓", FAILED: "✗", TIME_LIMIT: "◷", NOT_RUN: "–"}


def render(template: str, **values: Any) -> str:
    """Return the text of a template; in HTML values are escaped."""
    import jinja2

    loader, escape = jinja2.FileSystemLoader(TEMPLATES), template.endswith(".html")
    env = jinja2.Environment(loader=loader, autoescape=escape, undefined=jinja2.StrictUndefined)
    env.filters["duration"] = lambda seconds: str(timedelta(seconds=round(seconds)))  # 0:01:05
    env.filters["value"] = cell_text
    return env.get_template(template).render(values)


def index(
    folder: Path,
    run: Mapping[str, Any],
    notebooks: Sequence[Outcome],
    trained: Training | None = None,
) -> None:
    """Write `index.html` and `course.json` about a run's notebooks."""
    climbed = any((folder / "runs").glob("ladder*.json"))  # notebooks recorded rungs
    text = render(
        "index.html", run=run, notebooks=notebooks, training=trained, marks=MARKS,
        ladder=rungs.picture(folder / "runs" / rungs.RECORD)["text/html"] if climbed else "",
    )  # fmt: skip
    write_file(folder / "index.html", text)
    record = {"format": "rn50-course-2", **run, "notebooks": [asdict(item) for item in notebooks]}
    write_file(folder / "course.json", json.dumps(record, indent=4) + "\n")


@cache
def exporter() -> Any:
    """Return nbconvert's exporter with JupyterLab's styles and without scripts from the web."""
    from nbconvert.exporters import HTMLExporter

    return HTMLExporter(template_file=str(TEMPLATES / "page.html.j2"), embed_images=True)


def page(folder: Path, item: Outcome, names: Sequence[str]) -> None:
    """Write the HTML of an executed notebook.

    Links to the notebooks `names` lead to their pages; other links to notebooks become text.
    """
    import nbformat

    book = nbformat.read(folder / f"{item.name}.ipynb", as_version=4)
    about = {"metadata": {"path": str(folder)}, "item": item, "mark": MARKS[item.status]}
    text, _ = exporter().from_notebook_node(book, resources=about)
    text = LINK.sub(
        lambda link: f'<a href="{link[1]}.html">{link[2]}</a>' if link[1] in names else link[2],
        text,
    )
    write_file(folder / f"{item.name}.html", text)

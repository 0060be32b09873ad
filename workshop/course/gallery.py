"""Build docs/troubleshooting.md from exercises/gallery, one folder per failure.

entry.toml has the words that people search for, the command that shows the failure, the one that
names its cause, regular expressions for the lines that both print, and the fix. recorded.json has
what was printed when tests/workshop/test_gallery.py last ran with RN50_GALLERY_RECORD=1.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from workshop.course.pages import render

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest and JupyterLab bring it on Python 3.10
    import tomli as tomllib

FOLDER, PAGE = "exercises/gallery", "docs/troubleshooting.md"


def load(root: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a checkout by the names of their folders, in the order of the page."""
    found = {path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
             for path in (root / FOLDER).glob("*/entry.toml")}  # fmt: skip
    return dict(sorted(found.items(), key=lambda item: (item[1]["threads"][0], item[0])))


def page(root: Path) -> str:
    recorded = json.loads((root / FOLDER / "recorded.json").read_text(encoding="utf-8"))
    entries = load(root)
    for name, entry in entries.items():
        entry["anchor"] = re.sub(r"[^\w\- ]", "", entry["title"].lower()).replace(" ", "-")
        entry["source"] = next((root / FOLDER / name).glob("broken.*")).name
    return render("troubleshooting.md.j2", folder=FOLDER, entries=entries, recorded=recorded) + "\n"


def drift(root: Path) -> list[str]:
    """Return a line if the page is not what the gallery gives."""
    if not load(root) or (root / PAGE).read_text(encoding="utf-8") == page(root):
        return []
    return [f"{PAGE} is not current: run `rn50 workshop build`"]

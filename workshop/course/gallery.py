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

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest and JupyterLab bring it on Python 3.10
    import tomli as tomllib

FOLDER, PAGE = "exercises/gallery", "docs/troubleshooting.md"
HEAD = """# When it goes wrong

Common failures, each with [a small broken script](../exercises/gallery) that a test runs before and
after the fix. To try one, run its commands in its folder. `watch.py COMMAND` runs a Python script
and reports its threads, its disk reads and the memory that forked workers copy. If no rank's Python
stack changes for 5 seconds, it prints where each rank is, and the command continues: it may only be
slow. `watch.py --end 60 COMMAND` ends it after 60 such seconds.

| search terms | entry |
|---|---|
"""


def load(root: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a checkout by the names of their folders, in the order of the page."""
    found = {path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
             for path in (root / FOLDER).glob("*/entry.toml")}  # fmt: skip
    return dict(sorted(found.items(), key=lambda item: (item[1]["threads"][0], item[0])))


def link(thread: str) -> str:
    return f"[{thread}](https://github.com/{thread.replace('#', '/issues/')})"


def page(root: Path) -> str:
    recorded = json.loads((root / FOLDER / "recorded.json").read_text(encoding="utf-8"))
    index, body = "", ""
    for name, entry in load(root).items():
        anchor = re.sub(r"[^\w\- ]", "", entry["title"].lower()).replace(" ", "-")
        index += f"| {entry['words']} | [{entry['title']}](#{anchor}) |\n"
        source = next((root / FOLDER / name).glob("broken.*")).name
        threads = ", ".join(map(link, entry["threads"]))
        body += f"\n## {entry['title']}\n\n*{entry['words']}*: {threads}."
        body += f" [{source}](../{FOLDER}/{name}/{source})\n"
        for key in ("run", "name"):
            if recorded[name][key]:
                command = entry[key].replace("\n", "\n$ ")
                body += f"\n```text\n$ {command}\n{recorded[name][key]}\n```\n"
            body += f"\n{entry['text']}\n" if key == "run" else ""
        fix = entry["fix"].strip("\n")
        body += f"\n```diff\n{fix}\n```\n"
    return f"{HEAD}{index}{body}\nThe outputs were recorded {recorded['on']}.\n"


def drift(root: Path) -> list[str]:
    """Return a line if the page is not what the gallery gives."""
    if not load(root) or (root / PAGE).read_text(encoding="utf-8") == page(root):
        return []
    return [f"{PAGE} is not current: run `rn50 workshop build`"]

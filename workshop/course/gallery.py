"""Build docs/troubleshooting.md from exercises/gallery, one folder per failure.

entry.toml describes a failure: the words that people search for, the command that shows it, the one
that names its cause, and regular expressions for the lines that both print. fix.diff is the fix.
recorded.json has what was printed when tests/workshop/test_gallery.py last ran with
RN50_GALLERY_RECORD=1.
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

These failures are often reported in the trackers of Horovod, DALI, PyTorch, timm and
NVIDIA's DeepLearningExamples. Each is a small broken run in
[exercises/gallery](../exercises/gallery) that you can start on a laptop: what it prints, the
command that names the cause, and the fix. A test runs all of them, before and after the fix. To try
one, type the commands in its folder; `git apply -p0 fix.diff` makes the fix.

| what you see | cause |
|---|---|
"""


def load(root: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a checkout by the names of their folders, in the order of the page."""
    found = {path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
             for path in (root / FOLDER).glob("*/entry.toml")}  # fmt: skip
    return dict(sorted(found.items(), key=lambda item: (item[1]["part"], item[1]["title"])))


def excerpt(output: str, patterns: list[str]) -> str | None:
    """Return the lines of an output that match, None if a pattern is nowhere.

    Lines in between are left out, which an ellipsis shows.
    """
    lines = [line.rstrip() for line in output.splitlines()]
    matches = [[i for i, line in enumerate(lines) if re.search(p, line)][:1] for p in patterns]
    if not all(matches):
        return None
    shown: list[str] = []
    last = -1
    for number in sorted({number for found in matches for number in found}):
        shown += ["…"] if shown and number > last + 1 else []
        shown.append(lines[number] if len(lines[number]) < 300 else lines[number][:300] + " …")
        last = number
    return "\n".join(shown)


def link(thread: str) -> str:
    """Return the link to 'owner/name#number'."""
    repository, _, number = thread.partition("#")
    return f"[{thread}](https://github.com/{repository}/issues/{number})"


def page(root: Path) -> str:
    """Return the text of the page."""
    entries = load(root)
    recorded = json.loads((root / FOLDER / "recorded.json").read_text(encoding="utf-8"))
    index, body = [], []
    for name, entry in entries.items():
        anchor = re.sub(r"[^\w\- ]", "", entry["title"].lower()).replace(" ", "-")
        index.append(f"| {entry['words']} | [{entry['title']}](#{anchor}) |\n")
        seen, folder = recorded[name], root / FOLDER / name
        runs = [("run", "broken"), ("name", "cause")]
        commands = {key: entry[key].replace("\n", "\n$ ") for key, _ in runs}
        blocks = [f"```text\n$ {commands[key]}\n{seen[what]}\n```\n" for key, what in runs]
        fix = (folder / "fix.diff").read_text(encoding="utf-8")
        threads = ", ".join(map(link, entry["threads"]))
        source = next(path.name for path in sorted(folder.glob("broken.*")))
        body.append(
            f"\n## {entry['title']}\n\n*{entry['words']}*: {threads}."
            f" [{source}](../{FOLDER}/{name}/{source})\n\n{blocks[0]}\n{entry['text'].strip()}\n\n"
            f"{blocks[1]}\n```diff\n{fix}```\n"
        )
    foot = f"\nThe outputs were recorded {recorded['on']}.\n"
    return HEAD + "".join(index) + "".join(body) + foot


def drift(root: Path) -> list[str]:
    """Return a line if the page is not what the gallery gives."""
    if not load(root) or (root / PAGE).read_text(encoding="utf-8") == page(root):
        return []
    return [f"{PAGE} is not current: run `rn50 workshop build`"]

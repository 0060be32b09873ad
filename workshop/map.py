"""`course_map()`: the notebooks of the course with their questions, as a table of links."""

from __future__ import annotations

from workshop import catalogue, paths
from workshop.checks import status
from workshop.course import build


def course_map() -> None:
    """Show a table with a link to each notebook and its exercises."""
    from IPython.display import display

    root = paths.need_checkout()
    files = {path.stem[:4]: f"{path.stem}.ipynb" for path in build.masters(root)}
    progress = status.collect()
    rows = ["| notebook | topic | its question | your time | exercises |", "|---|---|---|--:|---|"]
    for item in catalogue.existing(root):
        notebook, more = f"ex{item.number}", ""
        if exercises := [one for one in progress if one.item.notebook == notebook]:
            minutes = sum(one.item.minutes for one in exercises)
            passed = sum(one.passed for one in exercises)
            more = f"[{notebook}](../exercises/{files[notebook]}): {minutes} minutes"
            more += f", {passed} of {len(exercises)} passed"
        link, time = f"[{item.number} {item.short}]({item.name}.ipynb)", f"{item.minutes} minutes"
        rows.append(f"| {link} | {item.topic} | {item.question} | {time} | {more} |")
    text = "\n".join(rows)
    display({"text/markdown": text, "text/plain": text}, raw=True)

"""`course_map()`: the notebooks of the course with their questions, as a table of links."""

from __future__ import annotations

from workshop import catalogue, paths
from workshop.checks import records
from workshop.course import build


def course_map() -> None:
    """Show a table with a link to each notebook and its exercises."""
    from IPython.display import display

    root = paths.checkout()
    masters = build.masters(root) if root else []
    files = {path.stem[:4]: f"{path.stem}.ipynb" for path in masters}
    rows = ["| notebook | topic | its question | your time | exercises |", "|---|---|---|--:|---|"]
    for item in catalogue.existing(root) if root else ():
        notebook = f"ex{item.number}"
        file, exercises = files.get(notebook), catalogue.of_notebook(notebook)
        more = ""
        if file and exercises:
            known = records.load(notebook)
            passed = sum(bool(known.get(one.name, {}).get("passed_at")) for one in exercises)
            more = f"[{notebook}](../exercises/{file}): {sum(one.minutes for one in exercises)}"
            more += f" minutes, {passed} of {len(exercises)} passed"
        link, time = f"[{item.number} {item.short}]({item.name}.ipynb)", f"{item.minutes} minutes"
        rows.append(f"| {link} | {item.topic} | {item.question} | {time} | {more} |")
    text = "\n".join(rows)
    display({"text/markdown": text, "text/plain": text}, raw=True)

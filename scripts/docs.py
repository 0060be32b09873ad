"""Builds the workbook as a site of static pages, with its notebooks executed (`make docs`).

`--course DIR` takes the notebooks that `rn50 workshop run --all` left there; without it the course
runs first. MkDocs has its own environment, build/docs-env.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
PAGES = BUILD / "docs"  # laid out like the repository, so that links work
WIDGET = "application/vnd.jupyter.widget-view+json"


def main() -> None:
    """Run the course if needed, lay out the pages, and build the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--course", type=Path, help="a folder of executed notebooks")
    given = parser.parse_args().course
    course = given or BUILD / "course"
    if not given:
        run = ["workshop", "run", "--all", "--profile", "cpu", "--out", str(course)]
        subprocess.run([sys.executable, "-m", "rn50", *run], check=True)
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES / "docs")
    shutil.copytree(ROOT / "rn50" / "configs", PAGES / "rn50" / "configs")
    shutil.copytree(ROOT / "exercises", PAGES / "exercises",
                    ignore=shutil.ignore_patterns("source"))  # fmt: skip
    for name in ("*.md", "requirements*.txt", "environment.yml", "LICENSE"):
        for file in ROOT.glob(name):
            shutil.copy(file, PAGES)
    (PAGES / "notebooks").mkdir()
    for notebook in sorted((ROOT / "notebooks").glob("[0-9]*_*.ipynb")):
        if not (course / notebook.name).exists():
            sys.exit(f"error: --course {course} lacks {notebook.name}: run the whole course there")
        book = json.loads((course / notebook.name).read_text(encoding="utf-8"))
        for cell in book["cells"]:
            for output in cell.get("outputs", []):
                output.get("data", {}).pop(WIDGET, None)  # widgets work only in JupyterLab
        (PAGES / "notebooks" / notebook.name).write_text(json.dumps(book), encoding="utf-8")
    python = BUILD / "docs-env" / "bin" / "python"
    if not python.exists():
        venv.create(python.parent.parent, with_pip=True)
    install = ["install", "--quiet", "-r", str(ROOT / "docs" / "requirements.txt")]
    subprocess.run([python, "-m", "pip", *install], check=True)
    subprocess.run([python, "-m", "mkdocs", "build", "--quiet", "--clean"], cwd=ROOT, check=True)
    print(ROOT / "site" / "index.html")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The workbook as a site of static pages, with its notebooks executed: `make docs`.

`--course DIR` takes the notebooks that `rn50 workshop run --all` has left there; without it the
course runs first, in `--profile`. MkDocs stands in an environment of its own, build/docs-env.
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
PAGES = BUILD / "docs"
WIDGET = "application/vnd.jupyter.widget-view+json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--course", type=Path, help="a folder of executed notebooks")
    parser.add_argument("--profile", default="cpu", help="how to run them where there is none")
    args = parser.parse_args()
    course = args.course or BUILD / "course"
    if not args.course:
        command = ["workshop", "run", "--all", "--profile", args.profile, "--out", str(course)]
        subprocess.run([sys.executable, "-m", "rn50", *command, "--resume"], check=True)
    missing = [book.name for book in lessons() if not (course / book.name).exists()]
    if missing:
        sys.exit(f"error: --course {course} lacks {', '.join(missing)}: run the whole course there")
    stage(course)
    subprocess.run([mkdocs(), "build", "--quiet", "--clean"], cwd=ROOT, check=True)
    print(ROOT / "site" / "index.html")
    return 0


def lessons() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def stage(course: Path) -> None:
    """Lay out what becomes pages as the repository does, so that its links hold."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES / "docs", ignore=shutil.ignore_patterns("*.txt"))
    for file in [*ROOT.glob("*.md"), *ROOT.glob("requirements*.txt"), ROOT / "environment.yml"]:
        shutil.copy(file, PAGES)
    shutil.copy(ROOT / "LICENSE", PAGES)
    shutil.copytree(ROOT / "configs", PAGES / "configs")
    shutil.copytree(
        ROOT / "exercises", PAGES / "exercises", ignore=lambda folder, names: [
            name for name in names if not name.endswith(".ipynb")
        ],
    )  # fmt: skip
    (PAGES / "notebooks").mkdir()
    for book in lessons():
        executed = json.loads((course / book.name).read_text(encoding="utf-8"))
        for cell in executed["cells"]:
            for output in cell.get("outputs", []):
                output.get("data", {}).pop(WIDGET, None)  # they work in JupyterLab alone
        (PAGES / "notebooks" / book.name).write_text(json.dumps(executed), encoding="utf-8")


def mkdocs() -> str:
    """MkDocs' program, installed first where it is not there."""
    folder = BUILD / "docs-env"
    program = folder / "bin" / "mkdocs"
    if not program.exists():
        venv.create(folder, with_pip=True, clear=True)
        wanted = ["install", "--quiet", "-r", str(ROOT / "docs" / "requirements.txt")]
        subprocess.run([str(folder / "bin" / "python"), "-m", "pip", *wanted], check=True)
    return str(program)


if __name__ == "__main__":
    sys.exit(main())

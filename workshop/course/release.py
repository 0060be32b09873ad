"""`rn50 workshop release DIR`: the copy of the course for learners.

It contains everything the course needs to run, and no solution: not in a master, a script or a
test. Hints and checks stay; the third hint of an exercise is often a line of its solution.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rn50lib.errors import UserError
from rn50lib.files import make_folder, write_file
from workshop import masters
from workshop.course import build

FILES = ("README.md", "LICENSE", "CHANGELOG.md", "Makefile", "Dockerfile", "environment.yml",
         "pyproject.toml", "requirements-cpu.txt", "requirements-gpu.txt", ".dockerignore",
         ".gitignore")  # fmt: skip
FOLDERS = ("rn50lib", "rn50", "data_prep", "workshop", "notebooks", "exercises", "docs", "scripts",
           "benchmarks")  # fmt: skip
OURS = ("actions/workflows", "| `make test`", "#   make test", "#   make acceptance")  # on tests
LEFT_OUT = shutil.ignore_patterns("solutions", "__pycache__", ".*", "*.ipynb", "*.so")


def release(root: Path, target: Path) -> None:
    """Write the learners' copy to `target`. Raises UserError if it exists or is in the course."""
    target = target.resolve()
    if target.exists():
        raise UserError(f"{target} exists already: name a new folder")
    if any(target.is_relative_to((root / name).resolve()) for name in FOLDERS):
        raise UserError(f"{target} is inside the course itself: name a folder outside it")
    make_folder(target, str(target))
    for name in FOLDERS:
        shutil.copytree(root / name, target / name, ignore=LEFT_OUT, copy_function=copy)
    for name in FILES:
        shutil.copy(root / name, target / name)
    for name in ("README.md", "Makefile"):
        lines = (root / name).read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not any(part in line for part in OURS)]
        (target / name).write_text("".join(kept), encoding="utf-8")
    for master in build.masters(target):
        write_file(build.target(master), build.build(target, master))
    shutil.copy(target / "workshop" / "templates" / "learners.md", target / "CONTRIBUTING.md")


def copy(path: str, target: str) -> None:
    """Copy a file, with stubs in place of solutions."""
    master = Path(path)
    if master.parent.name == "source" and masters.BEGIN in master.read_text(encoding="utf-8"):
        stub = masters.stub(master.read_text(encoding="utf-8"), path)
        Path(target).write_text(stub + "\n", encoding="utf-8")
    else:
        shutil.copy2(path, target)

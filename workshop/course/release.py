"""`rn50 workshop release DIR`: the copy of the course for learners.

It contains everything the course needs to run, and no solution: not in a master, a script or a
test. Hints and checks stay; the third hint of an exercise is often a line of its solution.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rn50lib.errors import UserError
from workshop.course import build, solutions

FILES = ("README.md", "LICENSE", "CHANGELOG.md", "Makefile", "environment.yml", "pyproject.toml",
         "requirements-cpu.txt", "requirements-gpu.txt", ".gitignore")  # fmt: skip
FOLDERS = ("rn50lib", "rn50", "data_prep", "workshop", "notebooks", "exercises", "docs", "scripts",
           "benchmarks")  # fmt: skip
LEFT_OUT = ("solutions", "__pycache__", ".ipynb_checkpoints")
BUILT = (".ipynb", ".pyc", ".so")  # notebooks and compiled files

CONTRIBUTING = """# The learners' copy

This copy of the course has everything you need to run the notebooks and to solve the exercises.
The solutions and tests are not included; your instructor has them.

- `make lab` opens the course in JupyterLab; `make run` executes it from end to end.
- Work on `exercises/ex01_….ipynb` and so on. `rn50 workshop status` lists what you have passed.
- `rn50 workshop reset ex03` restores an exercise and keeps a copy of yours.
- `rn50 workshop submit --name "Anna Berg"` packs your work into a zip to hand in.
"""
SAID = "It contains no solutions, but hints and checks: a third hint is nearly the answer."


def release(root: Path, target: Path) -> list[str]:
    """Write the learners' copy to `target` and return the names of its files.

    Raises UserError if `target` is not empty or cannot be written.
    """
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is not empty: name a new folder")
    if target.is_relative_to(root) and not target.is_relative_to(root / "runs"):
        raise UserError(f"{target} is inside the course itself: name a folder outside it")
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        for path in wanted(root):
            place = new / path.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            copy(path, place)
        for master in build.masters(new):
            build.write(build.build(new, master))
        (new / "CONTRIBUTING.md").write_text(CONTRIBUTING, encoding="utf-8")
        if target.exists():
            target.rmdir()
        os.replace(new, target)
    except OSError as problem:
        shutil.rmtree(new, ignore_errors=True)
        raise UserError(f"{target} cannot be written: {problem}") from None
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def wanted(root: Path) -> Iterator[Path]:
    """Yield the files to copy; notebooks are not among them, but built from their masters."""
    for name in FILES:
        if (root / name).is_file():
            yield root / name
    for name in FOLDERS:
        for path in sorted((root / name).rglob("*")):
            parts = path.relative_to(root).parts
            hidden = any(part.startswith(".") or part in LEFT_OUT for part in parts)
            if path.is_file() and not path.is_symlink() and not hidden and path.suffix not in BUILT:
                yield path


def copy(path: Path, target: Path) -> None:
    """Copy a file, with stubs in place of solutions."""
    text = path.read_text(encoding="utf-8") if path.parent.name == "source" else ""
    if solutions.BEGIN in text:
        target.write_text(solutions.stub(text, str(path)) + "\n", encoding="utf-8")
    else:
        shutil.copy2(path, target)

"""How large the parts of this project are, and what a training run loads of the library.

    .venv/bin/python scripts/structure.py

Lines are those of files that git tracks, comments and empty lines with them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# in every process of a run: the files of the library that it imports, a line each
LOADED = """
import importlib.machinery, os, sys
class Note:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "rn50lib":
            with open(os.path.join(os.environ["RN50_LOADED"], f"{os.getpid()}.txt"), "a") as file:
                print(importlib.machinery.PathFinder.find_spec(name, path).origin, file=file)
sys.meta_path.insert(0, Note())
"""


def main() -> int:
    """Print one row per figure; returns 0."""
    python = tracked("*.py")
    library = [path for path in python if path.startswith("rn50lib/")]
    tools = [path for path in library if path.startswith("rn50/")]
    tests = [path for path in python if path.startswith("tests/")]
    folder, most = Counter(os.path.dirname(path) for path in python).most_common(1)[0]
    run = [path for path in loaded_by_a_run() if path in library]
    rows = {
        "rn50lib": size(library),
        "rn50lib outside tools/": size(set(library) - set(tools)),
        "loaded by a run with one worker": size(run),
        "workshop": size(path for path in python if path.startswith("workshop/")),
        "data_prep": size(path for path in python if path.startswith("data_prep/")),
        "Python outside tests": size(set(python) - set(tests)),
        "tests": size(tests),
        "most Python files in one folder": f"{most} ({folder})",
    }
    for name, value in rows.items():
        print(f"{name:34} {value}")
    return 0


def tracked(pattern: str) -> list[str]:
    """The files below the checkout that git knows and that are there."""
    listed = subprocess.run(
        ["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for path in listed.stdout.split() if (ROOT / path).exists()]


def size(paths) -> str:
    """Lines and files, in words."""
    paths = list(paths)
    lines = sum(len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in paths)
    return f"{lines:,} lines in {len(paths)} files"


def loaded_by_a_run() -> list[str]:
    """The files below the checkout that the worker of a small run on synthetic images imports."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(LOADED)
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([folder, str(ROOT)]),
            "RN50_LOADED": folder,
            "RN50_RUNS": folder,
        }
        words = "run --network tiny --loader synthetic --image-shape 32 -b 2 --benchmark-iters 2"
        subprocess.run(
            [sys.executable, "-m", "rn50", *words.split(), "--no-val", "-e", "1"],
            env=env, cwd=folder, capture_output=True, check=True,
        )  # fmt: skip
        noted = [note.read_text().splitlines() for note in Path(folder).glob("*.txt")]
    (worker,) = (files for files in noted if any(f.endswith("rn50lib/train.py") for f in files))
    files = [Path(file) for file in dict.fromkeys(worker)]
    return [str(file.relative_to(ROOT)) for file in files if file.is_relative_to(ROOT)]


if __name__ == "__main__":
    sys.exit(main())

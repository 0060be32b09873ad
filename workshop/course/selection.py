"""Which notebooks a course run is asked for, with parameters and limits, before any is run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from workshop.course import backup, catalogue, parameters, results


@dataclass(frozen=True)
class Job:
    """A notebook to run: `budget` and `limit` in seconds, the kernel's start not counted."""

    path: Path
    title: str
    budget: float | None
    limit: float
    parameters: dict[str, Any]
    sha256: str

    @property
    def name(self) -> str:
        return self.path.stem


def find_notebooks(names: Sequence[str], root: Path | None, every: bool) -> list[Path]:
    """The notebooks that `names` mean: numbers ("02"), names, or paths. Raises UserError."""
    if every:
        if root is None:
            raise UserError("--all needs the checkout: run this inside it")
        return [root / "notebooks" / f"{item.name}.ipynb" for item in catalogue.existing(root)]
    found = []
    for name in names:
        if name.endswith(".ipynb") and Path(name).exists():
            found.append(Path(name).absolute())
            continue
        stem = Path(name).stem
        folders = [root / "notebooks", root / "exercises"] if root else []
        matches = [
            p for f in folders for p in sorted(f.glob(f"{stem}*.ipynb")) if is_meant(p, stem)
        ]
        if not matches:
            there = [p.stem for f in folders for p in sorted(f.glob("*.ipynb"))]
            raise UserError(f"there is no notebook {name}: there are {', '.join(there) or 'none'}")
        found.append(matches[0])
    return found


def is_meant(path: Path, stem: str) -> bool:
    """Whether a name means this notebook; a copy that `reset` has kept goes by its path."""
    meant = path.stem.startswith(f"{stem}_") and not backup.is_copy(path)
    return path.stem == stem or meant


def prepare(
    paths: Sequence[Path], given: Mapping[str, str], profile: str, time_limit: float | None
) -> list[Job]:
    """Every notebook read and its parameters checked, before any is run. Raises UserError."""
    jobs = []
    for path in paths:
        try:
            raw = path.read_bytes()
            book = json.loads(raw)
            cells, about = book["cells"], book["metadata"].get("rn50", {})
        except (OSError, ValueError, KeyError) as wrong:
            raise UserError(f"{path} cannot be read as a notebook: {wrong}") from None
        known = known_parameters(cells, path)
        values = parameters.check(given, known, path.name)
        budget = about.get("ci_seconds")
        limit = time_limit or catalogue.time_limit(budget, profile)
        title = next(
            (
                line.removeprefix("# ")
                for cell in cells
                if cell["cell_type"] == "markdown"
                for line in results.text_of(cell["source"]).splitlines()
                if line.startswith("# ")
            ),
            path.stem,
        )
        digest = hashlib.sha256(raw).hexdigest()
        jobs.append(Job(path, title, budget if profile == "ci" else None, limit, values, digest))
    return jobs


def known_parameters(cells: Sequence[Mapping[str, Any]], path: Path) -> list[parameters.Parameter]:
    tagged = parameters.cells_tagged(cells, "parameters")
    if not tagged:
        return []
    try:
        return parameters.parse(results.text_of(tagged[0]["source"]))
    except (ValueError, SyntaxError) as wrong:
        raise UserError(f"{path}: the parameters cell: {wrong}") from None

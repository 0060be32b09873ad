"""Copies of notebooks that somebody has worked in, before they are put back as they were built."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timezone
from pathlib import Path

from rn50lib.errors import UserError

MARK = ".changed-"  # in the name of a copy


def is_copy(path: Path) -> bool:
    """Whether a notebook is such a copy, which stands for no lesson any more."""
    return MARK in path.stem


def back_up(path: Path) -> Path:
    """Copy a notebook beside itself under a name with the time; returns the copy.

    Raises UserError where that cannot be done; the notebook then stays as it is.
    """
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    kept = path.with_name(f"{path.stem}{MARK}{stamp}{path.suffix}")
    if kept.exists():
        raise UserError(f"{kept} exists already: wait a second and try again")
    try:
        shutil.copy2(path, kept)
    except OSError as problem:
        raise UserError(
            f"{kept} cannot be written ({problem.strerror}), so {path.name} stays as it is"
        ) from None
    return kept


def worked_in(path: Path) -> bool:
    """Whether cells of a notebook were run: a built one has neither outputs nor counts."""
    try:
        cells = json.loads(path.read_bytes()).get("cells", [])
    except OSError:
        return False
    except (ValueError, AttributeError):  # damaged: somebody may want to save what is in it
        return True
    return any(cell.get("outputs") or cell.get("execution_count") for cell in cells)

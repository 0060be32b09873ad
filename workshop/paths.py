"""The workbook's folders: the checkout, the data and the runs, from any working directory.

A notebook's kernel may run anywhere; these functions find the checkout. `workshop.start` sets
`RN50_DATA` and `RN50_RUNS` once, so that everything the kernel starts uses the same folders.
"""

from __future__ import annotations

import os
from pathlib import Path

from rn50lib.errors import UserError


def checkout() -> Path | None:
    """Return the folder with `notebooks/source`: around the working directory, else around rn50lib.

    Returns None if the package was installed without a checkout.
    """
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
        if (folder / "notebooks" / "source").is_dir() and (folder / "rn50lib").is_dir():
            return folder
    return None


def need_checkout() -> Path:
    """Return the checkout, or raise UserError."""
    found = checkout()
    if found is None:
        raise UserError(
            "the workbook's notebooks were not found: run this inside the checkout, the folder"
            " that holds notebooks/source"
        )
    return found


def data_home() -> Path:
    """Return `$RN50_DATA`, else `data/` in the checkout, or in the working directory."""
    return Path(os.environ.get("RN50_DATA") or (checkout() or Path.cwd()) / "data").absolute()


def runs_home() -> Path:
    """Return `$RN50_RUNS`, else `runs/` in the checkout, or in the working directory."""
    return Path(os.environ.get("RN50_RUNS") or (checkout() or Path.cwd()) / "runs").absolute()

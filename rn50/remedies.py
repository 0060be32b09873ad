"""What to run against an error of rn50lib, by its key (`UserError.remedy`)."""

from __future__ import annotations

import data_prep.remedies  # noqa: F401 - registers those about stored data
from rn50lib.errors import REMEDIES


def setup() -> str:
    """Return how to install what is missing."""
    return "`make setup` installs all that the workbook needs"


REMEDIES |= {function.__name__: function for function in (setup,)}

"""What to run against an error of rn50lib, by its key (`UserError.remedy`)."""

from __future__ import annotations

import data_prep.remedies  # noqa: F401 - registers those about stored data
from rn50lib.errors import REMEDIES


def setup() -> str:
    """Return how to install what is missing."""
    return "`make setup` installs all that the workbook needs"


def doctor() -> str:
    """Return how to find out what this machine lacks."""
    return "`rn50 doctor` reports what is missing here and why"


def horovod() -> str:
    """Return how to build Horovod for this machine."""
    return "`make horovod` builds it; `rn50 doctor` reports what it was built with"


def workers(n: str) -> str:
    """Return how to start `n` workers."""
    return f"`rn50 run -n {n}` starts them"


def weights() -> str:
    """Return how to make a checkpoint of the weights of other programs."""
    return "`rn50 import torchvision FILE -o PREFIX` converts other weights"


REMEDIES |= {f.__name__: f for f in (setup, doctor, horovod, workers, weights)}

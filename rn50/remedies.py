"""The command to run against an error of rn50lib, by its key (`UserError.remedy`)."""

from __future__ import annotations

import data_prep.remedies  # noqa: F401 - registers those about stored data
from rn50lib.errors import REMEDIES

TEXTS = {
    "setup": "`make setup` installs all that the workbook needs",
    "doctor": "`rn50 doctor` reports what is missing here and why",
    "horovod": "`make horovod` builds it; `rn50 doctor` reports what it was built with",
    "workers": "`rn50 run -n {}` starts them",
    "compile": "`--no-compile` runs without it",
    "weights": "`rn50 import FILE -o PREFIX` converts other weights",
}
REMEDIES |= {key: text.format for key, text in TEXTS.items()}

"""Commands against errors of rn50lib about stored data, by the key of `UserError.remedy`."""

from __future__ import annotations

from rn50lib.errors import REMEDIES, as_command


def verify(path: str) -> str:
    """Return how to list all damage of a file or data set."""
    return f"{as_command('python', '-m', 'data_prep.verify', path)} lists all damage"


REMEDIES |= {function.__name__: function for function in (verify,)}

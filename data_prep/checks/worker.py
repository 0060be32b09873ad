"""The work of verify's worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from data_prep.checks.images import check_files, check_records
from data_prep.checks.shards import check_shard

CHECKS: dict[str, Callable[..., dict[str, Any]]] = {
    "files": check_files,
    "records": check_records,
    "shard": check_shard,
}


def prepare(settings: None) -> Callable[[list], dict[str, Any]]:
    """Return the worker's function. A task is the name of a check and its arguments."""
    return lambda task: CHECKS[task[0]](*task[1:])

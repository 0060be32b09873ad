"""The reports and traces of earlier runs: read, and recognised before a new one replaces them."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import load_json

Number = (int, float, type(None))


def load(path: str | Path) -> dict[str, Any]:
    """Read a report. Raise UserError if it is missing or is not a report."""
    content = load_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("metrics"), dict):
        raise UserError(f"report {path} has no 'metrics': it was not written by --report")
    try:
        check_metrics(content["metrics"])
    except ValueError as error:
        raise UserError(f"report {path}: {error}") from error
    return content


def is_report(path: str | Path) -> bool:
    """Return True if the file is a report, which a new one may replace."""
    try:
        return bool(load(path))
    except UserError:
        return False


def is_trace(path: Path) -> bool:
    """Return True if the file is a trace of torch.profiler, which a new one may replace."""
    data = path.read_bytes()
    try:
        return b'"traceEvents"' in (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (EOFError, zlib.error):
        return False


def check_metrics(metrics: dict[str, Any]) -> None:
    """Raise ValueError if a metric is not a list of numbers and nulls."""
    for key, values in metrics.items():
        if not isinstance(values, list) or not all(isinstance(v, Number) for v in values):
            raise ValueError(f"{key} is not a list of numbers, a value per epoch")

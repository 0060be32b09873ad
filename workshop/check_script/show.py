"""The findings as a table, or as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from workshop.check_script.finding import KINDS, PRESENT, Finding

WIDTH = 100


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    return {kind: sum(f.kind == kind for f in findings) for kind in KINDS}


def table(path: Path, findings: Sequence[Finding]) -> list[str]:
    """Lines of at most 100 characters: topic, kind, line, what is there, and what to do."""
    lines = [f"{path}: read, not run"]
    before = said = ""
    for finding in findings:
        topic = finding.topic if finding.topic != before else ""
        before = finding.topic
        place = f"line {finding.line}" if finding.line else ""
        head = f"{topic:22}{finding.kind:12}{place:10}"
        what = "likewise" if finding.what == said else finding.what
        said = finding.what
        text = textwrap.wrap(what, WIDTH - len(head))
        if finding.remedy:
            text += textwrap.wrap("→ " + finding.remedy, WIDTH - len(head), subsequent_indent="  ")
        lines += [(head if i == 0 else " " * len(head)) + part for i, part in enumerate(text)]
    number = counts(findings)
    told = [f"{count} {kind}" for kind, count in number.items() if count]
    lines.append(", ".join(told))
    if number[PRESENT] == len(findings):
        lines.append(
            "Nothing was found that is wrong or missing. Two ranks of a run will tell more."
        )
    return lines


def as_json(path: Path, findings: Sequence[Finding]) -> str:
    return json.dumps(
        {
            "script": str(path),
            "counts": counts(findings),
            "findings": [asdict(finding) for finding in findings],
        },
        indent=2,
        ensure_ascii=False,
    )

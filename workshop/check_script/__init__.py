"""`rn50 workshop check-script FILE`: what a training script of your own still lacks for many GPUs.

The file is read as text and parsed; it is never imported or run.
"""

from __future__ import annotations

from pathlib import Path

from workshop.check_script.finding import Finding


def check(path: Path) -> list[Finding]:
    """The findings on a script: those on each topic in a fixed order, then further mistakes.

    Raises UserError, in one line, for a file that is missing or is not Python.
    """
    from workshop.check_script import five, graph, others, rank0, remedies, sharing, validation
    from workshop.check_script.context import Context
    from workshop.check_script.flow import Flow
    from workshop.check_script.script import Script, read

    script = Script(read(path))
    context = Context(script, Flow(script))
    found = [
        finding
        for rules in (five, sharing, rank0, validation, graph, others)
        for finding in rules.check(context)
    ]
    place = {topic: i for i, topic in enumerate(remedies.TOPICS)}
    return sorted(found, key=lambda finding: place.get(finding.topic, len(place)))

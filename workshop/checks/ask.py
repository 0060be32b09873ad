"""The calls of a learner: `check`, `hint`, `solution`, and the list of a notebook's exercises."""

from __future__ import annotations

import os
from dataclasses import asdict
from html import escape
from typing import Any

from rn50lib.errors import UserError
from workshop import catalogue, masters, output, paths
from workshop.checks import engine, records
from workshop.errors import show_user_errors_plainly


class CheckFailed(UserError):
    """An exercise that is not passed, in two lines: the problem and the remedy."""

    def __init__(self, result: engine.Result) -> None:
        super().__init__("\n".join(result.lines))
        self.result = result

    def _render_traceback_(self) -> list[str]:
        return list(self.result.lines)


def recording() -> bool:
    """Return True if checks never stop the notebook: RN50_CHECK=record."""
    return os.environ.get("RN50_CHECK") == "record"


def check(name: str, answer: Any) -> None:
    """Check an answer, show the result, and record it.

    Raises CheckFailed unless it is passed; never with RN50_CHECK=record, nor if the exercise needs
    a package that is not installed.
    """
    result = engine.judge(name, answer)
    records.store(result)
    if not result.passed and not recording() and not catalogue.find(name).lacks:
        show_user_errors_plainly()
        raise CheckFailed(result)
    first, then = result.lines
    kind = "box" if result.passed else "box warn"
    lines = [escape(line) for line in [*first.splitlines(), then.strip()]]
    html = f'<div class="{kind}"><b>{lines[0]}</b><br>{"<br>".join(lines[1:])}</div>'
    output.show(html, f"{first}\n{then}", {output.RESULT_MIME: {"kind": "check", **asdict(result)}})


def hint(name: str) -> None:
    """Show the next hint: the first is a nudge, the third nearly the answer."""
    exercise = catalogue.find(name)
    seen = int(records.load(exercise.notebook).get(name, {}).get("hints", 0))
    number = min(seen + 1, 3)
    records.update(name, hints=number)
    after = f'workshop.hint("{name}")' if number < 3 else f'workshop.solution("{name}")'
    text = f"Hint {number} of 3: {exercise.hints[number - 1]}"
    html = f'<div class="box">{escape(text)}<br><span class="dim">After this: {after}</span></div>'
    output.show(html, f"{text}\nAfter this: {after}")


def solution(name: str, now: bool = False) -> None:
    """Show the solution, once the three hints have been seen; `now=True` does not wait for them."""
    exercise = catalogue.find(name)
    record = records.load(exercise.notebook).get(name, {})
    seen = int(record.get("hints", 0))
    if seen < 3 and not record.get("passed_at") and not now:
        text = (
            f'You have seen {seen} of 3 hints: workshop.hint("{name}") shows the next one.\n'
            f'To see the solution now: workshop.solution("{name}", now=True)'
        )
        output.show(f'<div class="box">{escape(text).replace(chr(10), "<br>")}</div>', text)
        return
    code = solution_source(exercise)
    records.update(name, solution=True)
    head = f"A solution to {name} (yours may differ and still be right):"
    html = f'<div class="box">{escape(head)}<pre>{escape(code)}</pre></div>'
    output.show(html, f"{head}\n\n{code}")


def solution_source(exercise: catalogue.Exercise) -> str:
    """Return the solved answer cell of an exercise, from its master.

    Raises UserError in a copy of the course without solutions.
    """
    folder = paths.need_checkout() / "exercises" / "source"
    for master in folder.glob(f"{exercise.notebook}_*.py"):
        for cell in masters.read_master(master):
            here = {"answer", exercise.name} <= set(cell["tags"])
            if here and masters.BEGIN in cell["source"]:  # a learner's copy has stubs there
                return masters.solved(cell["source"], str(master))
    raise UserError(
        f"this copy of the course has no solution of {exercise.name}: ask your instructor for it"
    )


def show_exercises(notebook: str) -> None:
    """Show the exercises of a notebook as a table, with the passed ones marked."""
    rows = [
        [one.state, one.item.name, one.item.kind, one.item.difficulty,
         f"{one.item.minutes}\N{NO-BREAK SPACE}min", f"You {one.item.goal}."]
        for one in records.collect()
        if one.item.notebook == notebook
    ]  # fmt: skip
    output.table(rows, ["", "exercise", "kind", "difficulty", "time", "goal"])

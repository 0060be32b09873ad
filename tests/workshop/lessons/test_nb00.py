"""The check of notebook 00: each mistake that it knows gets its line."""

from __future__ import annotations

import pytest

from workshop.checks.compare import Mistake
from workshop.lessons import nb00

TASKS = {"training_hours": nb00.HOURS_MISTAKES, "megabytes_per_second": nb00.READING_MISTAKES}


@pytest.mark.parametrize(
    ("name", "mistake"), [(name, mistake) for name in TASKS for mistake in TASKS[name]]
)
def test_each_mistake_gets_its_line(
    name: str, mistake: Mistake, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, diagnosis, remedy = mistake
    assert nb00.check(name, wrong) is getattr(nb00, name)
    assert f"`{name}`: {diagnosis} {remedy}" in capsys.readouterr().out

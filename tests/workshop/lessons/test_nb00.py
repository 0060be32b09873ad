"""The check of notebook 00: each mistake that it knows gets its line."""

from __future__ import annotations

import pytest

from workshop.checks.compare import Mistake
from workshop.lessons import nb00


@pytest.mark.parametrize("mistake", nb00.HOURS_MISTAKES)
def test_each_mistake_gets_its_line(mistake: Mistake, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, diagnosis, remedy = mistake
    assert nb00.check_hours(wrong) is nb00.training_hours
    assert f"`training_hours`: {diagnosis} {remedy}" in capsys.readouterr().out


@pytest.mark.parametrize("mistake", nb00.READING_MISTAKES)
def test_each_mistake_in_the_reading_gets_its_line(
    mistake: Mistake, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, diagnosis, remedy = mistake
    assert nb00.check_reading(wrong) is nb00.megabytes_per_second
    assert f"`megabytes_per_second`: {diagnosis} {remedy}" in capsys.readouterr().out

"""The published figures as the notebooks show them, against the documents' own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from workshop import expected
from workshop.lessons import dgx1


def test_the_published_efficiencies() -> None:
    # the document's own column: 3.74 and 7.11 in FP16, 3.89 and 7.39 in FP32
    speedups = {(row[0], row[1]): round(row[0] * row[3] / 100, 2) for row in dgx1.lost_rows()[0]}
    assert speedups == {(4, "FP16"): 3.74, (8, "FP16"): 7.11, (4, "FP32"): 3.89, (8, "FP32"): 7.39}


def test_the_published_accuracies_stand_beside_their_hours(repository: Path) -> None:
    rows, columns = dgx1.accuracy_rows(expected.load(repository / "notebooks" / "expected"))
    assert rows == [
        [1, "76.424", "22.9", "76.462", "82.0"],
        [4, "76.328", "6.2", "76.448", "21.1"],
        [8, "76.490", "3.3", "76.668", "11.1"],
    ]
    assert columns[2] == "FP16: hours" and columns[4] == "FP32: hours"


def test_what_is_lost_is_the_step_less_that_of_one_gpu() -> None:
    rows, columns = dgx1.lost_rows()
    lost = {(row[1], row[0]): row[4] for row in rows}
    assert lost["FP16", 8] == pytest.approx(1000 * (8 * 208 / 10263.2 - 208 / 1442.6))
    assert lost["FP32", 4] == pytest.approx(1000 * (4 * 96 / 1558.6 - 96 / 400.2))
    for row in rows:  # one number each, and the row of four GPUs to fit it to
        fitted = [value == pytest.approx(row[4], rel=0.01) for value in row[5:]]
        assert all(fitted) if row[0] == 4 else not any(fitted)
    assert len(columns) == len(rows[0])


def test_the_account_gives_the_range_of_all_readings() -> None:
    found = dgx1.efficiencies()
    assert set(found) == {"stragglers", "communication", "shared input"}
    low, high = (round(f(found.values())) for f in (min, max))
    assert dgx1.account().endswith(f"predict efficiencies from {low} to {high} %.")

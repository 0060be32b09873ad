"""The predictions of notebook 08 against the published rows, and the rows as it shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rn50.published import load
from workshop.lessons import nb08


def test_notebook_shows_the_published_rows(repository: Path) -> None:
    text = (repository / "notebooks/source/08_benchmark_and_scaling.py").read_text()
    found = re.findall(r"^# \| (\d) \| (.+) \|$", text, re.MULTILINE)
    shown = {int(n): [float(value) for value in row.split(" | ")] for n, row in found}
    fp16, fp32 = (load()["DGX-1", precision].ips for precision in ("mixed", "FP32"))
    assert shown == {
        n: [fp16[n], round(fp16[n] / fp16[1], 2), fp32[n], round(fp32[n] / fp32[1], 2)]
        for n in (1, 4, 8)
    }


def test_numbers_are_fitted_to_the_rows_with_few_gpus() -> None:
    for key, series in load().items():
        stragglers = nb08.parameter(*key, "stragglers")
        assert stragglers == pytest.approx(series.noise, rel=1e-6)
    four, eight = (nb08.predictions(("DGX-1", "mixed"), n) for n in (4, 8))
    assert four["stragglers"] == pytest.approx(5391.8, rel=1e-6)
    assert [row[1] for row in nb08.held_out()[0][:2]] == [8, 8]  # not the rows that were fitted
    serial = (4 / (5391.8 / 1442.6) - 1) / 3  # Amdahl's law, solved for the serial share
    assert eight["Amdahl"] == pytest.approx(1442.6 / (serial + (1 - serial) / 8))


def test_held_out_errors_are_those_of_the_documentation(repository: Path) -> None:
    names = ("stragglers", "Amdahl", "perfect", "communication")
    rows, _ = nb08.held_out(*names)
    assert [row[:3] for row in rows if row[1] == 32][0] == ["DLPerf mixed", 32, 30713.68]
    errors = {name: [abs(row[3 + i]) for row in rows] for i, name in enumerate(names)}
    mean = {name: f"{sum(sizes) / len(rows):.1f}%" for name, sizes in errors.items()}
    page = " ".join((repository / "docs" / "commands.md").read_text().split())
    worst = f"{max(errors['stragglers']):.1f}% at most"
    assert f"{mean['stragglers']} on average and {worst}" in page
    assert f"law misses them by {mean['Amdahl']}, perfect scaling by {mean['perfect']}" in page
    assert f"{mean['communication']}" in page


def test_readings_disagree_where_no_row_is_published() -> None:
    causes, of = ("stragglers", "communication"), (208, 1442.6, "nvlink+100g")  # the DGX-1's
    near, far = ([nb08.efficiency(n, name, *of) for name in causes] for n in (8, 512))
    assert max(near) - min(near) < 0.1 < max(far) - min(far)
    assert nb08.efficiency(1, "communication", *of) == pytest.approx(1)
    four = nb08.efficiency(4, "communication", *of)  # the DGX-1's fitted row, with its 2 bytes
    assert 4 * 1442.6 * four == pytest.approx(5391.8, rel=1e-4)
    small = nb08.efficiency(64, "stragglers", 26, *of[1:])
    assert small < nb08.efficiency(64, "stragglers", *of)

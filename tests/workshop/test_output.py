"""Drawings of measured turns, and tables."""

from __future__ import annotations

import numpy as np
import pytest

plt = pytest.importorskip("matplotlib.pyplot")

import workshop  # noqa: E402
from workshop import output  # noqa: E402


def test_spans_show_the_range_and_the_median_of_each_name() -> None:
    fig, axes = plt.subplots()
    workshop.spans(axes, {"slow": [30, 10, 14], "fast": [4, 2, 3]}, {"fast": "green"})
    fig.canvas.draw()
    lines, dots = axes.lines[::2], axes.lines[1::2]
    assert [sorted(line.get_xdata()) for line in lines] == [[10, 30], [2, 4]]
    assert [(*dot.get_xdata(), *dot.get_ydata()) for dot in dots] == [(14, 0), (3, 1)]
    assert [dot.get_color() for dot in dots] == ["black", "green"]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("14", (14, 0)), ("3", (3, 1))]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["slow", "fast"]
    assert {"2", "5", "10", "20"} <= {label.get_text() for label in axes.get_xticklabels()}
    assert axes.get_xscale() == "log" and axes.yaxis_inverted()
    plt.close(fig)


def test_ranges_show_the_median_above_the_end_of_its_bar() -> None:
    fig, axes = plt.subplots(figsize=(9, 3))
    workshop.ranges(axes, {"steady": [900, 1000, 1100], "jumps": [900, 1000, 2000]}, "input")
    assert [text.get_text() for text in axes.texts] == ["1,000", "1,000"]
    assert [text.xy for text in axes.texts] == [(1000, -0.3), (1000, 0.7)]
    fig.canvas.draw()
    for text, bar in zip(axes.texts, axes.patches, strict=True):
        assert not text.get_window_extent().overlaps(bar.get_window_extent())
        assert text.get_window_extent().y1 < axes.bbox.y1  # it stays inside
    assert [bar.get_width() for bar in axes.patches] == [1000, 1000]
    plt.close(fig)


def test_the_small_numbers_of_a_column_have_equally_many_decimals() -> None:
    rows = [[3.0, 0.05, None, 0.0], [3.4, 2.0, 1, 1e-05], [9.996, 12.25, 1200, 0.5]]
    assert output.table_html([[np.float32(3.1)], [np.int64(1200)]], ["x"]).count('"n"') == 3
    rows[2][2], rows[1][0] = np.int64(1200), np.float32(3.4)
    assert output.table_cells(rows) == [
        ["3.0", "0.05", "–", "0"], ["3.4", "2.00", "1", "1e-05"], ["10.0", "12.2", "1,200", "0.5"],
    ]  # fmt: skip

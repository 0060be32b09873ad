"""The rule for ratios of turns: a difference is clear, or it is not, and how often by chance."""

from __future__ import annotations

import numpy as np
import pytest

import workshop


@pytest.mark.parametrize(
    ("values", "clear", "text"),
    [
        ([1.2, 1.1, 1.3, 1.4, 1.25], True, "1.25 (1.10 to 1.40, n = 5)"),
        ([0.8] * 7, True, "0.80 (0.80 to 0.80, n = 7)"),
        ([1.2, 1.1, 1.3, 1.4, 0.99], False, "1.20 (0.99 to 1.40, n = 5): no clear difference"),
        ([1.0, 1.1, 1.3, 1.4, 1.2], False, "1.20 (1.00 to 1.40, n = 5): no clear difference"),
        (
            [1.004, 1.002, 1.01, 1.02, 1.03],
            False,
            "1.01 (1.00 to 1.03, n = 5): no clear difference",
        ),
        ([12.34, 11, 13, 12, 12], True, "12.0 (11.0 to 13.0, n = 5)"),
        ([3.0, 3.1, 2.9, 3.0], False, "3.00 (2.90 to 3.10, n = 4): too few to tell"),
        (np.array([2e5] * 5), True, "200,000 (200,000 to 200,000, n = 5)"),
    ],
)
def test_difference_is_clear_if_all_of_five_ratios_agree(values, clear: bool, text: str) -> None:
    found = workshop.ratio(values)
    assert (found.clear, str(found)) == (clear, text)


def test_equally_fast_things_pass_in_one_of_sixteen_comparisons() -> None:
    drawn = np.random.default_rng(0).lognormal(0, 0.1, (2, 4000, 5))
    passed = np.mean([workshop.ratio(row).clear for row in drawn[0] / drawn[1]])
    assert passed == pytest.approx(1 / 16, abs=0.012)

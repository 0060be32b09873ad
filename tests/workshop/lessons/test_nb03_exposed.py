"""The check of the exposed time that a learner predicts in notebook 03."""

from __future__ import annotations

from typing import Any

import pytest

from workshop.lessons import nb03


def by_heap(full: Any, takes: Any, alone: float, senders: int) -> float:
    import heapq

    free, last = [0.0] * senders, 0.0
    for at, seconds in zip(full, takes, strict=True):
        end = max(at, heapq.heappop(free)) + seconds
        heapq.heappush(free, end)
        last = max(last, end)
    return last - alone if last > alone else 0


def test_right_prediction_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert nb03.check("after_the_pass", by_heap) is by_heap
    assert capsys.readouterr().out.startswith("✓")


def test_known_times() -> None:
    # 0.1 to 0.8, 0.8 to 1.4, 1.4 to 1.9, 1.9 to 2.1; the pass ends at 0.8
    assert nb03.after_the_pass(*nb03.BUCKETS[1]) == pytest.approx(1.3)
    # 0.1 to 1.0 and 1.0 to 1.15 on the first sender; 0.2 to 0.4, 0.4 to 1.2 on the second
    assert nb03.after_the_pass(*nb03.BUCKETS[2]) == pytest.approx(0.4)
    assert nb03.after_the_pass(*nb03.BUCKETS[3]) == 0


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        *((mistake, f"{diagnosis} {remedy}") for mistake, diagnosis, remedy in nb03.AFTER_MISTAKES),
        (lambda full, takes, alone, senders: sum(takes), "gives 0.75. It should be 0.3."),
    ],
)
def test_wrong_prediction_is_named_or_gets_the_right_result(
    mistake: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nb03.check("after_the_pass", mistake) is nb03.after_the_pass
    assert said in capsys.readouterr().out

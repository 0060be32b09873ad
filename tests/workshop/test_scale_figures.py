"""What notebook 08 draws of the scaling model."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from rn50lib.tools.scaling import check
from workshop import output
from workshop.lessons.scaling import figures_scale


def drawn(figure: Any) -> Any:
    figure.savefig(os.devnull, format="png")
    return figure


def test_every_held_out_error_is_drawn() -> None:
    figure, sentence = figures_scale.held_out()
    (axes,) = drawn(figure).axes
    rows = [row for row in check.outcomes() if not row.fitted]
    lines = axes.lines[: len(check.NAMES)]
    for name, line in zip(check.NAMES, lines, strict=True):
        assert list(line.get_xdata()) == [100 * row.error(name) for row in rows]
    mean = sum(abs(row.error("perfect")) for row in rows) / len(rows)
    assert f"perfect {100 * mean:.1f} %" in sentence and f"{len(rows)} held-out" in sentence


def test_the_picture_and_the_sentence_say_the_same() -> None:
    figure, sentence = figures_scale.predicted(gpus=64, price=2.0, noise=0.02)
    left, right = drawn(figure).axes
    step = figures_scale.steps(64, 208, "nvlink+100g", True, noise=0.02)[-1]
    assert left.lines[0].get_ydata()[-1] == pytest.approx(100 * step.efficiency)
    top = max(bar.get_y() + bar.get_height() for bar in right.patches)
    assert top == pytest.approx(1000 * step.step_s)
    assert f"{step.ips:,.0f} images per second" in sentence
    cost = 90 * 1_281_167 / step.ips / 3600 * 64 * 2
    assert f"{cost:,.0f} at 2 for each GPU" in sentence and "minutes" in sentence
    slower = figures_scale.predicted(gpus=64, network="pcie+10g", overlap=False, noise=0.02)[1]
    assert share(slower) < share(sentence)


def share(sentence: str) -> int:
    return int(re.findall(r"(\d+) % of perfect", sentence)[0])


def test_the_controls_start_with_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(output.Slot, "update", lambda self, data, metadata=None: shown.append(data))
    monkeypatch.setattr("IPython.display.display", lambda *args, **kwargs: None)
    figures_scale.explore(noise=0.02)
    assert any("<img " in data.get("text/html", "") for data in shown)
    assert any("90 epochs of ImageNet" in data["text/plain"] for data in shown)

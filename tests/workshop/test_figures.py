"""Figures of the notebooks: their alt text, their axes and their colours."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from workshop import output


@pytest.mark.slow  # Matplotlib
def test_alt_text_begins_with_the_titles_and_logarithmic_axes_say_so() -> None:
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2)
    left.set(title="twice as\nfast", xlabel="batch", ylabel="images/s", xscale="log")
    right.set(xlabel="ms (log scale)", xscale="log", yscale="log")
    right.set_title("Now: 3 ms", loc="left")
    fig.suptitle("Two measurements.")
    data = output.figure_bundle(fig, "Medians: 4 and 8. Now: 3 ms.")
    assert data["text/plain"] == "Two measurements. twice as fast. Medians: 4 and 8. Now: 3 ms."
    assert f'alt="{data["text/plain"]}"' in data["text/html"]
    labels = [axes.get_xlabel() for axes in (left, right)]
    assert labels == ["batch (log scale)", "ms (log scale)"]
    assert (left.get_ylabel(), right.get_ylabel()) == ("images/s", "")


def test_colours_have_the_course_s_meanings() -> None:
    colour = re.compile(r"""#[0-9a-fA-F]{6}|["'](C\d|tab:)|style\.use""")
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted(ROOT.glob("*/source/*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if colour.search(line)
    ]
    assert not found, "use workshop.MEANING, workshop.FINDING, black or a grey such as '0.6'"

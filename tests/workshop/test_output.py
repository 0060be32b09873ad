"""Figures of cells: their alt text and their axes."""

from __future__ import annotations

import pytest

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

"""Output of cells: HTML with a text version, tables, figures with alt text, and updating slots.

Everything goes through `display`, so an executed notebook and its page keep it. The colours are
JupyterLab's own variables and fit both a light and a dark theme.
"""

from __future__ import annotations

import base64
import contextlib
import io
import math
import numbers
import os
import statistics
import uuid
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rn50 import plot

DPI = 110  # a figure of 9 inches is as wide as a page's column
RESULT_MIME = "application/vnd.rn50.result+json"

STYLE = (Path(__file__).parent / "templates" / "cell.css").read_text(encoding="utf-8")


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discard what native code writes to stderr; Python's own messages still appear in a notebook.

    TensorFlow logs notes while it is imported, before it reads TF_CPP_MIN_LOG_LEVEL.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def bundle(html: str, text: str) -> dict[str, Any]:
    """Return a display bundle: HTML for the notebook, text for a terminal."""
    html = f'<style>\n{STYLE}</style><div class="rn50">{html}</div>'
    return {"text/html": html, "text/plain": text}


def show(html: str, text: str, extra: Mapping[str, Any] | None = None) -> None:
    """Display HTML in a notebook, and print the text elsewhere; `extra` adds MIME types."""
    from IPython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        print(text)
    else:
        display({**bundle(html, text), **(extra or {})}, raw=True)


class Slot:
    """A place in the cell's output that is updated in place and keeps its last state.

    Works the same in JupyterLab and in a headless run.
    """

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self.shown = False

    def update(self, data: Mapping[str, Any]) -> None:
        from IPython import get_ipython
        from IPython.display import display, update_display

        if get_ipython() is None:
            print(data["text/plain"])
            return
        again = update_display if self.shown else display
        self.shown = True
        again(dict(data), raw=True, display_id=self.id)

    def html(self, html: str, text: str) -> None:
        self.update(bundle(html, text))

    def line(self, text: str) -> None:
        self.html(f'<div class="dim">{escape(text)}</div>', text)


def figure_bundle(fig: Any, alt: str) -> dict[str, Any]:
    """Return a matplotlib figure as a display bundle with its alt text, and close it.

    The alt text begins with the figure's titles, and the label of a logarithmic axis says so.
    It is HTML because JupyterLab shows an `image/png` without the alt text of its metadata.
    """
    import matplotlib.pyplot as plt

    titles = [fig.get_suptitle()]
    for axes in fig.axes:
        titles += [axes.get_title(loc="left"), axes.get_title()]
        for axis in (axes.xaxis, axes.yaxis):
            label = axis.get_label_text()
            if label and "log" not in label and axis.get_scale() == "log":
                axis.set_label_text(f"{label} (log scale)")
    titles = [" ".join(title.split()) for title in titles]
    alt = " ".join(
        [*(f"{title.rstrip('.')}." for title in titles if title and title not in alt), alt]
    )
    buffer = io.BytesIO()
    photos = any(image.get_array().ndim == 3 for axes in fig.axes for image in axes.images)
    scale = 1 if photos else 2  # photos would make the notebook large, and gain nothing
    fig.savefig(buffer, format="png", dpi=DPI * scale, bbox_inches="tight", facecolor="white")
    plt.close(fig)
    width = int.from_bytes(buffer.getvalue()[16:20], "big") // scale  # from the PNG's header
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    look = f'width="{width}" style="max-width:100%;height:auto"'
    html = f'<img src="{source}" alt="{escape(alt)}" {look}>'
    return {"text/html": html, "text/plain": alt}


def figure(fig: Any, alt: str) -> None:
    """Show a matplotlib figure with alt text, and close it."""
    Slot().update(figure_bundle(fig, alt))


def ranges(
    axes: Any, rows: Mapping[str, Sequence[float]], part: str, form: str = "{:,.0f}"
) -> None:
    """Draw a bar per name up to the median of its turns, a dot per turn, the median as a number.

    The number is above the end of the bar.
    `part` is a key of `rn50.plot.MEANING`. The first name is on top; the axis of names ends above
    it, so that a line across can have its label there.
    """
    for row, values in enumerate(rows.values()):
        middle = statistics.median(values)
        axes.barh(row, middle, 0.6, color=plot.MEANING[part])
        axes.plot(values, [row] * len(values), "o", color="white", mec="black", ms=4.5)
        axes.annotate(form.format(middle), (middle, row - 0.3), (0, 1), ha="center", va="bottom",
                      textcoords="offset points", weight="bold", size="small",
                      bbox={"color": "white", "pad": 0})  # fmt: skip
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.9)
    axes.margins(x=0.06)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter("{x:,g}")


def spans(axes: Any, rows: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> None:
    """Draw a line over the turns of each name, a dot at the median, and its number above.

    The axis is logarithmic, the first name on top; without an entry in `colours`, it is black.
    """
    for row, (name, values) in enumerate(rows.items()):
        middle, colour = statistics.median(values), colours.get(name, "black")
        axes.plot([min(values), max(values)], [row, row], color=colour, lw=2)
        axes.plot(middle, row, "o", color=colour, ms=7)
        axes.annotate(f"{middle:,.3g}", (middle, row), (0, 5), ha="center", va="bottom",
                      textcoords="offset points", weight="bold")  # fmt: skip
    axes.set(xscale="log", yticks=range(len(rows)), yticklabels=list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.08)
    log_ticks(axes.xaxis)


def log_ticks(axis: Any) -> None:
    """Label a logarithmic axis at 1, 2, 5, 10 and so on."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def cell_text(value: Any) -> str:
    """Return a table's cell as text: numbers short, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, numbers.Integral):  # NumPy's, too
        return f"{value:,}"
    if isinstance(value, numbers.Real):
        size = abs(float(value))
        if size >= 1000:
            return f"{value:,.0f}"
        return f"{value:.1f}" if size >= 10 else f"{value:.3g}"
    return str(value)


def is_fraction(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral)


def table_cells(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Return a table's cells as text; a column's small numbers have equally many decimals.

    They are at most those of three digits, so that 3.0 stands next to 3.4.
    """
    texts = [[cell_text(value) for value in row] for row in rows]
    for i, column in enumerate(zip(*rows, strict=True)):
        small = [row for row, v in enumerate(column) if is_fraction(v) and abs(v) < 10]
        small = [row for row in small if "e" not in texts[row][i]]
        places = max((len(texts[row][i].partition(".")[2]) for row in small), default=0)
        for row in small:
            if value := float(texts[row][i]):
                digits = 2 - math.floor(math.log10(abs(value)))
                texts[row][i] = f"{value:.{min(digits, places)}f}"
    return texts


def table_html(rows: Sequence[Sequence[Any]], columns: Sequence[str], caption: str = "") -> str:
    """Return the table as HTML; a column of numbers is right-aligned."""
    kinds = []
    for i in range(len(columns)):
        values = [row[i] for row in rows if row[i] is not None]
        numeric = bool(values) and all(isinstance(value, numbers.Real) for value in values)
        kinds.append(' class="n"' if numeric else "")

    def line(tag: str, row: Sequence[str]) -> str:
        cells = zip(kinds, row, strict=True)
        inner = (f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in cells)
        return f"<tr>{''.join(inner)}</tr>"

    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(line("td", row) for row in table_cells(rows))
    return f"<table>{title}<thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"


def table_text(rows: Sequence[Sequence[Any]], columns: Sequence[str], caption: str = "") -> str:
    lines = [list(columns), *table_cells(rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    text = ["  ".join(v.ljust(w) for v, w in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(([caption] if caption else []) + [line.rstrip() for line in text])


def table(rows: Sequence[Sequence[Any]], columns: Sequence[str], caption: str = "") -> None:
    """Show a small table: each row has one value per column, None for "not measured"."""
    rows = [list(row) for row in rows]
    show(table_html(rows, columns, caption), table_text(rows, columns, caption))

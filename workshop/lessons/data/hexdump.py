"""Bytes of a file as a table of hexadecimal numbers in which each part has a number and a colour.

The legend below says what each part is, so that the picture can be read without the colours too.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from workshop import output

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
NUMBERS = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫"
WIDTH = 16
KEEP = 40  # bytes of a part that are shown from its beginning
STYLE = (
    "<style>.rn50-hex{font:12px/1.75 var(--jp-code-font-family,ui-monospace,monospace);"
    "color:var(--jp-content-font-color1,#1f2328);background:none;margin:4px 0;"
    "white-space:pre;overflow-x:auto}"
    ".rn50-hex b{font-weight:400;padding:1px 0}"
    ".rn50-hex i{display:inline-block;width:1.25em;font-style:normal;text-align:right}"
    + "".join(
        f".rn50-hex .p{i}{{background:{colour}40;border-bottom:2px solid {colour}}}"
        for i, colour in enumerate(COLOURS)
    )
    + "</style>"
)

Part = tuple[str, int, str]  # name, length in bytes, meaning


def hexdump(data: bytes, parts: Sequence[Part], caption: str = "", offset: int = 0) -> None:
    """Show `data`, which starts at `offset` of its file and consists of `parts` in this order.

    Of a part longer than KEEP bytes only the first lines and the last one are shown. Raises
    ValueError if the lengths of the parts do not add up to the data.
    """
    owner = [number for number, (_, length, _) in enumerate(parts) for _ in range(length)]
    if len(owner) != len(data):
        raise ValueError("the parts do not add up to the data")
    shown: set[int] = set()  # numbers of the lines of WIDTH bytes
    rows, begin = [], 0
    for number, (name, length, meaning) in enumerate(parts):
        first, end = offset + begin, begin + length
        where = f"{first:,} – {offset + end - 1:,}" if length > 1 else f"{first:,}"
        rows.append([NUMBERS[number], name, where if length else "–", length, meaning])
        if length:
            shown |= {at // WIDTH for at in (*range(begin, min(end, begin + KEEP)), end - 1)}
        begin = end
    lines = []
    for is_shown, group in groupby(range(-(-len(data) // WIDTH)), key=shown.__contains__):
        numbers = list(group)
        if is_shown:
            lines += [_line(data, owner, WIDTH * n, offset) for n in numbers]
        else:
            lines.append(f"{'':>10}  ⋮ {WIDTH * len(numbers):,} bytes left out")
    columns = ["", "part", "offset", "bytes", "what it says"]
    dump = STYLE + '<pre class="rn50-hex">' + "\n".join(lines) + "</pre>"
    head = f'<div style="font-weight:600">{escape(caption)}</div>'
    text = output.table_text(rows, columns, caption)
    output.show(head + dump + output.table_html(rows, columns), text)


def _line(data: bytes, owner: Sequence[int], begin: int, offset: int) -> str:
    """A line of WIDTH bytes as numbers and as letters; a part's number stands where it begins."""
    cells, letters = [], []
    for at in range(begin, begin + WIDTH):
        if at >= len(data):
            cells.append("<i></i>  ")
            continue
        starts = at == 0 or owner[at] != owner[at - 1]
        mark, colour = NUMBERS[owner[at]] if starts else "", owner[at] % len(COLOURS)
        letter = chr(data[at]) if 32 <= data[at] < 127 else "·"
        cells.append(f"<i>{mark}</i><b class='p{colour}'>{data[at]:02x}</b>")
        letters.append(f"<b class='p{colour}'>{escape(letter)}</b>")
    return f"{offset + begin:>11,} {''.join(cells)}  {''.join(letters)}"

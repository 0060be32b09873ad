"""Bytes of a file as a table of hexadecimal numbers in which each part has a number and a colour.

The legend below says what each part is, so that the picture can be read without the colours too.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from workshop import output

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
NUMBERS = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫"
WIDTH = 16

Part = tuple[str, int, str]  # name, length in bytes, meaning


def hexdump(
    data: bytes, parts: Sequence[Part], caption: str = "", offset: int = 0, keep: int = 40
) -> None:
    """Show `data`, which starts at `offset` of its file and consists of `parts` in this order.

    Of a part longer than `keep` bytes only the first lines and the last one are shown. Raises
    ValueError if the lengths of the parts do not add up to the data.
    """
    if sum(length for _, length, _ in parts) != len(data):
        raise ValueError("the parts do not add up to the data")
    owner = [number for number, (_, length, _) in enumerate(parts) for _ in range(length)]
    lines = _lines(data, owner, _rows(parts, keep))
    style = (
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
    head = f'<div style="font-weight:600">{escape(caption)}</div>' if caption else ""
    html = "\n".join(_html_line(offset, line, owner, data) for line in lines)
    rows, begin = [], offset
    for number, (name, length, meaning) in enumerate(parts):
        where = f"{begin:,} – {begin + length - 1:,}" if length > 1 else f"{begin:,}"
        rows.append([NUMBERS[number], name, where if length else "–", length, meaning])
        begin += length
    columns = ["", "part", "offset", "bytes", "what it says"]
    text = "\n".join([caption, *(_text_line(offset, line, data) for line in lines)])
    output.show(
        f'{style}{head}<pre class="rn50-hex">{html}</pre>{output.table_html(rows, columns)}',
        f"{text}\n{output.table_text(rows, columns)}",
    )


def _rows(parts: Sequence[Part], keep: int) -> set[int]:
    """Numbers of the lines of WIDTH bytes that are shown."""
    rows: set[int] = set()
    begin = 0
    for _, length, _ in parts:
        if length:
            last = begin + length - 1
            shown = min(last, begin + keep - 1)
            rows |= set(range(begin // WIDTH, shown // WIDTH + 1)) | {last // WIDTH}
        begin += length
    return rows


def _lines(data: bytes, owner: list[int], rows: set[int]) -> list[tuple[int, int]]:
    """What to print in order: (start, end) of a line, or (start, -end) of bytes left out."""
    lines: list[tuple[int, int]] = []
    row, total = 0, -(-len(data) // WIDTH)
    while row < total:
        begin = row * WIDTH
        if row not in rows and row + 1 in rows:  # one line alone is not worth leaving out
            rows.add(row)
        if row in rows:
            lines.append((begin, min(begin + WIDTH, len(data))))
            row += 1
            continue
        while row < total and row not in rows:
            row += 1
        lines.append((begin, -row * WIDTH))
    return lines


def _left_out(line: tuple[int, int]) -> str:
    return f"{'':>10}  ⋮ {-line[1] - line[0]:,} bytes left out"


def _html_line(offset: int, line: tuple[int, int], owner: list[int], data: bytes) -> str:
    begin, end = line
    if end < 0:
        return escape(_left_out(line))
    cells = []
    for at in range(begin, begin + WIDTH):
        if at >= end:
            cells.append("<i></i>  ")
            continue
        starts = at == 0 or owner[at] != owner[at - 1]
        mark = NUMBERS[owner[at]] if starts else ""
        cells.append(f"<i>{mark}</i><b class='p{owner[at] % len(COLOURS)}'>{data[at]:02x}</b>")
    text = "".join(
        f"<b class='p{owner[at] % len(COLOURS)}'>{escape(_letter(data[at]))}</b>"
        for at in range(begin, end)
    )
    return f"{offset + begin:>11,} {''.join(cells)}  {text}"


def _text_line(offset: int, line: tuple[int, int], data: bytes) -> str:
    begin, end = line
    if end < 0:
        return _left_out(line)
    cells = " ".join(f"{byte:02x}" for byte in data[begin:end])
    text = "".join(map(_letter, data[begin:end]))
    return f"{offset + begin:>11,} {cells:<{3 * WIDTH}} {text}"


def _letter(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 else "·"

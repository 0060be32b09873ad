"""The tables of a benchmark, for people: rates, weak scaling, speed-ups, and what failed."""

from __future__ import annotations

from typing import Any

EQUAL = "weak scaling, equal batch"
BEST = "speed-up, best batches"
HEAD = ("workers", "batch", "img/s", "spread", EQUAL, BEST)


def tables(result: dict[str, Any]) -> str:
    """A table for each metric of a benchmark's file, as text, and why cells failed."""
    parts = [table(result, key) for key in result["metric_keys"]]
    told = {cell: result["env"]["cells"][str(cell[0])][str(cell[1])] for cell in cells(result)}
    failed = [f"n {n}, batch {b}: {c['reason']}" for (n, b), c in told.items() if c["reason"]]
    return "\n\n".join([*parts, "\n".join(failed)] if failed else parts)


def table(result: dict[str, Any], key: str) -> str:
    """One metric: a row a cell.

    Weak scaling is IPS(n) / IPS(1) at the same batch per worker, the reference's. The speed-up of
    the best batches is in the row of each n's best batch: its rate over that of one worker's best.
    """
    rows = [[str(n), str(b), *columns(result, key, n, b)] for n, b in cells(result)]
    return "\n".join([f"{key}, images per second", *aligned([list(HEAD), *rows])])


def cells(result: dict[str, Any]) -> list[tuple[int, int]]:
    return [(int(n), int(b)) for n, row in result["metrics"].items() for b in row]


def columns(result: dict[str, Any], key: str, n: int, b: int) -> list[str]:
    rate = figure(result, key, n, b)
    if rate is None:
        return ["failed", "-", "-", "-"]
    more = result["env"]["cells"][str(n)][str(b)].get(key)
    one, best = figure(result, key, 1, b), best_batch(result, key, n)
    alone = best_batch(result, key, 1)
    return [
        f"{rate:.1f}",
        f"{more['spread'][0]:.1f} - {more['spread'][1]:.1f}" if more else "-",
        f"{rate / one:.2f}" if one else "-",
        f"{best[1] / alone[1]:.2f}" if alone and best and best[0] == b else "-",
    ]


def figure(result: dict[str, Any], key: str, n: int, b: int) -> float | None:
    """A cell's value; None where it failed or is not there."""
    return result["metrics"].get(str(n), {}).get(str(b), {}).get(key)


def best_batch(result: dict[str, Any], key: str, n: int) -> tuple[int, float] | None:
    """The batch with the highest rate for n workers, and the rate; None where all failed."""
    row = result["metrics"].get(str(n), {})
    rates = [(values[key], int(b)) for b, values in row.items() if values.get(key) is not None]
    return max(rates)[::-1] if rates else None


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows of text with columns of equal width, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(t.rjust(w) for t, w in zip(row, widths, strict=True)) for row in rows]

"""Published tables of ResNet-50 v1.5 on a DGX-1 with V100s, for notebooks 02 and 03.

They also say what the rows can and cannot decide about the time that several GPUs lose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workshop.expected import Expected
from workshop.lessons import nb08

GPUS = (1, 4, 8)
PRECISIONS = {"mixed": "FP16", "FP32": "FP32"}  # by the name of `rn50.published`
MANY = 512  # GPUs for which the readings of the same rows are asked


def accuracy_rows(results: Mapping[str, Expected]) -> tuple[list[list[Any]], list[str]]:
    """Return (rows, columns) of the published accuracies: 90 epochs of ImageNet, with hours."""
    names = {"top1": "top-1, %", "hours": "hours"}
    kinds = [(p, kind) for p in ("fp16", "fp32") for kind in names]
    rows: list[list[Any]] = []
    for n in GPUS:
        found = [results[f"published.v100.{n}gpu.{p}.{kind}"].value for p, kind in kinds]
        rows.append(
            [
                n,
                *(
                    f"{value:.3f}" if kind == "top1" else f"{value:.1f}"
                    for value, (_, kind) in zip(found, kinds, strict=True)
                ),
            ]
        )
    return rows, ["GPUs", *(f"{p.upper()}: {names[kind]}" for p, kind in kinds)]


# --- one account of what is lost ------------------------------------------------------------------


def lost_rows() -> tuple[list[list[Any]], list[str]]:
    """Return (rows, columns): milliseconds of a step that 4 and 8 GPUs lose.

    A column holds what was published, and one more for each reading: a single cause that is
    blamed for all of the loss.
    """
    rows = []
    for row in outcomes():
        alone = row.series.batch / row.series.ips[1]
        speeds = [row.published, *(row.predicted[name] for name in nb08.READINGS)]
        lost = [1000 * (row.gpus * row.series.batch / ips - alone) for ips in speeds]
        share = row.published / (row.gpus * row.series.ips[1])
        rows.append([row.gpus, PRECISIONS[row.series.precision], row.published, 100 * share, *lost])
    columns = ["GPUs", "precision", "img/s", "efficiency, %", "ms lost, published"]
    return rows, [*columns, *(f"if all of it were: {name}" for name in nb08.READINGS)]


def account() -> str:
    """Return what the published rows decide, what they leave open, and how much that matters."""
    table = lost_rows()[0]
    rows = {(row[1], row[0]): row[4] for row in table}
    steps = {p: 1000 * s.batch / s.ips[1] for p, s in series().items()}
    fp16, fp32 = (
        [row[5:] for row in table if row[:2] == [8, precision]][0] for precision in ("FP16", "FP32")
    )
    found = efficiencies().values()
    return (
        f"Decided: eight GPUs lose {rows['FP16', 8]:.0f} ms of each step in FP16 and"
        f" {rows['FP32', 8]:.0f} ms in FP32, although a step of one GPU takes"
        f" {steps['FP16']:.0f} ms in the one and {steps['FP32']:.0f} ms in the other. Faster"
        " computing does not shorten what is lost, so that it becomes a larger share.\n"
        "Not decided: why. Each cause alone can be made to explain the row of four GPUs. For the"
        f" row of eight it then gives {min(fp16):.0f} to {max(fp16):.0f} ms in FP16 and"
        f" {min(fp32):.0f} to {max(fp32):.0f} ms in FP32: none of them is right alone, and none"
        " is ruled out as a part.\n"
        f"How much that matters: for {MANY} such GPUs in FP16, eight to a host, the same causes"
        f" predict efficiencies from {min(found):.0f} to {max(found):.0f} %."
    )


def efficiencies(gpus: int = MANY) -> dict[str, float]:
    """Return the efficiency of many GPUs in FP16 by each reading of the DGX-1's rows, in %."""
    return {name: 100 * nb08.efficiency(gpus, name) for name in nb08.READINGS}


def outcomes() -> list[nb08.Outcome]:
    """Return the DGX-1's rows of more than one GPU."""
    return [row for row in nb08.outcomes() if row.series.name == "DGX-1"]


def series() -> dict[str, Any]:
    """Return the DGX-1's series by the document's name of the precision."""
    return {PRECISIONS[row.series.precision]: row.series for row in outcomes()}

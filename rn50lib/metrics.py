"""From sums to metrics: loss, top-1 and top-5 over all workers.

Each worker adds up its loss and its hits; only sums travel, and the division comes last. A mean of
the workers' means would be wrong as soon as one worker holds fewer images than another.
"""

from __future__ import annotations

import numpy as np

from rn50lib.distributed import Comm

SUMS = ("loss", "top1", "top5", "examples")  # what a step adds up, in this order


def metric_sums(sums: np.ndarray, comm: Comm) -> dict[str, float | None]:
    """Loss (nats), top-1 and top-5 (per cent) over all workers, from one worker's sums.

    `sums`, shape (4,), holds the summed loss, the images whose label is the first guess, those
    whose label is among the first five, and the number of images. Without images every metric is
    None.
    """
    (total,) = comm.sum([np.asarray(sums, np.float64)])
    loss, top1, top5, examples = (float(x) for x in total)
    if not examples:
        return {"loss": None, "top1": None, "top5": None}
    return {
        "loss": loss / examples,
        "top1": 100 * top1 / examples,
        "top5": 100 * top5 / examples,
    }

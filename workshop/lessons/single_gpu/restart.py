"""The small run that notebook 02 kills and takes up again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workshop.session import Session


def experiment(session: Session, seed: int) -> tuple[dict[str, Any], int]:
    """(a run of seconds that is long enough to be killed in the middle, its last epoch from 0)."""
    last = session.pick(ci=7, cpu=3)
    small = {"image_shape": 32, "batch_size": 4, "threads": 1, "data_nthreads": 0, "profile": "cpu"}
    settings: dict[str, Any] = small if session.profile == "ci" else {}
    return dict(
        network="tiny", num_epochs=last + 1, no_val=True, model_prefix="model", disp_batches=5,
        seed=seed, **settings,
    ), last  # fmt: skip


def finished(last: int) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a line of progress is the end of epoch `last`."""
    return lambda line: line["phase"] == "epoch" and line["epoch"] == last

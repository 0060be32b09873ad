"""`rn50 run --set timeline=FILE`: Horovod's own timeline, as any JSON reader sees it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support import TINY


@pytest.mark.slow
@pytest.mark.needs("torch", "horovod")
def test_timeline_has_every_gradient_of_every_step(run_cli, tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    done = run_cli(
        *("run", "-n", "2", "--comm", "horovod", *TINY, "--loader", "synthetic", "--no-val"),
        *("--benchmark-iters", "5", "--num-epochs", "1", "--set", f"timeline={file}"),
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    events = json.loads(file.read_text())
    reduced = Counter(event["pid"] for event in events if event.get("name") == "ALLREDUCE")
    assert list(reduced.values()).count(5) == 53  # the parameters of the tiny network, 5 steps

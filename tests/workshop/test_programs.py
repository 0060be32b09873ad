"""Programs that a notebook runs: what they print, and how they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from workshop import programs
from workshop.errors import RunFailed


def test_run_shows_the_last_lines_of_a_failure(tmp_path: Path) -> None:
    (tmp_path / "works.py").write_text("open('out', 'w').write('done')")
    programs.run(["-I", "works.py"], tmp_path)
    assert (tmp_path / "out").read_text() == "done"
    with pytest.raises(RunFailed, match="^python ended with exit status 1") as failed:
        programs.run(["-c", "raise SystemExit('no libcuda.so')"], tmp_path)
    assert "libcuda.so" in failed.value.log and failed.value.log.endswith("device_id=None")
    assert failed.value.__notes__ == [failed.value.log]  # tracebacks and pytest show them


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (["[rank0]: no disk", "E torch/distributed/elastic/api.py] failed"], "[rank0]: no disk"),
        (["[1]<stderr>:no disk", "RuntimeError: Horovod detected", "Exit code: 1"], "[1] no disk"),
        (["E torch/distributed/elastic] no port"], "E torch/distributed/elastic] no port"),
    ],
)  # fmt: skip
def test_failure_has_the_lines_of_ranks_rather_than_of_launchers(
    printed: list[str], shown: str
) -> None:
    assert programs.failure("train.py", 1, printed).log == shown

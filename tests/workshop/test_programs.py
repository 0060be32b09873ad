"""Programs that a notebook runs: what they print, and how they fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from workshop import programs
from workshop.errors import RunFailed


def test_run_shows_the_last_lines_of_a_failure(tmp_path: Path) -> None:
    (tmp_path / "works.py").write_text("open('out', 'w').write('done')")
    programs.run(["-I", "works.py"], "python -I works.py", tmp_path)
    assert (tmp_path / "out").read_text() == "done"
    with pytest.raises(RunFailed, match="^python ended with exit status 1 where 0") as failed:
        programs.run(["-c", "raise SystemExit('no such thing')"], "python -c …", tmp_path)
    assert "no such thing" in failed.value.log


def test_a_silent_program_shows_its_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(0.5); print('awake')")
    monkeypatch.setattr(programs, "QUIET_S", 0.1)
    shown: list[str] = []
    slot = SimpleNamespace(html=lambda html, text: shown.append(text))
    monkeypatch.setattr(programs.output, "Slot", lambda: slot)
    programs.program("slow", folder=tmp_path)
    assert any(text.endswith(" s)") for text in shown)
    assert shown[-1] == "$ python -m slow\nawake"


SAYS = """
import sys
for line in '''%s'''.splitlines():
    print(line, file=sys.stderr)
"""
TENSORFLOW = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795561488.658418   25703 port.cc:153] oneDNN custom operations are on.
2026-11-24 22:00:00.1: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
WARNING:tensorflow:From /a/v2_compat.py:98: disable_resource_variables (from x) is deprecated.
Instructions for updating:
non-resource variables are not supported in the long term
INFO:tensorflow:loss = 1.356328, step = 1
W0000 00:00:1795561488.658418   25703 gpu_device.cc:1] Cannot dlopen some GPU libraries.
E0000 00:00:1795561488.658418   25703 a.cc:2] a real error
WARNING:tensorflow:Your input ran out of data
done"""


def test_run_script_drops_tensorflow_start_up_lines_only(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SAYS % TENSORFLOW)
    assert programs.run_script(tmp_path / "says.py") == TENSORFLOW.splitlines()[6:]

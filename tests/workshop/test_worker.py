"""The process behind a measurement: what it is asked, tells, answers, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rn50lib.errors import UserError
from tests.conftest import clean_environment
from tests.support import full
from workshop import output
from workshop.worker import Worker, ask, pack, unpack


def test_process_without_an_answer_reports_why() -> None:
    with pytest.raises(UserError, match="has ended: .*No module named 'rn50lib.nothing'"):
        ask("rn50lib.nothing:at_all", clean_environment(), "nothing")


def test_process_answers_and_ends_with_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(output.Slot, "line", lambda self, text, part=None: shown.append(text))
    with Worker("tests.workshop.asked:counter", clean_environment(), start=5) as worker:
        worker.wait("starting")
        assert [worker.ask(2, doing="two"), worker.ask(3, doing="three")] == [7, 10]
        process = worker.process
    assert process.poll() is not None
    assert shown[:2] == ["starting", "told before it starts"] and "two" in shown
    with pytest.raises(UserError, match="^no such luck$"):
        ask("tests.workshop.asked:refuse", clean_environment(), "asking")


def test_experiment_survives_packing() -> None:
    config = full(image_shape=48, lr_step_epochs=(1.0, 2.5))
    assert unpack(json.loads(json.dumps(pack(config)))) == config


NOTEBOOK = """
import time
from workshop import output
from workshop.worker import Worker
import os
output.Slot.line = lambda *words: None
worker = Worker("tests.workshop.asked:counter", dict(os.environ), start=1)
worker.wait("starting")
print(worker.process.pid, flush=True)
time.sleep(60)
"""


def test_process_ends_when_its_kernel_is_killed() -> None:
    kernel = subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK], env=clean_environment(), stdout=subprocess.PIPE, text=True
    )
    assert kernel.stdout
    worker = psutil.Process(int(kernel.stdout.readline()))
    os.kill(kernel.pid, signal.SIGKILL)
    kernel.wait()
    deadline = time.monotonic() + 30
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the process that measures is still there"
        time.sleep(0.05)

"""Worker processes: answers, errors, the death of a worker and of the main process."""

import os
import subprocess
import sys
import time

import pytest

from data_prep import processes
from rn50lib.errors import UserError
from tests.conftest import clean_environment
from tests.data_prep.process_tasks import prepare


def test_answers_of_several_workers():
    tasks = [f"task ä {i}" for i in range(40)]
    answers = dict(processes.run(prepare, {"name": "Ω"}, tasks, 3))
    assert sorted(answers) == list(range(40))
    assert [answers[i][:2] for i in range(40)] == [["Ω", task] for task in tasks]
    assert 1 <= len({answer[2] for answer in answers.values()}) <= 3
    assert list(processes.run(prepare, {}, [], 3)) == []


@pytest.mark.parametrize(
    ("task", "kind", "text"),
    [
        ("user error", UserError, "this is wrong: do that"),
        ("full", UserError, "/some/file: No space left on device"),
        ("bug", ZeroDivisionError, None),
    ],
)
def test_errors_reach_the_caller(task, kind, text):
    with pytest.raises(kind, match=text):
        list(processes.run(prepare, {"name": ""}, ["a", task, "b"], 2))


@pytest.mark.parametrize("task", ["die", "exit"])
def test_a_worker_that_dies_is_an_error(task):
    with pytest.raises(UserError, match="a worker process was killed or crashed"):
        list(processes.run(prepare, {"name": ""}, ["a", task, "c"], 1))


def _alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_end_with_the_main_process_however_it_ends():
    code = (
        "import os, signal; from data_prep import processes\n"
        "from tests.data_prep.process_tasks import prepare\n"
        "answers = processes.run(prepare, {'name': ''}, ['a'] * 100, 2)\n"
        "pids = {next(answers)[1][2] for _ in range(20)}\n"
        "print(*pids, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        timeout=60,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids
    deadline = time.monotonic() + 20
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_alive, pids))


def test_workers_end_when_the_caller_stops_early():
    answers = processes.run(prepare, {"name": ""}, ["a"] * 100, 2)
    pid = next(answers)[1][2]
    answers.close()
    assert not os.path.exists(f"/proc/{pid}")

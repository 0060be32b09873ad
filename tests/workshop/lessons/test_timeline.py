"""The parts of a training step, from Horovod's timeline: written by hand, and of a real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rn50lib.errors import UserError
from workshop.lessons.horovod import trace as timeline
from workshop.lessons.horovod.trace import ALLREDUCE, COMPUTE, COPY, NEGOTIATION

START = 1_700_000_000  # the Unix time of the file's zero
MS = 1000  # a timeline counts microseconds


def exchange(tensor: int, asked: int, begin: int, copied: int, reduced: int, end: int) -> list:
    """The events of one tensor, at times in milliseconds: all ranks have it at `begin`, it is in
    the fusion buffer at `copied`, summed at `reduced` and copied out at `end`."""

    def event(kind: str, at: int, name: str = "", **more: Any) -> dict[str, Any]:
        return {
            "ph": kind,
            "ts": at * MS,
            "pid": tensor,
            **({"name": name} if name else {}),
            **more,
        }

    return [
        event("B", asked, "NEGOTIATE_ALLREDUCE"),
        {"ph": "X", "name": "0", "ts": asked * MS, "pid": tensor, "dur": 0},
        event("E", begin),
        event("B", begin, "ALLREDUCE"),
        event("B", begin, "MEMCPY_IN_FUSION_BUFFER"),
        event("E", copied),
        event("B", copied, "GLOO_ALLREDUCE"),
        event("E", reduced),
        event("B", reduced, "MEMCPY_OUT_FUSION_BUFFER"),
        event("E", end),
        event("E", end, args={"dtype": "float32", "shape": "[10, 5]"}),
    ]


def name(tensor: int, word: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": tensor, "args": {"name": word}}


def training_step(at: int) -> list:
    """100 ms: the backward pass hands over the last layer's gradient at 40 ms and the first one's
    at 70 ms, when it ends. The first exchange takes 45-65 ms, the other 75-100 ms."""
    return [
        *exchange(1, at + 40, at + 45, at + 47, at + 60, at + 65),
        *exchange(2, at + 70, at + 75, at + 80, at + 95, at + 100),
    ]


def written(folder: Path, *events: Any) -> Path:
    path = folder / "timeline.json"
    first = {"name": "process_name", "ph": "M", "pid": 0}
    first["args"] = {"start_time_since_epoch_in_micros": START * 1_000_000}
    names = [name(1, "allreduce.gradient/fc.weight"), name(2, "allreduce.gradient/stem.weight")]
    path.write_text(json.dumps([first, *names, *(e for group in events for e in group)]))
    return path


def milliseconds(parts: dict[str, float]) -> dict[str, int]:
    return {part: round(1000 * seconds) for part, seconds in parts.items()}


def test_the_parts_of_a_step(tmp_path: Path) -> None:
    cycle = {"ph": "i", "name": "CYCLE_START", "ts": 1, "s": "g"}
    path = written(tmp_path, [cycle], *(training_step(100 * k) for k in range(5)))
    found = timeline.load(path)
    assert [step.number for step in found] == [1, 2, 3, 4]  # the first has no beginning
    for step in found:
        exposed = {COMPUTE: 70, NEGOTIATION: 5, COPY: 10, ALLREDUCE: 15}
        assert milliseconds(step.parts) == exposed
        assert milliseconds(step.hidden) == {NEGOTIATION: 5, COPY: 7, ALLREDUCE: 13}
        assert [x.bytes for x in step.exchanges] == [200, 200]
        assert [len(group) for group in timeline.groups(step)] == [1, 1]
    mean = timeline.mean_parts(found)
    assert milliseconds(mean) == exposed | {"hidden": 25}


def test_gradients_that_went_together(tmp_path: Path) -> None:
    together = [
        [*exchange(1, at + 40, at + 75, at + 80, at + 95, at + 100),
         *exchange(2, at + 70, at + 75, at + 80, at + 95, at + 100)]
        for at in range(0, 300, 100)
    ]  # fmt: skip
    step = timeline.load(written(tmp_path, *together))[0]
    assert [len(group) for group in timeline.groups(step)] == [2]
    assert milliseconds(step.parts) == {COMPUTE: 70, NEGOTIATION: 5, COPY: 10, ALLREDUCE: 15}
    assert milliseconds(step.hidden) == {NEGOTIATION: 30, COPY: 0, ALLREDUCE: 0}


def test_the_loop_s_own_marks_say_when_it_began_to_wait(tmp_path: Path) -> None:
    path = written(tmp_path, *(training_step(100 * k) for k in range(4)))
    marks = [(START + k / 10 + 0.055, START + k / 10 + 0.1) for k in range(4)]
    lines = "".join(f"{begin:.6f} {end:.6f}\n" for begin, end in marks)
    timeline.waits_path(path).write_text(lines + "1700000000.4")  # the last one was cut off
    found = timeline.load(path)
    assert len(found) == 3
    for step in found:
        assert milliseconds(step.parts) == {COMPUTE: 55, NEGOTIATION: 10, COPY: 15, ALLREDUCE: 20}
        assert milliseconds(step.hidden) == {NEGOTIATION: 5, COPY: 2, ALLREDUCE: 8}


def test_what_is_no_training_step(tmp_path: Path) -> None:
    broadcast = [
        {"ph": "B", "name": "BROADCAST", "ts": 0, "pid": 3},
        {"ph": "E", "ts": 1 * MS, "pid": 3},
    ]
    metrics = exchange(4, 210, 212, 213, 214, 215)  # reduced once, after the second step
    later = [training_step(at) for at in (1200, 1300, 1400, 1500)]  # after a second of validation
    path = written(tmp_path, broadcast, training_step(0), training_step(100), metrics, *later)
    found = timeline.load(path)
    assert [step.number for step in found] == [1, 3, 4, 5]
    assert {round(step.seconds, 6) for step in found} == {0.1}


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    text = written(tmp_path, *(training_step(100 * k) for k in range(6))).read_text()
    whole = timeline.load(tmp_path / "timeline.json")
    path = tmp_path / "cut.json"
    for length in range(len(text) - 1, len(text) - 2000, -97):
        path.write_text(text[:length])
        found = timeline.load(path)
        assert found == whole[: len(found)] and len(found) >= 3


def test_files_that_are_no_timeline(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(UserError, match=r"cannot be read \(No such file"):
        timeline.read(path)
    for text, words in (("", "is not a timeline"), ("{}", "is not a"), ("[]", "no all-reduce")):
        path.write_text(text)
        with pytest.raises(UserError, match=words):
            timeline.read(path)
    with pytest.raises(UserError, match="at least three steps"):
        timeline.mean_parts(timeline.load(written(tmp_path, training_step(0))))


@pytest.mark.slow
@pytest.mark.needs("torch", "horovod")
def test_the_parts_add_up_to_the_step_that_the_loop_measured(run_cli, tmp_path: Path) -> None:
    """A run with two workers: its report knows nothing of the timeline, and they agree."""
    from tests.support import TINY

    file, report = tmp_path / "timeline.json", tmp_path / "report.json"
    done = run_cli(
        *("run", "-n", "2", "--comm", "horovod", *TINY, "--loader", "synthetic", "--no-val"),
        *("--benchmark-iters", "20", "--num-epochs", "2"),
        *("--timeline", file, "--report", report),
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    found = timeline.load(file)
    marks = timeline.read_waits(file)
    assert len(marks) == 40 and len(timeline.steps(timeline.read(file))) == len(found)
    start = timeline.read(file).start
    assert start is not None
    # each wait is the mark's own, but where a busy machine has put the mark beside the step
    own = [any(abs(begin - start - step.wait) < 1e-4 for begin, _ in marks) for step in found]
    assert sum(own) > 0.8 * len(own)
    assert len(found) == 2 * 19  # of each epoch all but the first
    for step in found:
        assert sum(step.parts.values()) == pytest.approx(step.seconds)
        assert min(step.parts.values()) > -1e-9
        assert len(step.exchanges) == 53  # the parameters of the tiny network
    by_epoch = json.loads(report.read_text())["metrics"]["train.time"]
    for seconds, half in zip(by_epoch, (found[:19], found[19:]), strict=True):
        mean = timeline.mean_parts(half)
        assert sum(mean[part] for part in timeline.PARTS) == pytest.approx(seconds, rel=0.1)

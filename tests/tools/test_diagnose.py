"""`rn50 diagnose`: the model of how the parts add up, the sentence, and the verb on real runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rn50.diagnose import changes, measure, model, show
from rn50.diagnose.diagnosis import Diagnosis
from rn50.diagnose.model import COMMUNICATION, COMPUTE, FREE, INPUT, Rates, Sharing
from rn50lib.config import Config
from rn50lib.hardware import Gpu, Machine
from rn50lib.resnet import tiny
from tests.conftest import clean_environment
from tests.support import LAPTOP, TINY, Ended, Photos, full, strict_json

CPU = Sharing(cores=2, loader=2, compute=2)  # both want all cores
PACED = Sharing(cores=2, loader=2, compute=0)  # the step waits, and uses none
WORKSTATION = Machine("a processor", 8, 2**35, "", (Gpu(0, "V100", 2**34, (7, 0), "535", "u"),))
KEYS = {
    "experiment", "caps", "machine", "date", "rates", "stages", "exchange", "flops",
    "bound", "changes", "lesson", "verdict",
}  # fmt: skip


@pytest.mark.parametrize(
    ("loader", "compute", "sharing", "expected"),
    [
        (1000, 100, CPU, 1 / (1 / 1000 + 1 / 100)),  # 1 ms and 10 ms of the same two cores
        (100, 100, CPU, 50),
        (1000, 1442.6, PACED, 1000),
        (2000, 1442.6, PACED, 1442.6),
        (FREE, 100, CPU, 100),
        (FREE, 100, PACED, 100),
        # one core each: they do not get into each other's way
        (300, 200, Sharing(cores=2, loader=1, compute=1), 200),
        # 10 ms of one core and 10 ms of two: 30 ms of cores, on two of them
        (100, 100, Sharing(cores=2, loader=1, compute=2), 1000 / 15),
        # nothing is loaded ahead: one waits for the other
        (1000, 1000, Sharing(cores=2, loader=1, compute=0, ahead=False), 500),
    ],
)
def test_what_two_parts_reach_together(
    loader: float, compute: float, sharing: Sharing, expected: float
) -> None:
    assert model.together(loader, compute, sharing) == pytest.approx(expected)


def test_a_model_that_computes_on_the_cores_it_loads_with() -> None:
    rates = Rates(loader=1000, compute=100, without_exchange=100, both=91)
    bound, text = model.verdict(rates, CPU, [])
    assert bound.part == COMPUTE and bound.gain == pytest.approx(11)
    assert bound.shares == pytest.approx({INPUT: 1 / 11, COMPUTE: 10 / 11, COMMUNICATION: 0})
    assert text.startswith(
        "The model bounds this run: 91 % of an image's time is its arithmetic, 9 %"
    )
    assert "faster device" in text and "Notebook 06" in text


def test_an_input_that_a_fast_device_waits_for() -> None:
    rates = Rates(loader=1000, compute=1442.6, without_exchange=1442.6, both=990)
    dali = model.Change("--loader dali", model.LESSONS[INPUT], 1400)
    bound, text = model.verdict(rates, PACED, [dali])
    assert bound.part == INPUT and bound.gain == pytest.approx(1.4426)
    assert "delivers 1,000 img/s where the step could take 1,443" in text
    assert "waits 31 % of the time" in text
    assert "--loader dali would help most: 1.4 times as fast, 1,400 img/s predicted" in text
    assert text.endswith("notebook 05 (input with DALI) teaches it.")


def test_a_device_that_the_input_waits_for() -> None:
    rates = Rates(loader=3000, compute=1500, without_exchange=1500, both=1490)
    bound, text = model.verdict(rates, PACED, [])
    assert bound.part == COMPUTE and bound.gain == pytest.approx(2)
    assert "the input could deliver 3,000, 2 times as many" in text


def test_workers_that_mostly_exchange() -> None:
    rates = Rates(loader=5000, compute=200, without_exchange=800, both=192)
    bound, text = model.verdict(rates, CPU, [])
    assert bound.part == COMMUNICATION
    assert bound.shares == pytest.approx(
        {INPUT: 0.2 / 5.2, COMPUTE: 1.25 / 5.2, COMMUNICATION: 3.75 / 5.2}
    )
    assert "takes 72 % of an image's time" in text and "3.6 times as fast" in text
    assert "Notebook 03" in text


def test_workers_whose_exchange_costs_little_are_bound_by_the_model() -> None:
    rates = Rates(loader=FREE, compute=180, without_exchange=200, both=180)
    bound, text = model.verdict(rates, CPU, [])
    assert bound.part == COMPUTE
    assert "90 % of an image's time is its arithmetic" in text and "loading" not in text


def test_a_change_that_gains_nothing_is_not_recommended() -> None:
    rates = Rates(loader=1000, compute=100, without_exchange=100, both=91)
    slower = model.Change("--dtype bfloat16", model.LESSONS[COMPUTE], 93)
    assert "bfloat16" not in model.verdict(rates, CPU, [slower])[1]


def test_tensorflows_input_is_another_lesson() -> None:
    rates = Rates(loader=100, compute=1000, without_exchange=1000, both=100)
    assert "Notebook 04" in model.verdict(rates, PACED, [], "tensorflow")[1]


def test_candidates_follow_from_the_bound_and_the_machine() -> None:
    threads = {"threads": 2, "data_nthreads": 2}
    amx = Machine("a processor", 2, 2**33, "amx_bf16", ())
    assert changes.candidates(COMPUTE, full(**threads), amx) == ["--dtype bfloat16"]
    assert changes.candidates(COMPUTE, full(**threads), LAPTOP) == []
    assert changes.candidates(COMPUTE, full(threads=1), LAPTOP) == ["--threads 2"]
    # a V100 has no bfloat16
    assert "--dtype float16" in changes.candidates(COMPUTE, full(**threads), WORKSTATION)
    assert "--dtype bfloat16" not in changes.candidates(COMPUTE, full(**threads), WORKSTATION)
    assert "--data-nthreads 2" in changes.candidates(INPUT, full(data_nthreads=1), LAPTOP)
    assert changes.candidates(COMPUTE, full(step=100.0), amx) == []
    two = full(n=2, comm="ddp", batch_size=8)
    assert "-b 16" in changes.candidates(COMMUNICATION, two, LAPTOP)


def test_what_a_change_touches() -> None:
    one = full()

    def touched(**fields: Any) -> str | None:
        return changes.changed_part(one, full(**fields))

    assert touched() is None
    assert touched(loader="synthetic") == INPUT
    assert touched(dtype="bfloat16") == COMPUTE
    assert touched(batch_size=8) == changes.BOTH


def test_the_largest_batch_is_shared_by_the_workers_of_a_machine() -> None:
    one, two = changes.largest(full(), LAPTOP), changes.largest(full(n=2, comm="ddp"), LAPTOP)
    assert one and two and two < one / 2
    assert changes.largest(full(step=100.0), LAPTOP) is None
    small = full(threads=1)
    assert small.to_network() == tiny(6)


def test_the_edges_of_an_epoch_are_left_out() -> None:
    """Batches that were made ahead come too fast, and so do the last ones."""
    seconds = {1: 0.1, 2: 0.2, 4: 1.2, 6: 2.2, 8: 3.2, 10: 3.3}
    lines = [
        {"phase": "train", "epoch": epoch, "step": step, "seconds": 10 * epoch + at}
        for epoch in (0, 1)
        for step, at in seconds.items()
    ]
    assert measure.steady(lines, 2, 8, batch=16) == pytest.approx([6 * 16 / 3] * 2)
    assert measure.steady(lines, 5, 7, batch=16) == []  # one reading is no distance


@pytest.mark.parametrize(
    ("steps", "epoch", "expected"),
    [(20, 100, (20, 1)), (100, 30, (30, 4)), (8, 8, (8, 1)), (8, 3, (3, 3))],
)
def test_steps_are_spread_over_whole_epochs(steps: int, epoch: int, expected: Any) -> None:
    assert measure.spread(steps, epoch) == expected


def test_the_last_words_of_a_run_that_failed() -> None:
    assert measure.last_line("starting\nerror: --loader dali: not here\nbye") == (
        "--loader dali: not here"
    )
    crash = "error: rank 0 ended with status 1:\nTraceback\n  File x\nValueError: too small\n"
    assert measure.last_line(crash) == "rank 0 ended with status 1: ValueError: too small"
    assert measure.last_line("") == "it said nothing"


def found(rates: Rates, **fields: Any) -> Diagnosis:
    """A diagnosis as it would come out of these rates."""
    bound, text = model.verdict(rates, CPU, [])
    given: dict[str, Any] = {
        "resolved": Config(full(), {}), "sharing": CPU, "rates": rates, "predicted": rates.both,
        "stages": None, "peak": None, "exchange": None,
        "bound": bound, "verdict": text, "changes": [],
    } | fields  # fmt: skip
    return Diagnosis(**given)


def test_the_content_of_the_file_is_json_whatever_was_measured(tmp_path: Path) -> None:
    free = found(Rates(loader=FREE, compute=100, without_exchange=100, both=100))
    held = json.loads(json.dumps(show.content(free), allow_nan=False))
    assert held.keys() == KEYS
    assert held["rates"]["loader"] is None and held["bound"]["part"] == COMPUTE
    assert held["flops"]["per_second"] == pytest.approx(100 * tiny(6).train_flops(32))
    assert held["flops"]["share_of_peak"] is None


def test_the_bars_add_up_to_what_was_measured() -> None:
    stages = {"read": 0.001, "decode": 0.006, "augment": 0.002, "copy": 0.001}
    rates = Rates(loader=500, compute=100, without_exchange=125, both=80)
    bars = dict(show.bar_parts(found(rates, stages=stages)))
    assert bars["loader alone"] == pytest.approx(
        {"read": 0.2, "decode": 1.2, "augment": 0.4, "copy": 0.2}
    )
    assert bars["step alone"] == pytest.approx({"arithmetic": 8, "exchange": 2})
    assert bars["both together"] == pytest.approx(
        {"arithmetic": 8, "exchange": 2, "waiting for input": 2.5}
    )
    faster = dict(
        show.bar_parts(found(Rates(loader=FREE, compute=100, without_exchange=100, both=120)))
    )
    assert sum(faster["both together"].values()) == pytest.approx(1000 / 120)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--change", "--loadr dali"], "did you mean --loader"),
        (["--change", " "], "--change is empty"),
        (["--change"], "expected one argument"),
        (["--change", "-b 0"], "must be at least 1"),
        (["--change", "--seed '"], "No closing quotation"),
        (["--seconds", "0"], "more than 0"),
        (["--json", "."], "--json . cannot be written: it is a folder"),
        (["--output", ".file/a.png"], "--output .file/a.png cannot be written"),
        (["--loader", "dalli"], "invalid choice"),
        (["--model-prefix", "m", "--load-epoch", "3"], "m-symbol.json"),
    ],
)
def test_bad_input(rn50: Callable[..., Ended], flags: list[str], words: str) -> None:
    assert words in rn50("diagnose", *flags).error


def test_a_change_that_is_none(rn50: Callable[..., Ended]) -> None:
    ended = rn50("diagnose", "--loader", "synthetic", "--change", "--profile auto")
    assert "changes nothing" in ended.error


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_fast_device_in_front_of_a_loader(
    run_cli: Callable, tmp_path: Path, photos: Photos
) -> None:
    """The verb on real runs: files, picture and sentence agree."""
    ended = run_cli(
        *("diagnose", *TINY, "--data-root", photos.records, "--step", "paced:100000"),
        *("--change", "--loader synthetic", "--seconds", "0.3"),
        *("--json", "found.json", "-o", "bars.png"),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("The input bounds this run:")
    assert ended.stderr.count("measuring") == 4  # stages, loader, step, both; the change needs none
    assert (tmp_path / "bars.png").stat().st_size > 10_000
    held = strict_json(tmp_path / "found.json")
    assert held.keys() == KEYS
    assert held["bound"]["part"] == INPUT and held["bound"]["gain"] > 1  # how much: the load's
    assert held["verdict"] == ended.stdout.splitlines()[0]
    assert set(held["stages"]) == {"read", "decode", "augment", "copy"}
    assert held["flops"] is held["exchange"] is None
    (change,) = held["changes"]
    assert change["predicted"] == pytest.approx(held["rates"]["compute"])
    assert change["measured"] is None


# --- the large forms ------------------------------------------------------------------------------


def diagnosed(run_cli: Callable, tmp_path: Path, *flags: str | os.PathLike) -> dict[str, Any]:
    """What `rn50 diagnose FLAGS` wrote."""
    ended = run_cli("diagnose", *flags, "--json", "found.json", timeout=900)
    assert ended.returncode == 0, ended.stderr
    return strict_json(tmp_path / "found.json")


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_resnet50_on_a_processor_is_bound_by_the_model(
    run_cli: Callable, tmp_path: Path, roadsigns_small: Any
) -> None:
    held = diagnosed(
        run_cli, tmp_path, "--data-root", roadsigns_small.records, "--image-shape", "64", "-b", "8",
    )  # fmt: skip
    assert held["bound"]["part"] == COMPUTE
    assert "06" in held["lesson"]
    assert held["flops"]["share_of_peak"] < 1


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_a_v100_in_front_of_a_processor_is_bound_by_the_input(
    run_cli: Callable, tmp_path: Path, roadsigns_small: Any
) -> None:
    held = diagnosed(
        run_cli, tmp_path, "--data-root", roadsigns_small.records, "--image-shape", "224",
        "-b", "8", "--step", "paced:10263.2",
    )  # fmt: skip
    assert held["bound"]["part"] == INPUT
    assert "05" in held["lesson"]


@pytest.mark.acceptance
@pytest.mark.needs("torch", "horovod")
@pytest.mark.parametrize("cycle", [None, 200])
def test_two_workers_with_little_to_compute_are_bound_by_communication(
    run_cli: Callable, tmp_path: Path, cycle: int | None
) -> None:
    """As it is, on a machine that does nothing else; and where Horovod looks only five times a
    second for gradients that are ready, on any."""
    parts = []
    for _ in range(3):
        held = diagnosed(
            run_cli, tmp_path, "--loader", "synthetic", "--image-shape", "32", "-b", "2",
            *("-n", "2", "--dtype", "float32", "--network", "tiny"),
            *(("--cycle-ms", str(cycle)) if cycle else ()),
        )  # fmt: skip
        parts.append(held["bound"]["part"])
        if parts[-1] == COMMUNICATION:
            break
    assert parts[-1] == COMMUNICATION, parts
    assert "03" in held["lesson"]
    assert held["exchange"]["bytes"] == 4 * tiny(1000).num_parameters
    assert 0 < held["exchange"]["exchange_s"] < held["exchange"]["step_s"]


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_decoding_a_photograph_takes_longest(
    run_cli: Callable, tmp_path: Path, roadsigns_small: Any
) -> None:
    held = diagnosed(
        run_cli, tmp_path, "--data-root", roadsigns_small.records, "--step", "paced:100000",
        *("--image-shape", "64", "-b", "8", "--seconds", "1", "--change", "--loader synthetic"),
    )  # fmt: skip
    assert held["stages"].keys() == {"read", "decode", "augment", "copy"}
    assert max(held["stages"], key=lambda name: held["stages"][name]) == "decode"


@pytest.mark.acceptance
@pytest.mark.needs("torch")
@pytest.mark.parametrize("change", ["--loader synthetic", "--dtype bfloat16", "-b 16"])
def test_a_prediction_is_within_a_fifth(
    run_cli: Callable, tmp_path: Path, roadsigns_small: Any, change: str
) -> None:
    """On a machine that does nothing else; three tries, as one moment may differ from the next."""
    errors = []
    for _ in range(3):
        held = diagnosed(
            run_cli, tmp_path, "--data-root", roadsigns_small.records, "--image-shape", "64",
            *("-b", "8", "--dtype", "float32", "--change", change, "--verify"),
        )  # fmt: skip
        errors.append(abs(held["changes"][0]["error"]))
        if errors[-1] <= 0.2:
            return
    raise AssertionError(errors)


@pytest.mark.acceptance
@pytest.mark.needs("torch")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_diagnosis_that_is_ended_leaves_nothing_running(
    tmp_path: Path, photos: Photos, number: signal.Signals
) -> None:
    env = clean_environment(RN50_RUNS=str(tmp_path / "runs"))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rn50", "diagnose", *TINY, "--seconds", "60"),
            *("--data-root", str(photos.records)),
        ],
        env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        # a job in the background of a shell is given Ctrl-C as a signal to ignore
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stderr
    for line in process.stderr:
        if "the step alone" in line:
            break
    time.sleep(5)
    process.send_signal(number)
    status = process.wait(60)
    assert status == (130 if number == signal.SIGINT else -number)
    deadline = time.monotonic() + 30
    while left := mine(str(tmp_path)):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def mine(folder: str) -> list[str]:
    """The command lines of the processes whose runs stand in a folder."""
    told = []
    for process in psutil.process_iter():
        try:
            if folder in process.environ().get("RN50_RUNS", ""):
                told.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return told

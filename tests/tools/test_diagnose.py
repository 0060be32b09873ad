"""`rn50 diagnose`: how the parts add up, what is advised, and the verb on real runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rn50.diagnose import command, model
from rn50.diagnose.command import candidates
from rn50.diagnose.measure import steady_rate
from rn50.diagnose.model import COMMUNICATION, COMPUTE, FREE, INPUT, SLOWER, SUM, Rates
from rn50lib.errors import UserError
from rn50lib.hardware import Gpu, Machine
from tests.support import LAPTOP, TINY, Ended, Photos, full

WORKSTATION = Machine("a processor", 8, 2**35, "", (Gpu(0, "V100", 2**34, (7, 0), "535", "u"),))


@pytest.mark.parametrize(
    ("loader", "compute", "formula", "expected"),
    [
        (1000, 100, SUM, 1000 / 11),  # 1 ms and 10 ms of the same cores
        (FREE, 100, SUM, 100),
        (1000, 1442.6, SLOWER, 1000),
        (2000, 1442.6, SLOWER, 1442.6),
    ],
)
def test_rate_of_two_parts_together(loader, compute, formula, expected) -> None:
    assert model.together(loader, compute, formula) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rates", "part", "shares"),
    [
        (Rates(1000, 100, 100, 91), COMPUTE, (1 / 11, 10 / 11, 0)),
        (Rates(1000, 1442.6, 1442.6, 990, SLOWER), INPUT, (0.59061, 0.40939, 0)),
        (Rates(3000, 1500, 1500, 1490, SLOWER), COMPUTE, (1 / 3, 2 / 3, 0)),
        (Rates(5000, 200, 800, 192), COMMUNICATION, (0.03846, 0.24038, 0.72115)),
        (Rates(FREE, 180, 200, 180), COMPUTE, (0, 0.9, 0.1)),
    ],
)  # fmt: skip
def test_bottleneck_of_a_run(rates: Rates, part: str, shares: Any) -> None:
    bound = model.find_bound(rates)
    assert bound.part == part
    assert list(bound.shares.values()) == pytest.approx(shares, abs=1e-4)


def test_verdict_recommends_the_largest_gain() -> None:
    rates = Rates(1000, 1442.6, 1442.6, 990, SLOWER)
    bound = model.find_bound(rates)
    dali = model.Change("--loader dali", model.lesson(INPUT, "torch"), 1400)
    text = model.verdict(rates, bound, [dali])
    assert "--loader dali" in text and "1,400" in text and "notebook 05" in text
    useless = model.Change("--dtype bfloat16", model.lesson(COMPUTE, "torch"), 991)
    assert "bfloat16" not in model.verdict(rates, bound, [useless])
    assert "--loader dali would help most" in model.verdict(rates, bound, [useless, dali, useless])
    slow = Rates(1000, 1442.6, 1442.6, 850, SLOWER)  # a model that promises too much is no gain
    assert "bfloat16" not in model.verdict(slow, model.find_bound(slow), [useless])
    assert "notebook 04" in model.verdict(rates, bound, [], "tensorflow")


def test_parts_that_do_not_add_up_are_no_verdict() -> None:
    """The measured 123 images/s are half of what the parts promise."""
    rates = Rates(646, 375, 375, 123)
    change = model.Change("--loader dali", model.lesson(INPUT, "torch"), 400)
    text = model.verdict(rates, model.find_bound(rates), [change])
    assert "together 123. Do not rely on this: 237 would be expected" in text
    assert "dali" not in text  # 400 over a speed that is doubtful


def test_candidates_follow_from_the_bound_and_the_machine() -> None:
    threads = {"threads": 2, "data_nthreads": 2}
    amx = Machine("a processor", 2, 2**33, "amx_bf16", ())
    assert candidates(COMPUTE, full(**threads), amx) == ["--dtype bfloat16"]
    assert candidates(COMPUTE, full(**threads), LAPTOP) == []
    assert candidates(COMPUTE, full(threads=1), LAPTOP) == ["--threads 2"]
    assert "--dtype float16" in candidates(COMPUTE, full(**threads), WORKSTATION)
    assert "--data-nthreads 2" in candidates(INPUT, full(data_nthreads=1), LAPTOP)
    assert candidates(COMPUTE, full(step=100.0), amx) == []
    assert "-b 16" in candidates(COMMUNICATION, full(n=2, comm="ddp", batch_size=8), LAPTOP)


def test_the_edges_of_an_epoch_are_left_out(tmp_path: Path) -> None:
    """Batches prepared in advance arrive too fast, and so do the last ones."""
    seconds = {2: 0.1, 4: 0.2, 6: 1.2, 8: 2.2, 10: 2.3, 12: 2.4}
    lines = [
        {"phase": "train", "epoch": epoch, "step": step, "steps": 12, "seconds": 10 * epoch + at}
        for epoch in (0, 1)
        for step, at in seconds.items()
    ]
    (tmp_path / "progress.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = full(loader="native", batch_size=16, data_nthreads=1)
    assert steady_rate(tmp_path, config, 1.0) == pytest.approx(4 * 16 / 2)
    assert steady_rate(tmp_path, config, 60.0) == 0
    two = full(loader="native", batch_size=16, data_nthreads=1, n=2, comm="ddp")
    assert steady_rate(tmp_path, two, 1.0) == pytest.approx(2 * 4 * 16 / 2)  # of both workers


@pytest.mark.parametrize(("machine", "how"), [(LAPTOP, SUM), (WORKSTATION, SLOWER)])
def test_parts_share_the_processor_unless_there_is_a_gpu(
    machine: Machine, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "machine", lambda: machine)
    assert command.formula(full()) == how
    assert command.formula(full(step=100.0)) == SLOWER  # it is simulated


def test_epochs_of_one_step_cannot_be_timed(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_text('{"phase": "epoch", "train.total_ips": null}\n')
    with pytest.raises(UserError, match="one iteration, which is not timed: use a smaller -b"):
        steady_rate(tmp_path, full(loader="native"), 1.0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--change", "--loadr dali"], "did you mean --loader"),
        (["--change", " "], "must be a text that is not empty"),
        (["--change"], "expected one argument"),
        (["--change", "-b 0"], "must be at least 1"),
        (["--change", "--seed '"], "No closing quotation"),
        (["--seconds", "0"], "more than 0"),
        (["--loader", "dalli"], "must be one of native"),
        (["--model-prefix", "m", "--load-epoch", "3"], "m-symbol.json"),
    ],
)
def test_bad_input(rn50: Callable[..., Ended], flags: list[str], words: str) -> None:
    assert words in rn50("diagnose", *flags).error


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_fast_device_in_front_of_a_loader(run_cli: Callable, photos: Photos) -> None:
    """Run the verb for real: the sentence and the rows agree."""
    ended = run_cli(
        *("diagnose", *TINY, "--data-root", photos.records, "--set", "step=100000"),
        *("--change", "--loader synthetic", "--seconds", "0.3"),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("measuring") == 3  # loader, step, both; the change needs none
    verdict, *rows = ended.stdout.splitlines()
    assert verdict.startswith("The input bounds this run (")
    step = re.search(r"the step alone reaches ([\d,]+) img/s", verdict)
    change = re.search(r"with --loader synthetic: ([\d,.]+) img/s predicted", rows[-1])
    assert step and change
    of_step, of_change = (float(found[1].replace(",", "")) for found in (step, change))
    assert of_change == pytest.approx(of_step, abs=1)  # without a loader, the step is left
    assert "exchange" not in ended.stdout


# --- the large forms ------------------------------------------------------------------------------


@pytest.mark.acceptance
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("flags", "part", "lesson"),
    [
        ("--image-shape 64", COMPUTE, "06"),
        ("--image-shape 224 --set step=10263.2", INPUT, "05"),  # eight V100s
    ],
)
def test_bottleneck_of_resnet50(
    run_cli: Callable, roadsigns_small: Any, flags: str, part: str, lesson: str
) -> None:
    data = ("--data-root", roadsigns_small.records, "-b", "8")
    ended = run_cli("diagnose", *data, *flags.split(), timeout=900)
    assert ended.returncode == 0, ended.stderr
    verdict = ended.stdout.splitlines()[0]
    assert verdict.startswith(f"{model.NAMES[part]} bounds this run")
    # the parts are measured one after the other; a load that changes meanwhile is reported instead
    assert lesson in verdict or "Do not rely on this" in verdict

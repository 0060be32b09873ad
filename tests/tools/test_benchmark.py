"""`rn50 benchmark` through its command line: the file, the cells that fail, and how it ends.

The model is a wait of a known length, so the rates have an upper bound that no machine can pass.
"""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rn50 import launch
from tests.conftest import clean_environment
from tests.support import Ended, strict_json

PATIENCE = 120.0  # seconds for what takes one or two when the machine is idle
RATE = 2000.0  # images per second that the wait stands for
SMALL = ("--loader", "synthetic", "--network", "tiny", "--image-shape", "32", "--threads", "1")
Run = Callable[..., Ended]


def sweep(folder: Path, *flags: str) -> subprocess.Popen[str]:
    """Start a benchmark in a process group of its own, as a terminal would."""
    return subprocess.Popen(
        [*launch.program("benchmark"), *SMALL, "-o", "out.json", *flags],
        cwd=folder, env=clean_environment(RN50_RUNS=str(folder / "runs")), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
        # a shell starts its background jobs with Ctrl-C ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def read(path: Path) -> dict[tuple[int, int, str], float | None]:
    """What any reader of the reference's format does: the figures by (n, batch, key)."""
    told = strict_json(path)
    assert list(told)[:5] == ["model", "ngpus", "bs", "metric_keys", "metrics"]
    assert list(told)[5:] == ["env"]
    assert list(told["metrics"]) == [str(n) for n in told["ngpus"]]
    figures = {}
    for n in told["ngpus"]:
        assert list(told["metrics"][str(n)]) == [str(b) for b in told["bs"]]
        for b in told["bs"]:
            assert list(told["metrics"][str(n)][str(b)]) == told["metric_keys"]
            for key in told["metric_keys"]:
                figures[n, b, key] = told["metrics"][str(n)][str(b)][key]
    return figures


# --- the file -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """Two cells; a training epoch of the second has a single iteration, which is not timed."""
    folder = tmp_path_factory.mktemp("swept")
    process = sweep(folder, "-n", "1", "-b", "4,24", "-i", "6", "-e", "3", "-w", "1",
                    "--num-examples", "24", "--step", f"paced:{RATE:g}")  # fmt: skip
    out, err = process.communicate(timeout=PATIENCE)
    return folder / "out.json", Ended(process.returncode, out, err)


def test_the_figures_are_harmonic_means_of_the_epochs_that_are_left(swept) -> None:
    figures, cells = read(swept[0]), strict_json(swept[0])["env"]["cells"]
    assert strict_json(swept[0])["metric_keys"] == ["train.total_ips", "val.total_ips"]
    for b, keys in (("4", ("train.total_ips", "val.total_ips")), ("24", ("val.total_ips",))):
        epochs = strict_json(Path(cells["1"][b]["report"]))["metrics"]
        for key in keys:
            assert len(epochs[key]) == 3
            mean = statistics.harmonic_mean(epochs[key][1:])
            assert figures[1, int(b), key] == pytest.approx(mean, rel=1e-12)
            assert 0 < mean <= RATE


def test_an_epoch_that_was_not_timed_is_null_and_says_why(swept) -> None:
    file, ended = swept
    assert read(file)[1, 24, "train.total_ips"] is None
    cell = strict_json(file)["env"]["cells"]["1"]["24"]
    assert cell["reason"].endswith("give a larger -i, a smaller -b or more images")
    assert "train.total_ips" not in cell
    assert ended.status == 1 and "n 1, batch 24: an epoch has one iteration" in ended.err


def test_what_else_is_told_of_a_cell(swept) -> None:
    file, _ = swept
    told = strict_json(file)["env"]
    cell = told["cells"]["1"]["4"]
    assert cell["reason"] is None
    assert told["warm_up"]["untimed_iterations"] > 0 and told["warm_up"]["epochs_left_out"] == 1
    for key in ("train.total_ips", "val.total_ips"):
        detail = cell[key]
        assert detail["n"] == 2 * 5  # two epochs of six iterations, the first of each not timed
        low, high = detail["spread"]
        assert 0 < low <= detail["median"] <= high
        # a single iteration may begin late and end in time
        assert detail["median"] < 2 * RATE and detail["compute_ips"] < 2 * RATE
        assert detail["data_ips"] > RATE
        latencies = [detail["latency_ms"][p] for p in ("50", "90", "95", "99", "100")]
        assert latencies == sorted(latencies) and latencies[0] == pytest.approx(
            4000 / detail["median"]
        )
        assert len(detail["epochs"]) == 2


def test_the_workers_stay_for_all_batches(swept) -> None:
    cells = strict_json(swept[0])["env"]["cells"]["1"]
    folders = [Path(cells[b]["report"]).parent for b in ("4", "24")]
    listed = strict_json(folders[0] / "cells.json")  # one for all workers
    assert [cell["folder"] for cell in listed] == list(map(str, folders))
    assert not (folders[1] / "cells.json").exists()


def test_a_table_for_each_key_on_stderr(swept) -> None:
    file, ended = swept
    assert ended.out == "out.json\n"
    for key in ("train.total_ips", "val.total_ips"):
        assert f"{key}, images per second" in ended.err
    rows = [line.split() for line in ended.err.splitlines()]
    assert ["1", "4", f"{read(file)[1, 4, 'train.total_ips']:,.1f}"] in rows
    assert ["1", "24", "failed"] in rows
    low, high = strict_json(file)["env"]["cells"]["1"]["4"]["train.total_ips"]["spread"]
    assert f"n 1, batch 4, train.total_ips: {low:,.1f} to {high:,.1f}" in ended.err


# --- what fails -----------------------------------------------------------------------------------


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A benchmark whose processes are all ended, whatever becomes of the test."""
    running: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> subprocess.Popen[str]:
        running.append(sweep(tmp_path, *flags))
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()
            process.kill()


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end and process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


@pytest.mark.slow
def test_a_killed_worker_leaves_null_and_the_rest_goes_on(started, tmp_path: Path) -> None:
    """It is killed after its first epochs: their report lies there, and nobody may read it."""
    for stale in ("out.json", "out.json-1,100"):
        (tmp_path / stale).write_text('{"metrics": {"train.total_ips": [1.0]}}')
    process = started("-n", "1,999", "-b", "100,1", "-i", "3", "-e", "50", "--step", "paced:1000",
                      "--comm", "ddp")  # fmt: skip
    wait_for(lambda: list(tmp_path.glob("runs/*/n1-b100/report.json")), process)
    (worker,) = psutil.Process(process.pid).children()
    worker.send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    figures = read(tmp_path / "out.json")
    assert figures[1, 100, "train.total_ips"] is None and figures[1, 100, "val.total_ips"] is None
    assert 0 < figures[1, 1, "train.total_ips"] <= 1000
    assert figures[999, 1, "train.total_ips"] is None
    cells = strict_json(tmp_path / "out.json")["env"]["cells"]
    assert "signal 9 (SIGKILL)" in cells["1"]["100"]["reason"]
    assert "-n 999: this machine has" in cells["999"]["1"]["reason"]
    assert cells["1"]["1"]["reason"] is None
    assert "n 1, batch 100: rank 0 was killed by signal 9" in err


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_leaves_nobody_behind(started, tmp_path: Path) -> None:
    process = started("-n", "1", "-b", "1,100", "-i", "3", "-e", "50", "--step", "paced:1000")
    wait_for(lambda: list(tmp_path.glob("runs/*/n1-b100/report.json")), process)
    below = psutil.Process(process.pid).children(recursive=True)
    psutil.Process(process.pid).send_signal(signal.SIGINT)
    for each in below:
        each.send_signal(signal.SIGINT)  # a terminal sends it to all
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "Traceback" not in err
    assert not [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    figures = read(tmp_path / "out.json")
    assert 0 < figures[1, 1, "val.total_ips"] <= 1000
    assert figures[1, 100, "val.total_ips"] is None
    assert strict_json(tmp_path / "out.json")["env"]["cells"]["1"]["100"]["reason"] == "interrupted"


@pytest.mark.acceptance  # four starts of PyTorch; tests/parity has one such group in `make test`
@pytest.mark.needs("torch")
def test_two_workers_stay_for_both_batches_and_one_s_error_is_the_cell_s(
    photos, tmp_path: Path
) -> None:
    """48 images are too few for the second batch; new workers measure the third."""
    flags = ["--loader", "native", "--data-root", str(photos.root), "--data-nthreads", "0"]
    process = sweep(tmp_path, *flags, "-n", "2", "-b", "4,32,8", "-i", "3", "--comm", "ddp",
                    "--no-val", "--dtype", "float32")  # fmt: skip
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    figures = read(tmp_path / "out.json")
    assert [key for key in figures if figures[key] is None] == [(2, 32, "train.total_ips")]
    reason = strict_json(tmp_path / "out.json")["env"]["cells"]["2"]["32"]["reason"]
    assert reason.startswith("--batch-size 32: one step takes 64 images")


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "problem", "remedy"),
    [
        ("-n 1 -b 4", "-o", "required"),
        ("-o a.json -b 4,x", "'4,x'", "must be a whole number"),
        ("-o a.json -n 0", "-n", "must be at least 1"),
        ("-o a.json -e 2 -w 2", "-w 2 leaves nothing of -e 2", "larger -e"),
        ("-o a.json --batchsize 4", "--batchsize", "did you mean --batch-size?"),
        ("-o a.json -b 4 --report r.json", "--report", "leave it out"),
        ("-o a.json --preset BENCHMARK_FP8", "BENCHMARK_FP8", "BENCHMARK_FP16"),
        ("-o a.json --preset SCORE_FP16", "SCORE_FP16", "for `rn50 score`"),
        ("-o . -n 1 -b 4", "-o .", "name a file"),
        ("-o .file/a.json -n 1 -b 4", "-o .file/a.json", "cannot be written"),
        ("-o a.json -n 998,999 -b 4 --comm ddp --loader synthetic", "-n 998", "use -n"),
    ],
)
def test_a_sweep_that_makes_no_sense(rn50: Run, argv: str, problem: str, remedy: str) -> None:
    line = rn50("benchmark", *argv.split()).error
    assert problem in line and remedy in line
    assert not Path("a.json").exists()


def test_the_preset_of_another_verb(rn50: Run) -> None:
    assert "for `rn50 benchmark`" in rn50("run", "--preset", "BENCHMARK_FP16").error


def test_a_dry_run_starts_nothing_and_writes_nothing(rn50: Run) -> None:
    shown = rn50("benchmark", *SMALL, "-n", "1,2", "-b", "4,8", "-o", "a.json", "--comm", "ddp",
                 "--recipe", "reference", "--dry-run")  # fmt: skip
    assert shown.status == 0
    found = re.findall(r"^n (\d), batch (\d):\n(.*)\nglobal batch (.*)$", shown.out, re.M)
    assert [(n, b, rest) for n, b, _, rest in found] == [
        ("1", "4", "1 x 4 = 4; learning rate 0.1 x 4 / 256 = 0.0015625"),
        ("1", "8", "1 x 8 = 8; learning rate 0.1 x 8 / 256 = 0.003125"),
        ("2", "4", "2 x 4 = 8; learning rate 0.1 x 8 / 256 = 0.003125"),
        ("2", "8", "2 x 8 = 16; learning rate 0.1 x 16 / 256 = 0.00625"),
    ]
    assert "torch.distributed.run" in found[2][2] and "torch.distributed.run" not in found[0][2]
    assert sorted(path.name for path in Path().iterdir()) == [".file"]


def test_help_is_fast_enough_to_need_no_framework() -> None:
    code = (
        "import sys\nfrom rn50.cli import main\n"
        "try: main(['benchmark', '--help'])\nexcept SystemExit as e: assert not e.code\n"
        "print([n for n in ('torch', 'tensorflow', 'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert "--benchmark-iters" in done.stdout

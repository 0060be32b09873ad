"""`rn50 benchmark` through its command line: the file, the cells that fail, and how it ends.

The model is a wait of a known length, so the rates have an upper bound that no machine can pass.
"""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rn50 import launch
from rn50.benchmark import Cell, rates
from tests.conftest import clean_environment
from tests.support import Ended, strict_json

PATIENCE = 120.0  # seconds for what takes one or two when the machine is idle
RATE = 2000.0  # images per second of the paced step
SMALL = ("--loader", "synthetic", "--network", "tiny", "--image-shape", "32", "--threads", "1")
Run = Callable[..., Ended]


def sweep(folder: Path, *flags: str) -> subprocess.Popen[str]:
    """Start a benchmark in its own process group, as a terminal would."""
    return subprocess.Popen(
        [*launch.program("benchmark"), *SMALL, "-o", "out.json", *flags],
        cwd=folder, env=clean_environment(RN50_RUNS=str(folder / "runs")), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
        # a shell starts its background jobs with Ctrl-C ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def read(path: Path) -> dict[tuple[int, int, str], float | None]:
    """Return the figures by (n, batch, key), as any reader of the reference's format does."""
    content = strict_json(path)
    assert list(content) == ["model", "ngpus", "bs", "metric_keys", "metrics", "env"]
    return {
        (n, b, key): content["metrics"][str(n)][str(b)][key]
        for n in content["ngpus"]
        for b in content["bs"]
        for key in content["metric_keys"]
    }


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """Two cells; a training epoch of the second has a single iteration, which is not timed."""
    folder = tmp_path_factory.mktemp("swept")
    process = sweep(folder, "-n", "1", "-b", "4,24", "-i", "6", "-e", "3", "-w", "1",
                    "--num-examples", "24", "--set", f"step={RATE:g}")  # fmt: skip
    out, err = process.communicate(timeout=PATIENCE)
    return folder / "out.json", Ended(process.returncode, out, err)


def test_figures_are_harmonic_means_without_the_warm_up(swept) -> None:
    figures, cells = read(swept[0]), strict_json(swept[0])["env"]["cells"]
    assert strict_json(swept[0])["metric_keys"] == ["train.total_ips", "val.total_ips"]
    for b, keys in (("4", ("train.total_ips", "val.total_ips")), ("24", ("val.total_ips",))):
        epochs = strict_json(Path(cells["1"][b]["report"]))["metrics"]
        for key in keys:
            assert len(epochs[key]) == 3
            mean = statistics.harmonic_mean(epochs[key][1:])
            assert figures[1, int(b), key] == pytest.approx(mean, rel=1e-12)
            assert 0 < mean <= RATE


def test_an_epoch_that_was_not_timed_is_null_with_a_reason(swept) -> None:
    file, ended = swept
    assert read(file)[1, 24, "train.total_ips"] is None
    cell = strict_json(file)["env"]["cells"]["1"]["24"]
    assert "larger -i" in cell["reason"] and "train.total_ips" not in cell
    assert ended.status == 1 and "n 1, batch 24: an epoch has one iteration" in ended.err


def test_one_epoch_that_was_not_timed_leaves_no_figure() -> None:
    key = "train.total_ips"
    cell = Cell(1, 4, report={"metrics": {key: [100.0, None, 90.0]}})
    assert (rates(cell, key, 0), rates(cell, key, 2)) == (None, [90.0])


def test_a_cell_holds_the_rate_of_each_epoch(swept) -> None:
    env = strict_json(swept[0])["env"]
    cell = env["cells"]["1"]["4"]
    assert cell["reason"] is None and env["warm_up"]["epochs_left_out"] == 1
    for key in ("train.total_ips", "val.total_ips"):
        assert len(cell[key]["epochs"]) == 2
    assert env["axes"]["loader"]["value"] == "synthetic" and "dtype" in env["axes"]


def test_a_table_for_each_key_on_stderr(swept) -> None:
    file, ended = swept
    assert ended.out == "out.json\n"
    for key in ("train.total_ips", "val.total_ips"):
        assert f"{key}, images per second" in ended.err
    rows = [line.split() for line in ended.err.splitlines()]
    assert ["1", "4", f"{read(file)[1, 4, 'train.total_ips']:,.1f}"] in rows
    assert ["1", "24", "failed"] in rows


# --- failures -------------------------------------------------------------------------------------


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a benchmark in its first cell; end its processes with the test."""
    running: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> subprocess.Popen[str]:
        process = sweep(tmp_path, "-i", "3", "-e", "50", "--set", "step=1000", *flags)
        running.append(process)
        end = time.monotonic() + PATIENCE
        while not list(tmp_path.glob("runs/*/n1-b100/report.json")):
            assert time.monotonic() < end and process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()
            process.kill()


@pytest.mark.slow
def test_a_killed_worker_leaves_null_and_the_rest_continues(started, tmp_path: Path) -> None:
    """It is killed after its first epochs; their report exists, but must not be used."""
    (tmp_path / "out.json").write_text('{"metric_keys": ["train.total_ips"]}')
    process = started("-n", "1,999", "-b", "100,1", "--comm", "ddp")
    (worker,) = psutil.Process(process.pid).children()
    worker.send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    figures = read(tmp_path / "out.json")
    assert figures[1, 100, "train.total_ips"] is None and figures[1, 100, "val.total_ips"] is None
    assert 0 < figures[1, 1, "train.total_ips"] <= 1000
    assert figures[999, 1, "train.total_ips"] is None
    cells = strict_json(tmp_path / "out.json")["env"]["cells"]
    assert "signal 9 (SIGKILL)" in cells["1"]["100"]["reason"]
    assert "-n 999" in cells["999"]["1"]["reason"] and cells["1"]["1"]["reason"] is None


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_leaves_no_process(started, tmp_path: Path) -> None:
    process = started("-n", "1", "-b", "1,100")
    below = psutil.Process(process.pid).children(recursive=True)
    for each in (psutil.Process(process.pid), *below):
        each.send_signal(signal.SIGINT)  # a terminal sends it to all
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "Traceback" not in err
    assert not [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    figures = read(tmp_path / "out.json")
    assert 0 < figures[1, 1, "val.total_ips"] <= 1000
    assert figures[1, 100, "val.total_ips"] is None


@pytest.mark.parametrize(
    ("argv", "problem", "remedy"),
    [
        ("-n 1 -b 4", "-o", "required"),
        ("-o a.json -b 4,x", "'4,x'", "must be a whole number"),
        ("-o a.json -n 0", "-n", "must be at least 1"),
        ("-o a.json -e 2 -w 2", "-w 2 leaves nothing of -e 2", "larger -e"),
        ("-o a.json --batchsize 4", "--batchsize", "did you mean --batch-size?"),
        ("-o a.json -b 4 --report r.json", "--report", "omit it"),
        ("-o a.json --preset BENCHMARK_FP8", "BENCHMARK_FP8", "BENCHMARK_FP16"),
        ("-o - -n 1 -b 4", "-o -", "use /dev/stdout"),
        ("-o .file/a.json -n 1 -b 4", "-o .file/a.json", "cannot be written"),
        ("-o a.json -n 998,999 -b 4 --comm ddp --loader synthetic", "-n 998", "use -n"),
    ],
)
def test_errors_name_the_flag_and_the_remedy(rn50: Run, argv: str, problem: str, remedy: str):
    line = rn50("benchmark", *argv.split()).error
    assert problem in line and remedy in line
    assert not Path("a.json").exists()


def test_a_busy_machine_is_named(rn50: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1999.0, 0, 0))
    ended = rn50("benchmark", *SMALL, *"-n 1 -b 4 -i 2 --only-inference -o a.json".split())
    assert ended.status == 0 and "load 1999.0 on " in ended.err


def test_a_pipe_gets_the_json_alone(tmp_path: Path) -> None:
    process = sweep(tmp_path, *"-n 1 -b 4 -i 2 --only-inference -o /dev/stdout".split())
    out, err = process.communicate(timeout=PATIENCE)
    assert json.loads(out)["bs"] == [4] and process.returncode == 0, err


def test_a_dry_run_starts_nothing_and_writes_nothing(rn50: Run) -> None:
    shown = rn50("benchmark", *SMALL, "-n", "1,2", "-b", "4,8", "-o", "a.json", "--comm", "ddp",
                 "--recipe", "reference", "--dry-run")  # fmt: skip
    assert shown.status == 0
    found = re.findall(r"^n (\d), batch (\d):\n(.*)\nglobal batch (.*);", shown.out, re.M)
    sums = ["1 x 4 = 4", "1 x 8 = 8", "2 x 4 = 8", "2 x 8 = 16"]
    assert [row[3] for row in found] == sums
    assert ["torch.distributed.run" in row[2] for row in found] == [False, False, True, True]
    assert sorted(path.name for path in Path().iterdir()) == [".file"]


def test_a_preset_s_prefix_is_left_out(rn50: Run) -> None:
    """The second cell would find the checkpoints of the first."""
    shown = rn50("benchmark", *SMALL, "--preset", "RN50_FP32_1GPU", "-o", "a.json", "--dry-run")
    assert "--model-prefix is left out" in shown.err and "--model-prefix" not in shown.out

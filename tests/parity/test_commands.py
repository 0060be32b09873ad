"""Every command line of the reference, translated by one table: what it means, and what it leaves.

`commands.toml` holds the lines as the reference has them, the table, and what each must mean.
"""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_prep import im2rec
from rn50 import benchmark
from rn50 import parser as parsers
from rn50lib import checkpoint
from rn50lib.checkpoint import Checkpoint
from rn50lib.resnet import resnet
from tests.conftest import SmallDataset
from tests.support import Ended, Photos, strict_json

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent.parent
TOLD: dict[str, Any] = tomllib.loads((Path(__file__).parent / "commands.toml").read_text())
NO_DATA = ("--loader", "synthetic")  # without ImageNet, a dry run prints only the error
IMAGENET = "/data/imagenet/train-val-recordio-passthrough"
REPORT = ["model", "ngpus", "total_duration", "cmd", "metrics"]
METRICS = [
    "train.top1", "train.top5", "train.loss", "train.time", "train.total_ips",
    "val.top1", "val.top5", "val.loss", "val.time", "val.total_ips",
]  # fmt: skip
VALIDATED = [key for key in METRICS if key.startswith("val.")]
LARGE = pytest.mark.acceptance  # the same once more, by another line
Run = Callable[..., Ended]


def translate(line: str) -> str:
    """Translate a line of the reference with the table."""
    for rule in TOLD["translation"]:
        for dtype, gpus in itertools.product(("FP16", "FP32"), "148"):
            there, here = (
                rule[side].replace("FP16", dtype).replace("8GPU", f"{gpus}GPU")
                for side in ("there", "here")
            )
            if line == there or line.startswith(f"{there} "):
                image = TOLD["image"]
                end = line.removeprefix(there)
                return here + end.replace(f" {image['there']}", f" {image['here']}")
    raise AssertionError(f"the table has no line for {line}")


def ours(told: dict[str, Any], **fill: str) -> list[str]:
    """Return the words of our command after `rn50`, with the blanks filled in."""
    line = translate(told["there"])
    for name, value in {"path to imagenet": IMAGENET, **fill, **told.get("fill", {})}.items():
        line = line.replace(f"<{name}>", value)
    assert "<" not in line, line
    program, *words = shlex.split(line)
    assert program == "rn50"
    return words


def meant(told: dict[str, Any]) -> dict[str, Any]:
    blanks = {"<path to imagenet>": IMAGENET}
    return {k: blanks.get(v, v) if isinstance(v, str) else v for k, v in told["experiment"].items()}


def lines(kind: str, quick: int | None = None) -> list:
    """The commands of a kind as parameters; the one numbered `quick` in `make test`, all others in
    `make acceptance`, if it is given."""
    marks = [[] if quick is None else [pytest.mark.slow] if i == quick else [LARGE]
             for i in range(len(TOLD[kind]))]  # fmt: skip
    return [pytest.param(told, id=told["there"][:60], marks=mark)
            for told, mark in zip(TOLD[kind], marks, strict=True)]  # fmt: skip


# --- the table ------------------------------------------------------------------------------------


def test_every_line_of_the_document_is_listed() -> None:
    """Counted by hand: 3 for the container, 4 of im2rec, 6 scripts and 2 runs, 2 lists of flags, 2
    for scoring, 5 benchmarks; and 4 scripts for benchmarks."""
    counts = {kind: len(found) for kind, found in TOLD.items() if isinstance(found, list)}
    del counts["translation"]
    assert counts == {"container": 3, "im2rec": 4, "run": 8, "help": 2, "score": 2, "benchmark": 9}


def test_the_table_is_shown_and_used() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    used = [translate(told["there"]) for kind, found in TOLD.items()
            if kind not in ("translation", "image") for told in found]  # fmt: skip
    for rule in TOLD["translation"]:
        assert f"| `{rule['there']}` | `{rule['here']}` |" in page, rule
        assert any(line.startswith(rule["here"]) for line in used), rule
    assert translate("./examples/RN50_FP16_8GPU.sh") == "rn50 run --preset RN50_FP16_8GPU"
    assert translate("./examples/SCORE_FP32.sh m 90") == "rn50 score --preset SCORE_FP32 m 90"


@pytest.mark.parametrize("told", lines("container"))
def test_the_container_is_started_by_the_whole_line(told: dict) -> None:
    """The page shows the line with the options and folders of the reference."""
    assert translate(told["there"]) == told["here"]
    page = (ROOT / "docs" / "reference.md").read_text()
    assert f"| `{told['there']}` | `{told['here']}` |" in page


# --- what each line means -------------------------------------------------------------------------


@pytest.mark.parametrize("told", lines("im2rec"))
def test_im2rec_reads_its_lines(told: dict) -> None:
    module, *words = shlex.split(translate(told["there"]))[2:]
    assert module == "data_prep.im2rec"
    found, nothing = vars(im2rec.parse(words)), vars(im2rec.parse(["prefix", "root"]))
    assert {k: v for k, v in found.items() if v != nothing[k]} == told["expect"]


ARITHMETIC = re.compile(
    r"^ *global batch (\d+) x (\d+) = (\d+)(?:; learning rate .* = (\S+))?$", re.M
)


def arithmetic(shown: Ended) -> list[tuple[int, int, int, float | None]]:
    """Return n, batch, global batch and learning rate of each run in a dry run's output."""
    assert shown.status == 0, shown
    assert "capped" not in shown.out
    return [(int(n), int(b), int(g), float(lr) if lr else None)
            for n, b, g, lr in ARITHMETIC.findall(shown.out)]  # fmt: skip


@pytest.mark.parametrize("told", [*lines("run"), *lines("score")])
def test_run_has_the_expected_configuration(rn50: Run, told: dict) -> None:
    """On any machine: the values that are passed, and what a dry run prints."""
    verb, *words = ours(told, **{"model prefix": "model", "epoch": "90"})
    parser = parsers.config_parser(verb)
    if verb == "score":
        parser.add_argument("place", nargs=2)
    given, rest = parsers.parse_given(parser, words)
    assert given == meant(told)
    if verb == "score":  # a dry run reads what a checkpoint decides, not its weights
        checkpoint.write_symbol("model", resnet(50))
        checkpoint.save("model", Checkpoint(90, {}, {}, {}, {}))
    shown = rn50(verb, *words, *NO_DATA, "--dry-run")
    n, batch = told["experiment"]["n"], told["experiment"]["batch_size"]
    assert arithmetic(shown) == [(n, batch, n * batch, told.get("lr"))]
    if verb == "score":
        assert rest.place == ["model", "90"]
        assert "--model-prefix model --load-epoch 90" in shown.out
    else:
        for flag in ("--num-epochs 90", "--image-shape 224", "--warmup-epochs 5",
                     "--lr-step-epochs 30,60,80", "--mom 0.9", "--wd 0.0001"):  # fmt: skip
            assert flag in shown.out
    assert not list(Path().glob("runs"))


@pytest.mark.parametrize("told", lines("benchmark"))
def test_benchmark_has_the_expected_sweep(rn50: Run, told: dict) -> None:
    own, given = benchmark.parse(ours(told)[1:])
    assert given == meant(told)
    assert (own.workers, own.batches, own.warmup) == (told["n"], told["b"], told["warmup"])
    assert str(own.output) == told["output"]
    found = arithmetic(rn50(*ours(told), *NO_DATA, "--dry-run"))
    assert [cell[:3] for cell in found] == [(n, b, n * b) for n in told["n"] for b in told["b"]]
    rates = [cell[3] for cell in found]
    assert ([rates[0], rates[-1]] if "lr" in told else rates) == told.get("lr", [None] * len(found))
    assert not Path(told["output"]).exists()


@pytest.mark.parametrize("told", lines("help"))
def test_the_flags_of_the_reference_are_listed(rn50: Run, told: dict) -> None:
    shown = rn50(*ours(told), "all")
    assert shown.status == 0
    listed = set(re.findall(r"(?<![\w-])--?[\w-]+", shown.out))
    assert set(told["flags"]) <= listed


FLAGS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "train_flags.toml").read_text())


def test_each_reference_flag_is_accepted_or_answered(rn50: Run) -> None:
    """By a flag here that does the same, or by the page, which says why there is none."""
    known = parsers.config_parser("train")._option_string_actions
    page = (ROOT / "docs" / "reference.md").read_text()
    counts = {}
    for release, found in FLAGS.items():
        flags = found["flags"].split()
        counts[release] = len(flags)
        for flag in flags:
            if flag in known:
                continue
            answer = rn50("train", flag, "1").error
            assert "did you mean" not in answer, answer
            if "here it is --" not in answer:
                assert "docs/reference.md has the reference's flags" in answer
                assert re.search(rf"^\| .*`{flag}`.* \| .+ \|$", page, re.M), flag
    assert counts == {"18.12": 88, "the last release": 85}
    same = sum(flag in known for flag in FLAGS["18.12"]["flags"].split())
    assert f"Of the 88 flags of `train.py` (release 18.12), {same} have the same name here." in page


def test_long_names_of_benchmark_py_are_accepted() -> None:
    there = ["--ngpus", "1,4", "--batch-sizes", "32,64", "--epochs", "3", "--benchmark-iters", "9"]
    here = ["-n", "1,4", "-b", "32,64", "-e", "3", "-i", "9"]
    last = ["--warmup", "1", "--output", "a.json"]
    assert benchmark.parse([*there, *last]) == benchmark.parse([*here, *last])


# --- what each line leaves, capped by --profile ci ------------------------------------------------


@pytest.fixture
def data(roadsigns_small: SmallDataset) -> dict[str, str]:
    """Return the environment in which the small data set is the default."""
    return {"RN50_DATA": str(roadsigns_small.root)}


@pytest.mark.parametrize("told", lines("im2rec"))
def test_im2rec_writes_its_files(
    photos: Photos, tmp_path: Path, told: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(translate(told["there"]))[3:]
    split = told["expect"]["prefix"]
    words[-1] = str(photos.root / split)
    if "--list" not in words:
        im2rec.main(["--list", "--recursive", "--quiet", split, words[-1]])
    im2rec.main([*words, "--quiet"])
    assert {path.name for path in tmp_path.iterdir()} >= set(told["leaves"])
    images = len(photos.files(split))
    for name in told["leaves"]:
        if not name.endswith(".rec"):
            assert len((tmp_path / name).read_text().splitlines()) == images


def trained(run_cli: Callable, data: dict, records: Path, told: dict) -> tuple[Path, str]:
    """Run a training line; returns its report and the prefix of its model."""
    words = ours(told, **{"path to imagenet": str(records)})
    prefix = told["experiment"]["model_prefix"]
    if "--report" not in words:
        words += ["--report", "report.json"]
    done = run_cli(*words, "--profile", "ci", env=data, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "capped to" in done.stderr
    return Path("report.json"), prefix


@pytest.mark.needs("torch")
@pytest.mark.parametrize("told", lines("run", quick=99))
def test_run_writes_its_report_and_model(
    run_cli: Callable, data: dict, roadsigns_small: SmallDataset, tmp_path: Path, told: dict
) -> None:
    name, prefix = trained(run_cli, data, roadsigns_small.records, told)
    check_report(tmp_path / name, min(2, told["experiment"]["n"]))
    files = {path.name for path in tmp_path.glob(f"{prefix}-*")}
    assert files == {f"{prefix}-symbol.json", f"{prefix}-0001.safetensors",
                     f"{prefix}-0002.safetensors"}  # fmt: skip


def check_report(file: Path, workers: int) -> None:
    report = strict_json(file)
    assert list(report) == [*REPORT, "env"]
    assert list(report["metrics"]) == METRICS
    assert report["ngpus"] == workers and isinstance(report["cmd"], list)
    assert all(len(values) == 2 for values in report["metrics"].values())
    assert all(0 <= x <= 100 for x in report["metrics"]["train.top1"])


@pytest.mark.needs("torch")
@pytest.mark.parametrize("told", lines("score", quick=1))
def test_score_reads_the_model_of_a_run(
    run_cli: Callable, data: dict, roadsigns_small: SmallDataset, tmp_path: Path, told: dict
) -> None:
    (by,) = (run for run in TOLD["run"] if run["there"] == told["trained_by"])
    report, prefix = trained(run_cli, data, roadsigns_small.records, by)
    check_report(tmp_path / report, 1)
    words = ours(told, **{"model prefix": prefix, "epoch": "2"})
    done = run_cli(*words, "--profile", "ci", "--report", "score.json", env=data, timeout=600)
    assert done.returncode == 0, done.stderr
    score = strict_json(tmp_path / "score.json")
    assert list(score) == [*REPORT, "env"] and list(score["metrics"]) == VALIDATED
    trained_top1 = strict_json(tmp_path / report)["metrics"]["val.top1"][-1]
    assert score["metrics"]["val.top1"] == [trained_top1]
    assert f"val.top1 {trained_top1:.6g}" in done.stdout


@pytest.mark.needs("torch")
@pytest.mark.parametrize("told", lines("benchmark", quick=99))
def test_benchmark_writes_its_file(
    run_cli: Callable, data: dict, roadsigns_small: SmallDataset, tmp_path: Path, told: dict
) -> None:
    words = ours(told, **{"path to imagenet": str(roadsigns_small.records)})
    done = run_cli(*words, "--profile", "ci", env=data, timeout=600)
    assert done.returncode == 0, done.stderr
    found = strict_json(tmp_path / told["output"])
    inference = "only_inference" in told["experiment"]
    keys = ["train.total_ips", "val.total_ips"][1 if inference else 0 :]
    assert list(found) == ["model", "ngpus", "bs", "metric_keys", "metrics", "env"]
    assert (found["ngpus"], found["bs"], found["metric_keys"]) == (told["n"], told["b"], keys)
    assert list(found["metrics"]) == [str(n) for n in told["n"]]
    for n in found["metrics"].values():
        assert list(n) == [str(b) for b in told["b"]]
        for cell in n.values():
            assert list(cell) == keys and all(rate > 0 for rate in cell.values())
    assert any("--batch-size" in cap or "--network" in cap for cap in found["env"]["caps"])
    for key in keys:
        assert f"{key}, images per second" in done.stderr

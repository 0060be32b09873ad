"""The command line: help that costs nothing, and for bad input one clear line and exit status 2."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rn50 import cli
from rn50.parser import PRESETS, VERBS, parse_given
from rn50.reports import load
from rn50.run import run_parser
from rn50lib import checkpoint
from rn50lib.config import FLAGS
from rn50lib.resnet import resnet, tiny
from tests.conftest import clean_environment
from tests.support import LAPTOP, TINY, Photos, write_few, write_photo

Run = Callable[..., Any]
HEAVY = ("numpy", "torch", "tensorflow", "PIL", "matplotlib", "horovod", "nvidia", "IPython")


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "heavy"),
    [(argv, HEAVY) for argv in ("", "--help", "--version", "nonsense")]
    + [(f"{verb} --help all", HEAVY[1:]) for verb in ("run", "score")],
)
def test_help_imports_no_framework(argv: str, heavy: tuple[str, ...]) -> None:
    """The first page imports not even NumPy."""
    code = (
        "import sys\nfrom rn50.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit as e: assert not e.code\n"
        f"print([n for n in {heavy} if n in sys.modules], file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, *argv.split()]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
    assert "None" not in done.stdout and "==SUPPRESS" not in done.stdout
    assert ("--lr-step-epochs" in done.stdout) == ("all" in argv)


def test_the_first_page_of_the_help_is_short_and_its_flags_exist(rn50: Run) -> None:
    page = rn50("run", "--help").out
    assert page.count("\n") < 26 and max(map(len, page.splitlines())) <= 100
    parser = run_parser()
    named = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", page))
    assert named <= set(parser._option_string_actions) and len(named) > 10
    examples = re.findall(r"^  rn50 run(.*?)(?:   .*|  what .*)?$", page, re.MULTILINE)
    assert len(examples) == 5
    for words in examples:
        parse_given(parser, words.split())
    assert "`rn50 run --help all`" in page
    whole = rn50("run", "-h", "all").out
    assert whole.count("\n") > 130 and "zero_gamma" in whole and "zero_gamma" not in page
    assert "--help: invalid choice: 'most'" in rn50("run", "--help", "most").error


@pytest.mark.parametrize("verb", ["score", "diagnose", "benchmark"])
def test_the_help_of_a_verb_has_its_own_flags_first(rn50: Run, verb: str) -> None:
    page, whole = rn50(verb, "--help").out, rn50(verb, "--help", "all").out
    assert page.count("\n") < 60 and "--dtype" in page and "--label-smoothing" not in page
    assert f"`rn50 {verb} --help all`" in page
    assert "--label-smoothing" in whole and "zero_gamma" in whole
    assert "--no-dali" in whole and "--no-dali" not in page
    assert "names below" not in page and "the names for --set" in page


def test_all_listed_verbs_exist(rn50: Run) -> None:
    shown = rn50("--help")
    assert shown.status == 0
    for verb in VERBS:
        assert re.search(rf"^  {verb} ", shown.out, re.MULTILINE)
        assert callable(cli.function_of(verb))


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "problem", "remedy"),
    [
        ("trian", "no verb 'trian'", "did you mean `rn50 train`?"),
        ("run --batchsize 8", "unknown flag or argument --batchsize", "did you mean --batch-size?"),
        ("run --no-metric", "--no-metric", "did you mean --no-metrics?"),
        ("run --qqq", "--qqq", "rn50 run --help all"),
        ("train --qqq", "--qqq", "rn50 train --help"),
        ("run data", "unknown flag or argument data", "rn50 run --help all"),
        ("run -b 0", "-b", "must be at least 1"),
        ("run -b many", "'many'", "must be a whole number"),
        ("run --lr fast", "'fast'", "must be a number"),
        ("run --seed 99999999999", "--seed", "from 0 to 4294967295"),
        ("run --image-shape 3,224,256", "--image-shape", "3,SIZE,SIZE"),
        ("run --num-layers 51", "--num-layers", "152"),
        ("run --dtype half", "--dtype", "bfloat16"),
        ("run --set step=fast", "--set", "must be a number"),
        ("run --set lr=2", "--set", "NAME=VALUE with one of the names loss_scale"),
        ("train --val-resize=256", "--val-resize", "pass --set val_resize=VALUE"),
        ("run --no-bn-decay", "--no-bn-decay", "pass --set bn_decay=false"),
        ("run -e", "-e", "expected one argument"),
        ("run --preset BENCHMARK_FP32", "--preset BENCHMARK_FP32", "it is for `rn50 benchmark`"),
        ("import w.pth -o new/", "'new/' must be a name, not a folder", "such as new/model"),
        ("run --report -", "--report -", "use /dev/stdout"),
        ("run --preset RN50_FP64", "RN50_FP64", "RN50_FP32_1GPU"),
        ("run --no-dali --loader synthetic", "--no-dali", "not allowed with"),
        ("score", "prefix", "required"),
        ("score m one", "epoch", "one"),
        ("plot r.json", "-o", "required"),
        ("plot r.json -o c.png", "r.json", "cannot be read"),
        ("plot a.json b.json -o c.png --labels one", "one: pass --labels", "2 names"),
    ],
)
def test_invalid_flags_are_refused(rn50: Run, argv: str, problem: str, remedy: str) -> None:
    line = rn50(*argv.split()).error
    assert problem in line and remedy in line


@pytest.mark.parametrize("flag", ["--data-root", "--model-prefix", "--init-from", "--report"])
def test_empty_names_are_refused(rn50: Run, flag: str) -> None:
    """`"$NAME"` is empty if NAME is not set; it would select the built-in data set."""
    assert f"{flag} '' must be a text that is not empty" in rn50("run", flag, "").error


@pytest.mark.parametrize("prefix", [".", "..", "models/", "models/.."])
def test_prefix_without_a_name_is_refused(rn50: Run, prefix: str) -> None:
    line = rn50("run", "--model-prefix", prefix).error
    assert f"--model-prefix '{prefix}' must be a name, not a folder" in line


def test_float16_without_a_gpu_says_bfloat16(rn50: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rn50.autoconfig.machine", lambda: LAPTOP)
    for verb in ("run", "train"):
        line = rn50(verb, "--dtype", "float16").error
        assert "--dtype float16" in line and "--dtype bfloat16" in line


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (None, ("nowhere is missing", "pass the folder")),
        ([], ("set", "train.rec", "train/CLASS")),
        (["red/0.jpg", "b/0.jpg"], ("class folders (b/, red/)", "make train/CLASS and val/CLASS")),
        (["0.jpg"], ("images (0.jpg)", "make train/CLASS and val/CLASS")),
        (["train/a/0.jpg", "val/0.jpg"], ("set/val", "class")),
        (["train/a/0.jpg", "train/b/0.jpg", "val/a/0.jpg", "val/c/0.jpg"], ("train", "val")),
        (["train/all/0.jpg", "val/all/0.jpg"], ("has one class", "one folder per class")),
    ],
)
def test_data_root_without_data_is_refused(rn50: Run, images: list[str] | None, words: Any) -> None:
    Path("set").mkdir()
    for name in images or ():
        write_photo(Path("set", name), 0)
    line = rn50("run", "--data-root", "set" if images is not None else "nowhere", *TINY).error
    assert all(word in line for word in words)
    if "has one class" in line:
        for i in range(8):
            write_photo(Path("set/train/all", f"{i}.jpg"), 0)
        shown = rn50("run", "--data-root", "set", *TINY, "--no-metrics", "--dry-run")
        assert shown.status == 0


def test_missing_checkpoint_is_reported(rn50: Run, photos: Photos) -> None:
    line = rn50("score", "nothing", "3", "--data-root", photos.root).error
    assert "nothing-symbol.json" in line and "--model-prefix" in line
    checkpoint.write_symbol("m", tiny(6))
    assert "m-0003.safetensors" in rn50("score", "m", "3", "--data-root", photos.root).error


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--num-layers", "34"], "--num-layers 34"),
        (["--network", "tiny"], "--network tiny"),
        (["--set", "resnet_version=v1"], "--set resnet_version=v1"),
        (["--num-classes", "1000"], "--num-classes 1000"),
    ],
)
def test_checkpoint_of_a_different_network_is_refused(
    rn50: Run, photos: Photos, flags: list[str], problem: str
) -> None:
    checkpoint.write_symbol("m", resnet(18, 6))
    for start in (["--load-epoch", "1"], ["--resume"]):
        line = rn50("run", "--data-root", photos.root, "--model-prefix", "m", *start, *flags).error
        assert problem in line and "resnet18 v1.5 with 6 classes" in line


def test_unwritable_data_folder_is_reported(rn50: Run) -> None:
    assert "RN50_DATA" in rn50("run").error


@pytest.mark.needs("torch")
def test_a_report_replaces_only_a_report(rn50: Run, photos: Photos, trained: Path) -> None:
    argv = ["train", "--data-root", photos.root, *TINY, "-e", "1", "--benchmark-iters", "1"]
    Path("notes.json").write_text('{"mine": 1}')
    line = rn50(*argv, "--no-val", "--report", "notes.json").error
    assert "--report notes.json" in line and "not a report" in line
    assert Path("notes.json").read_text() == '{"mine": 1}'
    Path("r.json").write_bytes((trained / "report.json").read_bytes())
    Path("empty.json").touch()  # as mktemp leaves it
    for file in ("r.json", "empty.json"):
        assert rn50(*argv, "--no-val", "--report", file).status == 0
        assert len(load(file)["metrics"]["train.loss"]) == 1


def test_a_benchmark_replaces_no_other_file(rn50: Run) -> None:
    Path("mine.json").write_text('{"mine": 1}')
    line = rn50(*"benchmark --loader synthetic -n 1 -b 1 -o mine.json".split()).error
    assert "mine.json exists and is not a" in line and "name another file" in line
    assert Path("mine.json").read_text() == '{"mine": 1}'


@pytest.mark.needs("torch")
@pytest.mark.parametrize("flags", ["--loader synthetic -b 10000000000000",
                                   "--image-shape 100000000"])  # fmt: skip
def test_impossible_batch_is_out_of_memory(rn50: Run, photos: Photos, flags: str) -> None:
    """NumPy and PyTorch report it differently."""
    line = rn50("train", "--data-root", photos.root, *TINY, *flags.split(), "-e", "1",
                "--benchmark-iters", "2").error  # fmt: skip
    assert "out of memory (" in line and "-b or --image-shape" in line


@pytest.mark.acceptance  # without a loader's worker: test_bad_input_is_one_line_with_its_remedy
@pytest.mark.needs("torch")
def test_worker_error_is_the_runs_error(run_cli: Run, photos: Photos, tmp_path: Path) -> None:
    """The error passes three processes: from a loader's worker through the rank to `rn50 run`."""
    shutil.copytree(photos.root, tmp_path / "set", ignore=shutil.ignore_patterns("records"))
    (tmp_path / "set" / "val" / "drum" / "notes.JPEG").write_text("not a picture " * 100)
    done = run_cli("run", "--data-root", "set", *TINY, "-e", "1", "--data-nthreads", "2")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(errors) == 1 and "Traceback" not in done.stderr
    assert "set/val/drum/notes.JPEG" in errors[0]


# --- what is said before a run --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "batch"),
    [
        ("", 15),
        ("--num-examples 4", 4),
        ("--macrobatch-size 12", 12),
        ("-n 2 --comm ddp", 7),
        ("-n 2 --comm ddp --macrobatch-size 6", 6),
        ("--only-inference", 32),
        ("--profile ci", 4),
    ],
)
def test_automatic_batch_fits_the_data(rn50: Run, flags: str, batch: int) -> None:
    """The data set has 15 training images and 6 for validation."""
    write_few(Path("few"))
    argv = [word for word in TINY if word not in ("--batch-size", "8")]
    command = dry(rn50, "--data-root", "few", *argv, *flags.split())[0]
    assert re.search(rf"--batch-size {batch}\b", command)


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_data_set_smaller_than_a_batch_trains(rn50: Run) -> None:
    write_few(Path("few"))
    argv = [word for word in TINY if word not in ("--batch-size", "8")]
    ended = rn50("train", "--data-root", "few", *argv, "-e", "1", "--run-dir", "r")
    assert ended.status == 0, ended.err
    assert len(load("r/report.json")["metrics"]["val.top1"]) == 1


def test_tensorflow_scores_what_was_trained_in_float16(
    rn50: Run, trained: Path, photos: Photos
) -> None:
    """It has no loss scaler, which scoring does not need."""
    made = checkpoint.load(trained / "m", 2)
    half = replace(made, config=made.config | {"dtype": "float16"})
    shutil.copy(checkpoint.symbol_path(trained / "m"), checkpoint.symbol_path("half"))
    checkpoint.save("half", half)
    argv = ("score", "half", "2", "--data-root", photos.root, "--dry-run")
    assert "--dtype float16" in rn50(*argv).out
    shown = rn50(*argv, "--backend", "tensorflow")
    assert shown.status == 0 and "--dtype float16" not in shown.out, shown.err


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ("run --data-root nowhere", "nowhere is missing"),
        ("run --data-root broken", "broken"),
        ("run --data-root webp", "webp/train/a: this class has no image"),
        ("run --data-root few --set keep", "--set keep: must be NAME=VALUE"),
        ("run --data-root few --batch 4", "did you mean --batch-size?"),
        ("run --data-root few -b 16", "use -b 15"),
        ("run --data-root few --override decay_groups=p.py:f", "no function 'decay_groups'"),
        ("run --data-root few --override schedule=p.py:f", "no file 'p.py'"),
        ("run --data-root few --model-prefix file/m", "--model-prefix file/m cannot be written"),
        ("run --data-root few --report file/r.json", "--report file/r.json cannot be written"),
        ("run --data-root few --trace t.gz -b 4", "--trace t.gz: an epoch has 3 steps"),
        ("run --data-root few --report webp", "--report webp cannot be written: it is a folder"),
        ("run --data-root few --run-dir file", "--run-dir file cannot be written"),
        ("run --data-root few --model-prefix m --load-epoch 3", "m-symbol.json"),
        ("run --data-root few --init-from m", "there is no checkpoint m-NNNN"),
        ("score m 3 --data-root few", "m-symbol.json"),
        ("benchmark --data-root few -n 1 -b 16 -o b.json", "use -b 15"),
        ("benchmark --data-root few -n 1 -b 4 -o file/b.json", "-o file/b.json cannot be written"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(rn50: Run, argv: str, problem: str) -> None:
    """Both end with the same line; neither leaves anything behind."""
    write_few(Path("few"))
    shutil.copytree("few", "broken")
    shutil.rmtree("broken/val/c")
    shutil.copytree("few", "webp")
    for photo in Path("webp/train").rglob("*.jpg"):
        photo.rename(photo.with_suffix(".webp"))
    Path("file").touch()
    network = () if "load" in argv or "score" in argv else ("--network", "tiny")
    words = [*argv.split(), *network, "--image-shape", "32", "--dtype", "float32"]
    before = sorted(Path().rglob("*"))
    lines = []
    for more in (["--dry-run"], []):
        ended = rn50(*words, *more)
        assert ended.status == 2 and not ended.out, ended
        lines.append(ended.err.splitlines()[-1])
    assert lines[0] == lines[1] and problem in lines[0]
    assert [path for path in sorted(Path().rglob("*")) if "runs" not in path.parts] == before


# --- runs from a file -----------------------------------------------------------------------------


def dry(rn50: Run, *argv: str | Path) -> tuple[str, str]:
    """The command and the arithmetic of a dry run; the choices come before, with their reasons."""
    shown = rn50("run", "--dry-run", *argv)
    assert shown.status == 0, shown.err
    *lines, command = shown.out.splitlines()
    (sums,) = (line.strip() for line in lines if line.startswith("  global batch"))
    assert re.search(r"^  --recipe +\w+  \(.+\)$", shown.out, re.M)
    return command, sums


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"batch_size": 16, "lr": 0.2, "num-epochs": 7, "lr_step_epochs": [3, 6.5],'
                   ' "image_shape": "3,64,64", "zero_gamma": true, "step": 1442.6, "keep": null,'
                   ' "override": ["schedule=a.py:f"]}'),
        ("a.yaml", "# mine\nbatch-size: 16  # as always\nlr: 2e-1\nnum_epochs: 7\n"
                   "lr_step_epochs: 3,6.5\nimage-shape: 64\nzero_gamma: yes\nstep: 1442.6\n"
                   "override: ['schedule=a.py:f']\n"),
    ],
)  # fmt: skip
def test_config_file_equals_flags(rn50: Run, photos: Photos, name: str, text: str) -> None:
    Path(name).write_text(text)
    Path("a.py").touch()
    root = ("--data-root", photos.root, "--recipe", "reference")
    flags = ("-b", "16", "--lr", "0.2", "-e", "7", "--lr-step-epochs", "3,6.5", "--image-shape",
             "64", "--set", "zero_gamma=true", "--set", "step=1442.6", "--override",
             "schedule=a.py:f")  # fmt: skip
    assert dry(rn50, *root, "--config", name) == dry(rn50, *root, *flags)


def test_flag_overrides_file_and_preset(rn50: Run, photos: Photos) -> None:
    Path("a.json").write_text('{"batch_size": 16, "disp_batches": 5, "num_epochs": 7}')
    command, sums = dry(rn50, "--data-root", photos.root, "--config", "a.json", "-b", "4",
                        "--disp-batches", "20", "--recipe", "reference")  # fmt: skip
    assert sums.startswith("global batch 1 x 4 = 4;") and "--num-epochs 7" in command
    assert "--disp-batches" not in command  # 20 is what it is without a flag
    both = dry(rn50, "--config", "a.json", "--preset", "RN50_FP32_1GPU", "--loader", "synthetic")
    assert "--batch-size 96" in both[0] and "--disp-batches 5" in both[0]


@pytest.mark.parametrize(
    "flags",
    [
        (
            "-e",
            "3",
            "--lr",
            "0.30000000000000004",
            "--set",
            "step=1442.6",
            "--set",
            "bn_decay=false",
        ),
        ("--lr-step-epochs", "", "--wd", "1e-5", "--override", "schedule=a.py:f"),
        ("--profile", "ci", "-n", "8", "-b", "208"),
        ("--preset", "RN50_FP16_8GPU", "--set", "loss_scale=dynamic:1024"),  # not on this machine
    ],
)
def test_a_printed_configuration_is_the_same_run(
    rn50: Run, photos: Photos, flags: tuple[str, ...]
) -> None:
    """Printing the file again gives the same file, except for the reasons."""
    Path("a.py").touch()
    argv = ("--data-root", photos.root, *flags)
    shown = rn50("run", "--print", "config", *argv)
    assert shown.status == 0, shown.err
    Path("a.yaml").write_text(shown.out)
    assert dry(rn50, "--config", "a.yaml") == dry(rn50, *argv)
    again = rn50("run", "--print", "config", "--config", "a.yaml").out
    assert yaml.safe_load(again) == yaml.safe_load(shown.out)
    assert not Path("runs").exists()  # nothing was started


def test_a_dry_run_prints_what_differs_from_the_published_recipe(rn50: Run) -> None:
    argv = ("run", "--preset", "nvidia_cosine", "--loader", "synthetic", "--dry-run")
    shown = rn50(*argv, "--image-shape", "64").out
    for flag in ("--mom +0.875", "--wd +3.0517578125e-05", "--lr-schedule +cosine"):
        assert re.search(f"^  {flag} ", shown, re.M), shown


def test_a_recipe_is_printed_complete(rn50: Run) -> None:
    """With every value that decides the accuracy; on any machine, with its data or without."""
    shown = rn50("run", "--preset", "nvidia_cosine", "--data-root", "nowhere", "--print", "recipe")
    assert shown.status == 0, shown.err
    found = dict(re.findall(r"^  (?:--set )?-*([\w-]+) +(\S+)  ", shown.out, re.M))
    found = {name.replace("-", "_"): text for name, text in found.items()}
    published = {
        "n_GPUs": "8", "batch_size": "256", "num_epochs": "90", "image_shape": "224", "lr": "0.256",
        "warmup_epochs": "8", "lr_schedule": "cosine", "mom": "0.875", "wd": "3.0517578125e-05",
        "bn_decay": "false", "zero_gamma": "false", "label_smoothing": "0.1", "crop_area": "0.08",
    }  # fmt: skip
    assert published.items() <= found.items()
    assert "NVIDIA DeepLearningExamples" in shown.out and "top-1 77.12" in shown.out
    assert "123.7,116.3,103.5" in shown.out
    preset = str(PRESETS["nvidia_cosine"])
    for flags, changed in [
        (["--preset", "nvidia_cosine", "-n", "1", "--lr", "5"], "--n-GPUs, --lr"),
        (["--preset", "nvidia_cosine", "--macrobatch-size", "512"], "--macrobatch-size"),
        (
            ["--config", preset],
            "--lr, --warmup-epochs, --lr-schedule, --lr-step-epochs, --mom, --wd",
        ),
    ]:
        other = rn50("run", *flags, "--data-root", "nowhere", "--print", "recipe").out
        assert f"expected: not published with these values of {changed}" in other, other
        assert "top-1 7" not in other


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"batchsize": 8}', "there is no 'batchsize': did you mean batch_size?"),
        ('{"epochs": 8}', "there is no 'epochs': here it is --num-epochs: epochs"),
        ('{"preset": "roadsigns"}', "there is no 'preset': pass --preset next to --config"),
        ('{"n-GPUs": 8}', "there is no 'n_GPUs': here it is n"),
        ('{"b": 8}', "there is no 'b': `rn50 run --help all` lists all"),
        ('{"qqq": 8}', "there is no 'qqq': `rn50 run --help all` lists all"),
        ('{"batch_size": 0}', "batch_size 0 must be at least 1"),
        ('{"batch_size": "many"}', "batch_size 'many' must be a whole number"),
        ('{"batch_size": 4.5}', "batch_size 4.5 must be a whole number"),
        ('{"lr": "fast"}', "lr 'fast' must be a number"),
        ('{"report": ""}', "report '' must be a text that is not empty"),
        ('{"batch_size": [8, 16]}', "batch_size [8, 16] must be"),
        ('{"no_val": "never"}', "no_val 'never' must be true or false"),
        ('{"dtype": "half"}', "dtype 'half' must be one of float32"),
        ('{"override": "a=b:c"}', "override 'a=b:c' must be a list"),
        ('{"lr": {}}', "lr {} must be a number"),
        ("[1]", "holds no names and values"),
        ("{", "is not JSON"),
    ],
)
def test_invalid_config_file_is_refused(rn50: Run, text: str, problem: str) -> None:
    Path("a.json").write_text(text)
    line = rn50("run", "--config", "a.json").error
    assert line.startswith("a.json") and problem in line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "a.yaml is not YAML"),
        ("batch_size: 4\nbatch_size: 8", "a.yaml has 'batch_size' twice"),
        (None, "a.yaml cannot be read"),
    ],
)
def test_invalid_yaml_file_is_refused(rn50: Run, text: str | None, problem: str) -> None:
    if text:
        Path("a.yaml").write_text(text)
    assert problem in rn50("run", "--config", "a.yaml").error


@pytest.mark.parametrize("words", ["run --help all | head -1", "scale --gpus 8 >&- && echo 1"])
def test_closed_output_prints_no_traceback(tmp_path: Path, words: str) -> None:
    done = subprocess.run(
        f"{sys.executable} -m rn50 {words}",
        shell=True,
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() and done.stderr == ""


@pytest.mark.parametrize("verb", ["run", "train"])
def test_flags_of_other_programs_are_answered(rn50: Run, verb: str) -> None:
    """The answer is the flag that is used here; the name itself is not a flag."""
    known = run_parser()._option_string_actions
    for flag in FLAGS.values():
        for name in flag.also.split():
            assert name not in known
            assert (
                f"argument {name}: here it is {flag.option}: {flag.help}" in rn50(verb, name).error
            )


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        ("run --model resnet50", "here it is --num-layers"),
        ("run --amp", "here it is --dtype"),
        ("run --workers=4", "here it is --data-nthreads"),
        ("train --local_rank 0", "docs/reference.md has the reference's flags"),
        ("benchmark -o a.json --num_workers 3", "here it is --data-nthreads"),
        ("run --wondb", "rn50 run --help"),  # near nothing: no guess
        ("run --resume last.pth", "a data set --data-root"),
        ("doctor --device 0", "rn50 doctor --help"),  # the table is for the flags of a run
    ],
)
def test_suggested_flags_are_not_misleading(rn50: Run, argv: str, answer: str) -> None:
    line = rn50(*argv.split()).error
    assert answer in line and "did you mean" not in line


def test_verbs_begin_with_threads_that_spin_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    seen: list[str | None] = []

    def function_of(verb: str) -> Callable[[list[str]], int]:
        seen.append(os.environ.get("GOMP_SPINCOUNT"))  # what it imports reads the variable
        return lambda argv: 0

    monkeypatch.setattr(cli, "function_of", function_of)
    assert cli.main(["run"]) == 0 and seen == ["5000"]

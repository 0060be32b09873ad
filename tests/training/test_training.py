"""A whole run through the command line: report, checkpoints, resume, and the effect of each flag.

Most runs are in this process; tests/training/test_kills.py has those that are killed.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from rn50 import cli
from rn50lib import checkpoint, train
from rn50lib.config import validated
from rn50lib.progress import Progress
from tests.support import TINY, Photos, strict_json, timeless

pytestmark = pytest.mark.needs("torch")

Run = Callable[..., Any]
# one epoch is 6 steps of 8 images; 3 epochs, the rate falls after the second
RUN = (*TINY, "-e", "3", "--warmup-epochs", "0.5", "--lr-step-epochs", "2", "--lr", "0.4")


def same_weights(a: str | Path, b: str | Path, epoch: int) -> bool:
    left, right = (checkpoint.load(prefix, epoch).arrays for prefix in (a, b))
    return left.keys() == right.keys() and all(np.array_equal(left[n], right[n]) for n in left)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(photos: Photos, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run of 3 epochs: checkpoints m, r.json, progress.jsonl."""
    folder = tmp_path_factory.mktemp("trained")
    argv = ["train", "--data-root", str(photos.root), *RUN, "--disp-batches", "2"]
    argv += ["--run-dir", str(folder), "--model-prefix", str(folder / "m")]
    argv += ["--report", str(folder / "r.json")]
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        assert cli.main(argv) == 0, told.getvalue()
    (folder / "told").write_text(told.getvalue())
    return folder


# --- report and progress --------------------------------------------------------------------------


def test_the_report_has_the_reference_s_keys_with_a_value_per_epoch(trained: Path) -> None:
    report = strict_json(trained / "r.json")
    assert list(report) == ["model", "ngpus", "total_duration", "cmd", "metrics", "env"]
    assert (report["model"], report["ngpus"]) == ("resnet-tiny", 1)
    assert report["total_duration"] > 0 and all(isinstance(x, str) for x in report["cmd"])
    assert list(report["metrics"]) == [
        f"{phase}.{part}"
        for phase in ("train", "val")
        for part in ("top1", "top5", "loss", "time", "total_ips")
    ]
    for key, values in report["metrics"].items():
        assert len(values) == 3 and all(v is not None and v > 0 for v in values), key
    for phase in ("train", "val"):
        for time, ips in zip(
            report["metrics"][f"{phase}.time"], report["metrics"][f"{phase}.total_ips"], strict=True
        ):
            # 19 images in 3 steps of 8, without the first step and without the padding: 11 in 2
            assert time * ips == pytest.approx(8 if phase == "train" else 11 / 2)


def test_report_env_records_choices_and_reasons(trained: Path) -> None:
    env = strict_json(trained / "r.json")["env"]
    assert env["axes"]["batch_size"] == {"value": 8, "reason": "given"}
    assert env["axes"]["seed"] == {"value": 0, "reason": "the default"}
    assert env["axes"]["num_classes"]["reason"] == "counted in the data set"
    assert env["machine"]["cores"] >= 1 and env["machine"]["processor"]
    assert {"torch", "numpy", "pillow", "device"} <= env["versions"].keys()
    assert env["data"]["train"].endswith("(48 images, recordio)")
    assert env["data"]["val"].endswith("(19 images, recordio)")
    assert env["overrides"] == [] and env["caps"] == []
    per_image = env["model_flops"]["per_image"]
    speed = strict_json(trained / "r.json")["metrics"]["train.total_ips"][-1]
    assert env["model_flops"]["per_second"] == pytest.approx(per_image * speed)
    assert sum(env["seconds"].values()) > 0 and set(env["seconds"]) == {"data", "step", "loop"}


def test_progress_is_one_line_a_reading(trained: Path) -> None:
    told = lines(trained)
    train = [line for line in told if line["phase"] == "train"]
    assert [(t["epoch"], t["step"]) for t in train] == [
        (epoch, step) for epoch in range(3) for step in (2, 4, 6)
    ]
    for line in train:
        assert line.keys() == READING
        assert line["steps"] == 6 and line["ips"] > 0 and 0 <= line["top1"] <= 100
        assert line["lr"] == pytest.approx(expected_rate(line["epoch"] + (line["step"] - 1) / 6))
    seconds = [line["seconds"] for line in told]
    assert seconds == sorted(seconds)
    metrics = strict_json(trained / "r.json")["metrics"]
    for key in ("loss", "top1"):  # the three readings of an epoch are of two steps each
        values = np.reshape([line[key] for line in train], (3, 3))
        np.testing.assert_allclose(values.mean(axis=1), metrics[f"train.{key}"], rtol=1e-6)
    for epoch, line in enumerate(line for line in told if line["phase"] == "epoch"):
        assert line["epoch"] == epoch
        assert all(line[key] == metrics[key][epoch] for key in metrics)


def test_the_line_of_an_epoch_has_its_metrics(trained: Path) -> None:
    printed = (trained / "told").read_text().splitlines()
    (line,) = [line for line in printed if line.startswith("epoch 3/3: ")]
    metrics = strict_json(trained / "r.json")["metrics"]
    shown = ("train.loss", "train.top1", "val.top1", "train.total_ips", "val.total_ips")
    loss, train, val, ips, val_ips = (f"{metrics[key][-1]:.4g}" for key in shown)
    text = f"loss {loss}, train top-1 {train}, val top-1 {val}, img/s {ips}, val img/s {val_ips} ("
    assert line.startswith(f"epoch 3/3: {text}")


def test_a_reading_is_in_the_file_at_once(tmp_path: Path) -> None:
    """Another program follows the run by this file."""
    progress = Progress(tmp_path)
    progress.start("train", 0, 1, steps=4)
    progress.reading(2, {"loss": 1.5})
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(2, 1.5)]
    progress.close()


READING = {"phase", "epoch", "step", "steps", "loss", "top1", "ips", "lr", "seconds"}


def expected_rate(progress: float) -> float:
    """Return 0.4 x 8 / 256 = 0.0125 after half an epoch of warm-up, a tenth of it from epoch 2."""
    if progress < 0.5:
        return 0.0125 * progress / 0.5
    return 0.0125 if progress < 2 else 0.00125


def test_validation_matches_pillow_and_the_checkpoint(trained: Path, photos: Photos) -> None:
    """Every image is read with Pillow, cropped and counted by hand."""
    from rn50lib.distributed import Comm
    from rn50lib.torch.train_step import TorchStep
    from tests.support import full

    net = checkpoint.read_network(trained / "m")
    step = TorchStep(full(6), net, Comm())
    step.load(checkpoint.load(trained / "m", 3).arrays)
    images, labels = [], []
    for file in photos.files("val"):
        image = Image.open(file).convert("RGB")
        side = min(image.size) * 32 / 37
        left, top = (image.width - side) / 2, (image.height - side) / 2
        box = (left, top, left + side, top + side)
        images.append(np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR, box)))
        labels.append(
            sorted(p.name for p in (photos.root / "val").iterdir()).index(file.parent.name)
        )
    probabilities = step.predict(np.stack(images))
    top1 = 100 * np.mean(probabilities.argmax(axis=1) == labels)
    loss = -np.log(probabilities[np.arange(19), labels]).mean()
    metrics = strict_json(trained / "r.json")["metrics"]
    assert metrics["val.loss"][-1] == pytest.approx(loss, rel=0.05)
    assert metrics["val.top1"][-1] == pytest.approx(top1, abs=100 / 19 + 1e-6)


def test_a_run_can_be_repeated_to_the_last_bit(
    rn50: Run, trained: Path, photos: Photos, tmp_path: Path
) -> None:
    assert rn50("train", "--data-root", photos.root, *RUN, "--model-prefix", "m",
                "--report", "r.json").status == 0  # fmt: skip
    assert same_weights("m", trained / "m", 3)
    again, first = strict_json(tmp_path / "r.json"), strict_json(trained / "r.json")
    assert timeless(again) == timeless(first)


# --- checkpoints, scoring, resume -----------------------------------------------------------------


def test_scoring_keeps_the_report_of_a_training(rn50: Run, trained: Path) -> None:
    before = (trained / "r.json").read_bytes()
    command = ("score", trained / "m", "3", "--report")
    error = rn50(*command, trained / "r.json").error
    assert "r.json exists and is not a report of such a run" in error
    assert (trained / "r.json").read_bytes() == before


@pytest.mark.parametrize("epoch", [1, 3])
def test_scoring_a_checkpoint_gives_its_validation_exactly(
    rn50: Run, trained: Path, photos: Photos, epoch: int, tmp_path: Path
) -> None:
    """Size, precision and data come from the checkpoint; none is passed."""
    scored = rn50("train", "--only-inference", "--model-prefix", trained / "m", "--load-epoch",
                  str(epoch), "-e", "1", "--data-nthreads", "0", "--threads", "1", "--report",
                  "s.json")  # fmt: skip
    assert scored.status == 0, scored.err
    report = strict_json(tmp_path / "s.json")
    told = strict_json(trained / "r.json")["metrics"]
    for part in ("top1", "top5", "loss"):
        assert report["metrics"][f"val.{part}"] == [told[f"val.{part}"][epoch - 1]]
    assert not any(key.startswith("train.") for key in report["metrics"])
    assert report["env"]["checkpoint"].endswith(f"m-{epoch:04d}.safetensors")
    assert checkpoint.epochs(trained / "m") == [1, 2, 3]  # scoring writes none


def resume(rn50: Run, photos: Photos, *flags: str) -> Any:
    return rn50("train", "--data-root", photos.root, *RUN, "--model-prefix", "m", "--report",
                "r.json", *flags)  # fmt: skip


@pytest.mark.parametrize("flags", [("--resume",), ("--load-epoch", "1")])
def test_resumed_run_equals_an_uninterrupted_one(
    rn50: Run, trained: Path, photos: Photos, flags: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("m-0001.safetensors", "m-symbol.json"):
        shutil.copy(trained / name, tmp_path)
    ended = resume(rn50, photos, *flags)
    assert ended.status == 0 and "m-0001.safetensors: 1 epoch is done" in ended.err
    assert same_weights("m", trained / "m", 3)
    assert timeless(strict_json(tmp_path / "r.json")) == timeless(strict_json(trained / "r.json"))


def test_resume_takes_what_is_not_passed_from_the_checkpoint(
    rn50: Run, trained: Path, photos: Photos, tmp_path: Path
) -> None:
    for name in ("m-0001.safetensors", "m-symbol.json"):
        shutil.copy(trained / name, tmp_path)
    ended = rn50("train", "--model-prefix", "m", "--resume", "--report", "r.json", "--threads", "1")
    assert ended.status == 0 and "from now on" not in ended.err, ended.err
    assert f"--data-root      {photos.root}  (the checkpoint's)" in ended.err
    assert same_weights("m", trained / "m", 3)
    assert timeless(strict_json(tmp_path / "r.json")) == timeless(strict_json(trained / "r.json"))


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("-e 3", {"num_epochs": 3, "lr_step_epochs": (2.0,), "warmup_epochs": 0.5, "lr": 0.4}),
        ("-e 9", {"num_epochs": 9, "lr_step_epochs": (3.0, 6.0, 8.0), "lr": 0.4}),
        ("--lr-schedule cosine", {"num_epochs": 3, "lr_step_epochs": (), "warmup_epochs": 0.5}),
        ("--image-shape 64", {"val_resize": 73, "batch_size": 8}),
        ("--recipe roadsigns", {"num_epochs": 9, "lr": 0.4, "batch_size": 32, "image_shape": 64}),
        ("-n 12 --hosts localhost:12", {"batch_size": 4}),  # 48 images
    ],
)
def test_a_value_that_is_passed_to_a_resumed_run_decides_what_follows_from_it(
    rn50: Run, trained: Path, flags: str, wanted: dict[str, Any]
) -> None:
    shown = rn50("run", "--model-prefix", trained / "m", "--resume", "--print", "config",
                 *flags.split())  # fmt: skip
    assert shown.status == 0, shown.err
    values = validated(yaml.safe_load(shown.out), "config")
    assert {name: values[name] for name in wanted} == wanted


def test_scoring_at_a_size_that_is_passed_resizes_for_it(rn50: Run, trained: Path) -> None:
    shown = rn50("score", trained / "m", "3", "--image-shape", "64", "--dry-run")
    assert shown.status == 0 and "val_resize=73" in shown.out, shown.err


def test_damaged_checkpoint_is_skipped_and_named(
    rn50: Run, trained: Path, photos: Photos, tmp_path: Path
) -> None:
    for name in ("m-0001.safetensors", "m-0002.safetensors", "m-symbol.json"):
        shutil.copy(trained / name, tmp_path)
    content = bytearray((tmp_path / "m-0002.safetensors").read_bytes())
    content[len(content) // 2] ^= 4
    (tmp_path / "m-0002.safetensors").write_bytes(content)
    ended = resume(rn50, photos, "--resume")
    assert ended.status == 0
    assert "passed over: checkpoint m-0002.safetensors is damaged" in ended.err
    assert "m-0001.safetensors: 1 epoch is done" in ended.err
    assert same_weights("m", trained / "m", 3)


def test_a_line_that_a_killed_run_left_unfinished_is_removed(
    rn50: Run, trained: Path, photos: Photos, tmp_path: Path
) -> None:
    for name in ("m-0002.safetensors", "m-symbol.json"):
        shutil.copy(trained / name, tmp_path)
    *_, line = (trained / "progress.jsonl").read_text().splitlines()
    (tmp_path / "progress.jsonl").write_text(f"{line}\n{line[:40]}")
    assert resume(rn50, photos, "--resume", "--run-dir", tmp_path).status == 0
    first, *rest = lines(tmp_path)
    assert first == json.loads(line) and [x["epoch"] for x in rest] == [2] * len(rest) != []


def test_resuming_a_finished_run_writes_its_report(
    rn50: Run, trained: Path, photos: Photos, tmp_path: Path
) -> None:
    """This happens after a kill between the last checkpoint and the report."""
    for name in ("m-0003.safetensors", "m-symbol.json"):
        shutil.copy(trained / name, tmp_path)
    assert resume(rn50, photos, "--resume").status == 0
    assert timeless(strict_json(tmp_path / "r.json")) == timeless(strict_json(trained / "r.json"))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--seed", "1"), "seed 0, this run has 1"),
        (("--num-examples", "16"), "num_examples unset, this run has 16"),
        (("--num-classes", "7"), "--num-classes 7"),
        (("--data-root", "other"), "data 48 images"),
        (("--data-root", "moved"), "this run has 48 images, labels"),
    ],
)
def test_checkpoint_of_a_different_run_is_not_resumed(
    rn50: Run, trained: Path, photos: Photos, tmp_path: Path, flags: tuple[str, ...], problem: str
) -> None:
    for name in ("m-0001.safetensors", "m-symbol.json"):
        shutil.copy(trained / name, tmp_path)
    shutil.copytree(photos.root, "other", ignore=shutil.ignore_patterns("records", "drum_07.jpg"))
    shutil.copytree(photos.root, "moved", ignore=shutil.ignore_patterns("records"))
    one, two, *_ = sorted(Path("moved/train").iterdir())
    next(one.iterdir()).rename(two / "moved.jpg")  # as many images, one with a different label
    assert problem in resume(rn50, photos, "--resume", *flags).error
    assert checkpoint.epochs("m") == [1]


@contextlib.contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Let no file grow beyond `room` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_room_for_a_checkpoint_the_earlier_one_survives(
    rn50: Run, trained: Path, photos: Photos, tmp_path: Path
) -> None:
    shutil.copy(trained / "m-0001.safetensors", tmp_path)
    shutil.copy(trained / "m-symbol.json", tmp_path)
    with full_disk(100_000):
        ended = resume(rn50, photos, "--resume")
    line = [x for x in ended.err.splitlines() if "error: " in x]
    assert len(line) == 1 and "any earlier checkpoint is untouched: free some space" in line[0]
    assert checkpoint.epochs("m") == [1] and same_weights("m", trained / "m", 1)
    assert resume(rn50, photos, "--resume").status == 0
    assert same_weights("m", trained / "m", 3)


@pytest.mark.parametrize(
    ("flags", "done"),
    [
        ((), 48),
        (("--benchmark-iters", "4"), 32),
        pytest.param(("--backend", "tensorflow"), 48, marks=pytest.mark.acceptance),
    ],
)
def test_damaged_validation_image_keeps_the_training(
    rn50: Run, photos: Photos, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], done: int
) -> None:
    monkeypatch.setattr(train, "UNSAVED_S", 0.0)  # as if the epoch had taken long
    shutil.copytree(photos.root, "set", ignore=shutil.ignore_patterns("records"))
    image = next(Path("set/val").rglob("*.jpg"))
    content = image.read_bytes()
    image.write_bytes(content[:20])
    files = ("--data-root", "set", "-e", "1", *flags)
    ended = resume(rn50, photos, *files)
    assert ended.status == 2 and image.name in ended.err
    assert checkpoint.positions("m") == [(0, done)]
    image.write_bytes(content)
    ended = resume(rn50, photos, *files, "--resume")
    assert ended.status == 0 and f"0 epochs are done, and {done} images of the next" in ended.err
    assert checkpoint.positions("m") == [(1, 0)]
    again = resume(rn50, photos, *files, "--model-prefix", "n", "--report", "n.json")
    assert again.status == 0 and same_weights("m", "n", 1)
    assert timeless(strict_json(Path("r.json"))) == timeless(strict_json(Path("n.json")))


def test_a_resumed_run_says_what_is_left_and_what_differs(rn50: Run, photos: Photos) -> None:
    flags = ("--benchmark-iters", "1", "--no-val", "-e", "1")
    assert resume(rn50, photos, *flags).status == 0
    again = resume(rn50, photos, *flags, "--resume", "-b", "5")
    assert "1 epoch is done; --num-epochs asks for no more" in again.err
    assert "from now on --batch-size is 5, not " in again.err
    accumulated = resume(rn50, photos, *flags, "--resume", "-b", "4", "--macrobatch-size", "8")
    assert "from now on --macrobatch-size is 8, not unset" in accumulated.err
    scaled = ("train", "--data-root", photos.root, *TINY, *flags[:-2], "--model-prefix", "s")
    assert rn50(*scaled, "-e", "1", "--report", "s.json").status == 0
    longer = rn50(*scaled, "-e", "3", "--report", "s.json", "--resume")
    assert "from now on --num-epochs is 3, not 1" in longer.err
    assert "from now on --lr-step-epochs is 1,2,2.67, not 0.33,0.67,0.89" in longer.err
    assert "from now on --wd" not in longer.err
    recipe = ("--wd", "0.1", "--lr-schedule", "cosine", "--set", "crop_area=0.9")
    changed = rn50(*scaled, "-e", "3", "--report", "s.json", "--resume", *recipe).err
    assert "from now on --wd is 0.1, not 0.0001" in changed
    assert "--lr-schedule is cosine, not step" in changed and "crop_area is 0.9, not 0." in changed
    assert "--lr-step-epochs is unset, not 1,2,2.67" in changed
    mistyped = resume(rn50, photos, *flags, "--resume", "--model-prefix", "mm")
    assert "under mm: starting from the first epoch" in mistyped.err


def test_save_period_and_keep(rn50: Run, photos: Photos, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--benchmark-iters", "1", "--no-val", "-e", "5")
    assert resume(rn50, photos, *flags, "--save-period", "2").status == 0
    assert checkpoint.epochs("m") == [2, 4, 5]  # and always the last
    assert resume(rn50, photos, *flags, "--set", "keep=2", "--model-prefix", "n").status == 0
    assert checkpoint.epochs("n") == [4, 5]
    written = []
    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *to: (written.append(to[1].epoch), save(*to)))
    short = ("--benchmark-iters", "2", "-e", "3", "--save-period", "3", "--model-prefix", "p")
    ended = resume(rn50, photos, *short)
    assert ended.status == 0 and written == [3]  # none before the validation of a short epoch


@pytest.mark.parametrize(
    ("top1", "kept", "end"),
    [
        ([60, 90, 70, 80], [2, 4], "90 in epoch 2 (m-0002.safetensors); the last 80"),
        ([60, 90, 90, 80], [3, 4], "90 in epoch 3 (m-0003.safetensors); the last 80"),
        ([90, 60, 70, 90], [4], "90 in epoch 4, the last"),
    ],
    ids=["one", "the later of equals", "the last"],
)
def test_the_best_epoch_is_kept_and_named(
    rn50: Run, photos: Photos, monkeypatch: pytest.MonkeyPatch, top1: list[int], kept: list[int],
    end: str,
) -> None:  # fmt: skip
    """Also if the run is resumed, and if checkpoints are written within an epoch."""
    measured = iter(top1)
    evaluate = train.evaluate
    monkeypatch.setattr(train, "evaluate", lambda *run: evaluate(*run) | {"top1": next(measured)})
    flags = (*TINY, "--benchmark-iters", "2", "--checkpoint-steps", "1", "--set", "keep=1")
    run = ("train", "--data-root", photos.root, *flags, "--model-prefix", "m", "--report", "r.json")
    assert rn50(*run, "-e", "3").status == 0
    ended = rn50(*run, "-e", "4", "--resume")
    assert checkpoint.positions("m") == [(epoch, 0) for epoch in kept]
    assert f"best val top-1 {end}" in ended.err.splitlines()
    assert strict_json(Path("r.json"))["env"]["best_epoch"] == kept[0]


def test_without_validation_no_epoch_is_the_best(rn50: Run, photos: Photos) -> None:
    flags = ("--benchmark-iters", "1", "--set", "keep=1", "--report", "r.json")
    assert resume(rn50, photos, *flags, "-e", "2", "--no-val").status == 0
    ended = resume(rn50, photos, *flags, "-e", "4", "--resume")  # two values for four epochs
    assert checkpoint.epochs("m") == [4] and "best val top-1" not in ended.err
    assert strict_json(Path("r.json"))["env"]["best_epoch"] is None


# --- other kinds of run ---------------------------------------------------------------------------


def run(rn50: Run, photos: Photos, *flags: str) -> dict[str, Any]:
    ended = rn50("train", "--data-root", photos.root, *RUN, "-e", "1", "--report", "r.json", *flags)
    assert ended.status == 0, ended.err
    return strict_json(Path("r.json"))


def test_no_val(rn50: Run, photos: Photos) -> None:
    metrics = run(rn50, photos, "--no-val")["metrics"]
    assert {key.split(".")[0] for key in metrics} == {"train"}


def test_no_metrics_measures_speed_alone(rn50: Run, photos: Photos) -> None:
    metrics = run(rn50, photos, "--no-metrics")["metrics"]
    for phase in ("train", "val"):
        assert [metrics[f"{phase}.{part}"] for part in ("top1", "top5", "loss")] == [[None]] * 3
        assert metrics[f"{phase}.total_ips"][0] > 0


def test_a_phase_of_one_step_has_no_time(rn50: Run, photos: Photos) -> None:
    metrics = run(rn50, photos, "--benchmark-iters", "1")["metrics"]
    assert metrics["train.time"] == metrics["val.total_ips"] == [None]
    assert metrics["train.loss"][0] > 0


def test_a_diverged_loss_is_an_error_and_leaves_no_checkpoint(rn50: Run, photos: Photos) -> None:
    ended = rn50("train", "--data-root", photos.root, *RUN, "--lr", "1e30", "--warmup-epochs", "0",
                 "--model-prefix", "m", "--report", "r.json", "--disp-batches", "1")  # fmt: skip
    assert ended.status == 2
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "diverged" in errors[0] and "--lr" in errors[0]
    assert "epoch 1" in errors[0]
    assert checkpoint.epochs("m") == [] and not Path("r.json").exists()


def test_weights_that_the_last_update_ruins_are_not_written(rn50: Run, photos: Photos) -> None:
    """The loss of that step, before the update, is finite."""
    flags = ("--lr", "1e30", "--warmup-epochs", "0", "--benchmark-iters", "2", "--no-metrics")
    ended = rn50("train", "--data-root", photos.root, *RUN, *flags, "--model-prefix", "m")
    assert ended.status == 2
    (error,) = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert "the weights are not finite in epoch 1" in error and "--lr" in error
    assert checkpoint.epochs("m") == []


def test_durations_of_a_resumed_run_count_all_its_starts(rn50: Run, photos: Photos) -> None:
    def trained(epochs: int) -> tuple[float, dict[str, float]]:
        flags = ("-e", str(epochs), "--model-prefix", "m", "--resume", "--report", "r.json")
        assert rn50("train", "--data-root", photos.root, *TINY, *flags).status == 0
        report = strict_json(Path("r.json"))
        return report["total_duration"], report["env"]["seconds"]

    begin = perf_counter()
    first, parts = trained(2)
    assert first <= perf_counter() - begin
    assert trained(2) == (pytest.approx(first, abs=0.1), parts)  # nothing is left to do
    total, now = trained(3)
    assert total > first + sum(now.values()) - sum(parts.values())
    assert now["data"] > parts["data"] and now["step"] > parts["step"]


SLOW_AND_STOPPED = """
import os, pathlib, signal, time
calls = []
def schedule(progress, global_batch, recipe):
    if not pathlib.Path("stopped").exists():
        calls.append(time.sleep(0.3))
        if len(calls) == 3:
            pathlib.Path("stopped").touch()
            os.kill(os.getpid(), signal.SIGTERM)
    return 0.01
"""


def test_seconds_of_a_run_that_was_stopped_in_mid_epoch(rn50: Run, photos: Photos) -> None:
    Path("slow.py").write_text(SLOW_AND_STOPPED)
    flags = ("--model-prefix", "m", "--report", "r.json", "--override", "schedule=slow.py:schedule")
    run = ("train", "--data-root", photos.root, *TINY, *flags)
    assert rn50(*run).status == 143
    assert rn50(*run, "--resume").status == 0
    assert strict_json(Path("r.json"))["env"]["seconds"]["step"] > 0.9


def test_a_paced_step_measures_speed_and_writes_no_weights(
    rn50: Run, photos: Photos, tmp_path: Path
) -> None:
    report = run(rn50, photos, "--set", "step=5000", "--run-dir", str(tmp_path))
    assert report["metrics"]["train.top1"] == [None] and report["metrics"]["val.loss"] == [None]
    assert report["metrics"]["train.total_ips"][0] > 0
    assert report["env"]["versions"]["device"] == "paced at 5000 img/s"
    assert "model_flops" not in report["env"]  # the speed is not the machine's
    assert not list(tmp_path.rglob("*.safetensors"))


def test_test_io_times_the_input_alone_and_resumes_nothing(
    rn50: Run, photos: Photos, trained: Path
) -> None:
    files = {path: path.read_bytes() for path in trained.glob("m-*")}
    report = run(
        rn50, photos, "-e", "3", "--test-io", "--model-prefix", str(trained / "m"), "--resume"
    )
    assert len(report["metrics"]["train.total_ips"]) == 3
    assert min(report["metrics"]["train.total_ips"]) > 0
    assert report["env"]["versions"]["device"] == "none"
    assert not [key for key in report["metrics"] if key.startswith("val.")]
    assert {path: path.read_bytes() for path in trained.glob("m-*")} == files


@pytest.mark.parametrize(
    "flags", [("--test-io",), ("--no-val", "--no-metrics"), ("--only-inference", "--no-metrics")]
)
def test_an_epoch_of_one_step_says_why_it_has_no_speed(
    rn50: Run, photos: Photos, flags: tuple[str, ...]
) -> None:
    lines = {}
    for steps in ("1", "2"):
        argv = ("--data-root", photos.root, *RUN, "-e", "1", "--benchmark-iters", steps, *flags)
        lines[steps] = re.findall(r"1/1: .*", rn50("train", *argv).err)[-1]
    assert "no img/s, as the first step is not timed" in lines["1"]
    assert re.search(r"img/s \d", lines["2"]) and "no img/s" not in lines["2"]


@pytest.mark.slow
def test_test_io_reports_the_speed_of_the_slowest_worker(rn50: Run, photos: Photos) -> None:
    Path("slow.py").write_text("""
import os, time
from rn50lib.recipe import augment as usual

def augment(seed, width, height, augmentation):
    time.sleep(0.1 * int(os.environ["RANK"]))
    return usual(seed, width, height, augmentation)
""")
    slow = ("--test-io", "--data-nthreads", "0", "--override", "augment=slow.py:augment")
    ended = rn50("run", "--data-root", photos.root, *RUN, "-e", "1", "--report", "r.json",
                 "-n", "2", "--comm", "ddp", *slow)  # fmt: skip
    assert ended.status == 0, ended.err
    rate = strict_json(Path("r.json"))["metrics"]["train.total_ips"][0]
    assert 0 < rate < 2 / 0.1  # in training, rank 0 would wait for rank 1


def test_train_says_what_it_chose_and_what_it_leaves(rn50: Run, photos: Photos) -> None:
    flags = ("train", "--data-root", photos.root, *TINY, "-e", "1", "--no-val")
    nothing = rn50(*flags)
    assert "(counted in the data set)" in nothing.err and "global batch 1 x 8 = 8" in nothing.err
    assert "note: nothing is saved: pass --run-dir FOLDER" in nothing.err
    assert "report: " not in nothing.err and "model: " not in nothing.err
    reported = rn50(*flags, "--report", "r.json").err
    assert "note: the weights are not saved" in reported and "report: r.json" in reported
    ended = rn50(*flags, "--run-dir", "run").err
    assert "note: " not in ended and "report: run/report.json\nmodel: run/model-0001" in ended
    assert "predict with: rn50 predict run/model IMAGE.jpg" in ended


@pytest.mark.slow
def test_run_in_separate_processes(run_cli: Run, photos: Photos, tmp_path: Path) -> None:
    """It prints its choices and reasons, and keeps report, progress and model in its folder."""
    flags = ("--data-root", photos.root, *TINY[:4], "--threads", "1", "-e", "3", "--no-val")
    short = ("--data-nthreads", "1", "--num-examples", "32", "--warmup-epochs", "5")
    done = run_cli("run", *flags, *short)
    assert done.returncode == 0, done.stderr
    assert "(the published recipe)" in done.stderr and "(counted in the data set)" in done.stderr
    assert "  --lr-step-epochs 1,2,2.67  (" in done.stderr
    assert "global batch 1 x 32 = 32; learning rate 0.1 x 32 / 256 = 0.0125" in done.stderr
    assert "ends after epoch 3, inside its warm-up of 5" in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"report: {folder / 'report.json'}" in done.stderr
    assert f"model: {folder / 'model'}-0003.safetensors" in done.stderr
    assert f"predict with: rn50 predict {folder / 'model'} IMAGE.jpg" in done.stderr
    assert checkpoint.epochs(folder / "model") == [2, 3]  # the newest two
    told = strict_json(folder / "experiment.json")
    assert (told["experiment"]["batch_size"], told["reasons"]["num_epochs"]) == (32, "given")
    report = strict_json(folder / "report.json")
    assert report["env"]["axes"]["seed"] == {"value": 0, "reason": "the default"}
    assert report["env"]["axes"]["batch_size"]["reason"] != "given"
    assert report["cmd"][:2] == ["rn50", "train"] and "--num-examples" in report["cmd"]
    assert told["command"][1:] == [
        "-m",
        "rn50lib.train",
        "--config",
        str(folder / "experiment.json"),
    ]
    assert len(lines(folder)) >= 3

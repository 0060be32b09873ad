"""Loss scaling and accumulation: the rule, skipped updates, recovery, resume."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import checkpoint
from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.resnet import tiny
from tests.backends.test_exchange import distance
from tests.backends.test_torch import batch, busy_arrays
from tests.support import TINY, Ended, Photos, full, strict_json, timeless

Run = Callable[..., Ended]
pytestmark = pytest.mark.needs("torch")


def build(backend: str = "torch", **fields: Any) -> Any:
    from rn50lib.run_setup import build_step

    fields = {"backend": backend, "wd": 0.0} | fields
    step = build_step(full(6, **fields), tiny(6), Comm())
    step.load(busy_arrays(tiny(6)))
    return step


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def trained(step: Any) -> dict[str, np.ndarray]:
    """Return the arrays that an update changes."""
    return {name: array for name, array in step.state().items() if ".running_" not in name}


# --- the rule -------------------------------------------------------------------------------------


def after_a_step(scale: float, good_steps: int, finite: bool) -> tuple[float, int]:
    """Return the scale and the good steps in a row after a step, if three double the scale."""
    if not finite:
        return max(scale / 2, 1.0), 0
    return (min(2 * scale, 2.0**24), 0) if good_steps == 2 else (scale, good_steps + 1)


def test_loss_scale_rule_on_the_device() -> None:
    """Run 300 steps, one in five of them bad, up to both ends of the range."""
    import torch

    from rn50lib.torch.optimizer import LossScaler

    scaler = LossScaler("dynamic:4:3", "cpu")
    dice = np.random.default_rng(0)
    script = [*[False] * 4, *(dice.random(196) > 0.2), *[True] * 100]
    state, seen = (4.0, 0), set()
    for finite in script:
        scaler.check([torch.ones(3), torch.tensor([1.0, 0.0 if finite else np.nan])])
        scaler.advance()
        state = after_a_step(*state, bool(finite))
        held = scaler.state()
        assert (held["scale"], held["good_steps"]) == state
        seen.add(state[0])
    assert min(seen) == 1 and max(seen) == 2**24
    assert held["skipped"] == script.count(False)
    for good_steps in (1, 2):  # of a checkpoint
        held = {"scale": 8.0 * good_steps, "good_steps": good_steps, "skipped": 7}
        scaler.load(held)
        assert scaler.state() == held


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_one_bad_gradient_skips_the_update(bad: float) -> None:
    step = build(loss_scale="dynamic:1024:2", wd=0.01)
    spoil_at(step, {0, 3}, bad)
    for i, (scale, skipped) in enumerate([(512, 1), (512, 1), (1024, 1), (512, 2), (512, 2)]):
        before = trained(step)
        step.train_step(batch(8, seed=i), 0.1)
        assert equal(trained(step), before) == (i in (0, 3))
        assert (step.loss_scale_state()["scale"], step.loss_scale_state()["skipped"]) == (
            scale,
            skipped,
        )
    assert all(np.isfinite(array).all() for array in step.state().values())


def spoil_at(step: Any, at: set[int], bad: float) -> None:
    """Put `bad` into one number of the exchanged gradients at some of the steps."""
    count = [0]

    def spoils() -> bool:
        count[0] += 1
        return count[0] - 1 in at

    from rn50lib.torch.gradient_sync import GradientSync

    class Spoiled(GradientSync):
        def __call__(self) -> None:
            if spoils():
                list(step.model.parameters())[5].grad.view(-1)[0] = bad

    step.sync = Spoiled(step.model)


# --- accumulation ---------------------------------------------------------------------------------


def pieces(whole: Batch, size: int) -> list[Batch]:
    return [
        Batch(whole.images[i : i + size], whole.labels[i : i + size], size)
        for i in range(0, len(whole.labels), size)
    ]


@pytest.mark.parametrize("scale", [None, "256"])
def test_accumulated_batches_equal_one_large_batch(scale: str | None) -> None:
    """Batch norm's statistics are frozen, because each batch has its own; three updates."""
    large = build(batch_size=12, loss_scale=scale, wd=0.01)
    small = build(batch_size=4, macrobatch_size=12, loss_scale=scale, wd=0.01)
    for step in (large, small):
        step.model.eval()
        step.model.train = lambda mode=True, model=step.model: model
    for i, lr in enumerate((0.05, 0.1, 0.02)):
        whole = batch(12, seed=i)
        large.train_step(whole, lr)
        before = trained(small)
        for piece in pieces(whole, 4):
            assert equal(trained(small), before)
            small.train_step(piece, lr)
    wanted, made = trained(large), trained(small)
    assert not equal(made, before)
    assert distance(wanted, made) < 1e-4
    np.testing.assert_allclose(small.pop_metrics(), large.pop_metrics(), rtol=1e-4)


def test_epoch_drops_an_incomplete_update(rn50: Run, photos: Photos, tmp_path: Path) -> None:
    """48 images in batches of 4 make three updates of 16, or two of 20 and a rest.

    The learning rate is that of the update, the same for all its batches.
    """
    (tmp_path / "mine.py").write_text(
        "def schedule(progress, global_batch, recipe):\n"
        "    with open('asked', 'a') as f: print(progress, global_batch, file=f)\n"
        "    return 0.01\n"
    )
    common = ("train", "--data-root", photos.root, *TINY, "-e", "1", "-b", "4", "--no-val",
              "--override", "schedule=mine.py:schedule", "--report", "r.json")  # fmt: skip
    for macro, updates in ((16, 3), (20, 2)):
        Path("asked").unlink(missing_ok=True)
        ended = rn50(*common, "--macrobatch-size", str(macro))
        assert ended.status == 0, ended.err
        each = macro // 4
        asked = [line.split() for line in Path("asked").read_text().splitlines()]
        assert [float(p) for p, _ in asked] == [
            pytest.approx(u / updates) for u in range(updates) for _ in range(each)
        ]
        assert {size for _, size in asked} == {str(macro)}


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def run(rn50: Run, photos: Photos, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run one epoch of six float32 steps with a dynamic scale; return the report and the output."""

    def go(*flags: str, name: str = "m") -> dict[str, Any]:
        ended = rn50("train", "--data-root", photos.root, *TINY, "-e", "1", "--disp-batches", "2",
                     "--report", f"{name}.json", "--run-dir", f"{name}.run",
                     "--model-prefix", name, *flags)  # fmt: skip
        assert ended.status == 0, ended.err
        return strict_json(tmp_path / f"{name}.json") | {"said": ended.err}

    return go


def test_overflow_is_counted_reported_and_recovered_from(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """The first scale of a float16 run is too large: it is halved until gradients are finite."""
    report = run("--dtype", "float16", "--set", "loss_scale=dynamic", "--disp-batches", "1")
    state = report["env"]["loss_scale"]
    skipped, scale = state["skipped_updates"], state["scale"]
    assert 0 < skipped < 6 and scale == 2.0 ** (16 - skipped)
    assert f"{skipped} of 6 updates were skipped" in report["said"]
    lines = (tmp_path / "m.run" / "progress.jsonl").read_text().splitlines()
    readings = [json.loads(line) for line in lines]
    scales = [line["loss_scale"] for line in readings if line["phase"] == "train"]
    assert len(scales) == 5 and scales[-1] == scale  # after steps 2 to 6
    held = checkpoint.load(tmp_path / "m", 1)
    assert held.loss_scale.items() >= {"scale": scale, "skipped": skipped}.items()
    last = 2 + scales.index(scale)  # the last overflow: this step, or 1 if the first lines agree
    assert held.loss_scale["good_steps"] in ({4, 5} if last == 2 else {6 - last})
    assert all(np.isfinite(array).all() for array in held.arrays.values())


@pytest.mark.slow
def test_resumed_run_keeps_its_loss_scale(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """A float16 run whose first scale overflows is bit-exact, with metrics and skipped steps."""
    flags = ("--dtype", "float16", "--set", "loss_scale=dynamic:16777216:3")
    whole = run(*flags, "-e", "2", name="whole")
    run(*flags, "-e", "1", name="parts")
    parts = run(*flags, "-e", "2", "--resume", name="parts")
    total = whole["env"]["loss_scale"]["skipped_updates"]
    of_epochs = re.findall(r"(\d+) of 6 updates were skipped", whole["said"])
    assert len(of_epochs) == 2 and sum(map(int, of_epochs)) == total
    assert whole["env"]["loss_scale"] == parts["env"]["loss_scale"]
    left, right = (checkpoint.load(tmp_path / name, 2) for name in ("whole", "parts"))
    assert equal(left.arrays, right.arrays) and left.loss_scale == right.loss_scale
    assert timeless(whole) == timeless(parts)

"""The talk's two recipes: a learner's script, judged by what it does on two ranks."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.tfrecordwriter import serialize_example
from workshop.checks import alone
from workshop.checks.compare import Failed, wrong
from workshop.errors import RunFailed
from workshop.observe import try_script, verdict

RANKS, BATCH, IMAGES, SIDE = 2, 4, 96, 16
MORE_STEPS = 60  # than any right script takes: it is watched to its end
MISSING = {  # a change: what is wrong without it, and what to do
    "start": ("the ranks are not started",
              "Change 1: begin with hvd.init() or dist.init_process_group()."),
    "share": ("the ranks do not share the images",
              "Change 2: each rank takes its own part: order[rank::size]."),
    "rate": ("the learning rate is not right",
             "Change 3: multiply the rate by the number of ranks, lr * size."),
    "average": ("the gradients are not averaged",
                "Change 4: train with hvd.DistributedOptimizer(optimizer, net.named_parameters()),"
                " or call the net that nn.parallel.DistributedDataParallel(net) returns."),
    "alike": ("initial weights may differ", "Change 5: hvd.broadcast_parameters(net.state_dict(),"
              " root_rank=0), before the first step; DistributedDataParallel does it."),
    "writes": ("not only rank 0 writes", "Change 6: write only inside `if rank == 0:`."),
}  # fmt: skip


def signs(folder: Path) -> Path:
    """Write small images of two signs, a red disc and a yellow triangle; return the file.

    It holds `images` (IMAGES, 3, SIDE, SIDE), float32 from 0 to 1, and `labels` (IMAGES,).
    """
    path = folder / "signs.npz"
    draw = np.random.default_rng(0)
    labels = np.arange(IMAGES) % 2
    y, x = np.mgrid[:SIDE, :SIDE] / (SIDE - 1) - 0.5
    disc, triangle = x**2 + y**2 < 0.16, (y < 0.4) & (2 * np.abs(x) < y + 0.4)
    images = draw.random((IMAGES, 3, SIDE, SIDE), np.float32) * 0.6
    images[labels == 0, 0] += 0.4 * disc
    images[labels == 1, :2] += 0.4 * triangle
    np.savez(path, images=images, labels=labels)
    return path


def parallel(answer: Callable[..., Any]) -> str:
    """Check recipe 1, with Horovod or DDP."""
    seen = run(answer)
    rows, steps = {row.change: (row.status, row.evidence) for row in seen.rows}, seen.steps
    there = sum(rows[change][0] == "seen" for change in MISSING) / len(MISSING)
    for change, (what, remedy) in MISSING.items():
        status, evidence = rows[change]
        # equal weights without a broadcast: this training draws them without a seed, so they come
        # from a seed that the learner has set, and a resumed rank 0 would be alone
        if status == "missing" or (change in ("alike", "writes", "share") and status != "seen"):
            wrong(f"{what}: {evidence}.", remedy, there)
    if verdict.DDP_NAMES in rows["writes"][1]:
        wrong(f"{verdict.DDP_NAMES}.", "Save net.module.state_dict().", there)
    right = IMAGES // (RANKS * BATCH)
    if steps != right:
        as_one = ", as many as one alone" * (steps == IMAGES // BATCH)
        wrong(
            f"each rank takes {steps} steps{as_one}; an epoch on {RANKS} ranks has {right}.",
            f"Divide {IMAGES} images by {RANKS} ranks with {BATCH} images per step each.",
        )
    said = [f"  {verdict.TITLES[change]}: {text}." for change, (_, text) in rows.items()]
    return "\n".join([f"{steps} steps on {RANKS} ranks.", *said])


def run(answer: Callable[..., Any]) -> verdict.Result:
    """Run the learner's cell as a script, on two ranks and on one; return the verdict.

    Its images are in signs.npz, in the same folder. Raises Failed, or Wrong if the library was not
    started.
    """
    with tempfile.TemporaryDirectory(prefix="recipe-") as name:
        folder = Path(name)
        script, call = folder / "train.py", f'\n{answer.__name__}("signs.npz", "out")\n'
        script.write_text(alone.script_of(answer) + call, encoding="utf-8")
        signs(folder)
        (folder / "out").mkdir()
        try:
            env = {"CUDA_VISIBLE_DEVICES": ""}
            return try_script(script, ranks=RANKS, steps=MORE_STEPS, env=env)
        except RunFailed as problem:
            error, place = script_error(problem.log, script)
    if "not been initialized" in error or "has not been init" in error:
        wrong(f"the script ends in: {error}", MISSING["start"][1])
    raise Failed(error, place)


def write(folder: Path, images: np.ndarray, labels: np.ndarray, shards: int) -> list[str]:
    """Write images (N, 3, H, W), uint8, as TFRecord shards in the slides' schema; return them."""
    import tensorflow as tf

    folder.mkdir()
    paths = [str(folder / f"train-{n:05}-of-{shards:05}") for n in range(shards)]
    for path, part in zip(paths, np.array_split(np.arange(len(labels)), shards), strict=True):
        with tf.io.TFRecordWriter(path) as writer:
            for n in part:
                pixels = images[n].transpose(1, 2, 0)
                features = dict(zip(("height", "width"), pixels.shape, strict=False))
                features |= {"img_raw": pixels.tobytes(), "label": float(labels[n])}
                writer.write(serialize_example(features))
    return paths


def script_error(log: str, script: Path) -> tuple[str, str]:
    """Return the error that a traceback ends with, and its innermost place in the script."""
    lines = [line.strip() for line in log.strip().splitlines()]
    place = ""
    for line, text in zip(lines, lines[1:], strict=False):
        if found := re.search(rf'{re.escape(script.name)}", (line \d+.*)', line):
            place = f"See {found[1]}: `{text}`."
    errors = [line for line in lines if re.match(r"(?!Hint)[\w.]+(: |$)", line)]
    return (errors or lines or ["it failed"])[-1], place

"""Our prediction or training step, and ResNet-50 as a good user of PyTorch runs it; in turns.

    python benchmarks/steps.py predict --batches 1 8 32 --dtypes float32 bfloat16
    python benchmarks/steps.py train --batches 16 --allocator default

All have the same weights, images and threads, and the same setting of the allocator: that of
`rn50 run`, or glibc's default. Before anything is timed their answers are compared: the
probabilities, or the loss of the first step.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import peers
import torch
from rounds import ROOT, Server, arguments, environment, print_table, run_rounds, summarise

from rn50.launch import ALLOCATOR, with_library
from rn50lib.errors import UserError
from rn50lib.hardware import machine

CONTESTANTS = {  # the flags of contestant_step.py
    "ours": ["--how", "ours"],
    "eager": ["--how", "eager"],
    "eager NCHW": ["--how", "eager", "--contiguous"],
    "compile": ["--how", "compile"],
    "compile frozen": ["--how", "frozen"],
    "ONNX Runtime": ["--how", "onnx", "--contiguous"],
}
TRAINING = ("ours", "eager", "eager NCHW", "compile")
# how much answers may differ, as a share of the loss, or of the logits about their mean
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1}
# `rn50 run` does not change a user's glibc.malloc setting; this one is the default
MALLOCS = {"ours": ALLOCATOR, "default": "glibc.malloc.tcache_count=7"}


def make_weights(folder: Path, size: int) -> tuple[Path, Path]:
    """Make random weights with fitting statistics of batch norm.

    Returns a state dict for the peers, and the prefix of a checkpoint that `rn50 import` makes.
    """
    torch.manual_seed(0)
    model = peers.ResNet50()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the mean of all batches so far
            if name.endswith("bn3"):  # as in a trained network, which amplifies no rounding
                torch.nn.init.constant_(module.weight, 0.2)
    with torch.no_grad():
        model((torch.rand(8, 3, size, size) - 0.45) / 0.226)
    file, prefix = folder / "weights.pth", folder / "weights"
    torch.save(model.state_dict(), file)
    command = [sys.executable, "-m", "rn50", "import", "torchvision", file, "-o", prefix]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=with_library({**os.environ}))
    return file, prefix


def contestants(args: argparse.Namespace, dtype: str) -> list[str]:
    """Return the names of those that take part, ours first; print what is left out."""
    names = list(TRAINING if args.job == "train" else CONTESTANTS)
    if args.only:
        names = ["ours", *(n for n in names[1:] if any(part in n for part in args.only))]
    onnx = all(map(importlib.util.find_spec, ("onnx", "onnxruntime")))
    if "ONNX Runtime" in names and (dtype == "bfloat16" or not onnx):
        names.remove("ONNX Runtime")  # it has no convolutions in bfloat16 for these processors
        print("ONNX Runtime: left out: float32 only, and `pip install onnx onnxruntime`")
    return names


def check_agreement(ours: Server, name: str, peer: Server, dtype: str) -> None:
    """Raise UserError if a contestant's answer is not ours."""
    wanted, found = (np.asarray(server.answer, np.float64) for server in (ours, peer))
    if wanted.ndim:  # probabilities: the logits but for a constant
        wanted, found = (x - x.mean() for x in (np.log(wanted), np.log(found)))
    off = float(np.linalg.norm(wanted - found) / np.linalg.norm(wanted))
    if not off <= TOLERANCES[dtype]:
        raise UserError(f"{name}: its answers differ from ours by {off:.2g} of their size")


def compare(args: argparse.Namespace, weights: tuple[Path, Path], batch: int, dtype: str) -> None:
    """Compare one batch size in one precision."""
    what = f"{args.job}, {args.size} px, batch {batch}, {dtype}, {args.threads} threads"
    if dtype == "bfloat16" and not machine().bfloat16:
        print(f"{what}: left out: this processor only emulates bfloat16")
        return
    print(what, flush=True)
    measure = "cpu_seconds" if args.cpu else "seconds"
    with contextlib.ExitStack() as stack:
        started: dict[str, Server] = {}
        for name in contestants(args, dtype):
            command = [sys.executable, f"{ROOT}/benchmarks/contestant_step.py", args.job,
                       str(weights[name == "ours"]), *CONTESTANTS[name], "--size", str(args.size),
                       "--batch", str(batch), "--dtype", dtype, "--threads",
                       str(args.threads)]  # fmt: skip
            started[name] = Server(command, environment(args.threads, MALLOCS[args.allocator]))
            stack.callback(started[name].stop)
            check_agreement(started["ours"], name, started[name], dtype)
        work = {name: functools.partial(server.work, args.seconds, measure)
                for name, server in started.items()}  # fmt: skip
        seconds = run_rounds(work, args.rounds)
    print_table(seconds, "ours", batch, "img")
    peers_ = sorted(set(seconds) - {"ours"}, key=lambda name: statistics.median(seconds[name]))
    summarise(seconds, [("ours", name) for name in peers_[:1]], f"{what}, best peer")


def main() -> None:
    """Run the comparison."""
    parser = arguments(__doc__)
    parser.add_argument("job", choices=("train", "predict"))
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batches", type=int, nargs="+", help="default: 1 8 32, in training 16")
    parser.add_argument("--dtypes", nargs="+", choices=tuple(TOLERANCES), default=list(TOLERANCES))
    parser.add_argument("--threads", type=int, default=machine().cores)
    parser.add_argument("--allocator", choices=tuple(MALLOCS), default="ours")
    parser.add_argument("--seconds", type=float, default=1.0, help="of work in each turn")
    args = parser.parse_args()
    batches = args.batches or ([1, 8, 32] if args.job == "predict" else [16])
    with tempfile.TemporaryDirectory() as folder:
        weights = make_weights(Path(folder), args.size)
        for batch, dtype in itertools.product(batches, args.dtypes):
            compare(args, weights, batch, dtype)


if __name__ == "__main__":
    main()

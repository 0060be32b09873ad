"""Our prediction or training step, and ResNet-50 as a good user of PyTorch runs it; in turns.

    python benchmarks/steps.py predict --batches 1 8 32 --dtypes float32 bfloat16
    python benchmarks/steps.py train --batches 16 --allocator both

All have the same weights, images and threads, and the same setting of the allocator (that of
`rn50 run`, or glibc's default, or both, one after the other). Before anything is timed they must
agree: in the probabilities, or in the loss of the first step.
"""

from __future__ import annotations

import argparse
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
from rounds import ROOT, Server, environment, print_table, run_rounds, summarise

from rn50.launch import ALLOCATOR, with_library
from rn50lib.errors import UserError
from rn50lib.hardware import machine

DEFAULT_MALLOC = " (default malloc)"  # ends the name of a contestant without our setting
MALLOCS = {"ours": ("",), "default": (DEFAULT_MALLOC,), "both": ("", DEFAULT_MALLOC)}
PEERS = {  # the flags of peer_step.py
    "eager": [],
    "eager NCHW": ["--contiguous"],
    "compile": ["--how", "compile"],
    "compile frozen": ["--how", "frozen"],
    "jit": ["--how", "jit"],
    "jit NCHW": ["--how", "jit", "--contiguous"],
    "ONNX Runtime": ["--how", "onnx", "--contiguous"],
}
TRAINING = ("eager", "eager NCHW", "compile")
AGREE = {"float32": 1e-3, "bfloat16": 0.1}
"""By how much answers may differ, as a share of the logits about their mean, or of the loss."""


def make_weights(folder: Path, size: int) -> tuple[Path, Path]:
    """Random weights, with statistics of batch norm that fit them: a state dict for the peers, and
    the prefix of a checkpoint, made of it by `rn50 import`."""
    torch.manual_seed(0)
    model = peers.ResNet50()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the mean of all batches so far
            if name.endswith("bn3"):  # as in a trained network: else it makes much of each rounding
                torch.nn.init.constant_(module.weight, 0.2)
    with torch.no_grad():
        model((torch.rand(8, 3, size, size) - 0.45) / 0.226)
    file, prefix = folder / "weights.pth", folder / "weights"
    torch.save(model.state_dict(), file)
    command = [sys.executable, "-m", "rn50", "import", "torchvision", file, "-o", prefix]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=with_library({**os.environ}))
    return file, prefix


def why_left_out(args: argparse.Namespace, name: str, dtype: str) -> str | None:
    if name == "ONNX Runtime":
        if dtype == "bfloat16":
            return "it has no convolutions in bfloat16 for this kind of processor"
        if not all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))):
            return "`pip install onnx onnxruntime`"
    return None


def start(args: argparse.Namespace, batch: int, dtype: str) -> dict[str, Server]:
    """The contestants, ready to work. Raises UserError when they do not agree."""
    started: dict[str, Server] = {}
    try:
        for name in ("ours", *(TRAINING if args.job == "train" else PEERS)):
            if args.only and name != "ours" and not any(part in name for part in args.only):
                continue
            why = why_left_out(args, name, dtype)
            if why:
                print(f"{name}: left out: {why}")
                continue
            script = ["our_step.py", args.prefix]
            if name != "ours":
                script = ["peer_step.py", args.weights, *PEERS[name]]
            command = [sys.executable, f"{ROOT}/benchmarks/{script[0]}", args.job, *script[1:],
                       "--size", str(args.size), "--batch", str(batch), "--dtype", dtype,
                       "--threads", str(args.threads)]  # fmt: skip
            for end in MALLOCS[args.allocator]:
                # `rn50 run` leaves a user's glibc.malloc setting alone; this one is the default
                malloc = "glibc.malloc.tcache_count=7" if end else ALLOCATOR
                started[name + end] = Server(command, environment(args.threads, malloc))
                check_agree(started, name + end, dtype)
    except BaseException:
        stop(started)
        raise
    return started


def check_agree(started: dict[str, Server], name: str, dtype: str) -> None:
    """Raise UserError where a contestant's answer is not that of the first one."""
    wanted, found = (np.asarray(started[x].answer, np.float64) for x in (next(iter(started)), name))
    if wanted.ndim:  # probabilities: the logits but for a constant
        wanted, found = (x - x.mean() for x in (np.log(wanted), np.log(found)))
    off = float(np.linalg.norm(wanted - found) / np.linalg.norm(wanted))
    if not off <= AGREE[dtype]:
        raise UserError(f"{name}: its answers differ from ours by {off:.2g} of their size")


def stop(started: dict[str, Server]) -> None:
    for server in started.values():
        server.stop()


def compare(args: argparse.Namespace, batch: int, dtype: str) -> None:
    """One batch size in one precision."""
    what = f"{args.job}, {args.size} px, batch {batch}, {dtype}, {args.threads} threads"
    if dtype == "bfloat16" and not machine().bfloat16:
        print(f"{what}: left out: this processor only imitates bfloat16")
        return
    print(what, flush=True)
    measure = "cpu_seconds" if args.cpu else "seconds"
    started = start(args, batch, dtype)
    try:
        contestants = {
            name: functools.partial(server.work, args.seconds, measure)
            for name, server in started.items()
        }
        seconds = run_rounds(contestants, args.rounds)
    finally:
        stop(started)
    print_table(seconds, next(iter(seconds)), batch, "img")
    pairs = []
    for end in MALLOCS[args.allocator]:
        own = f"ours{end}"
        others = [x for x in seconds if x != own and x.endswith(DEFAULT_MALLOC) == bool(end)]
        pairs += [(own, x) for x in sorted(others, key=lambda x: statistics.median(seconds[x]))[:1]]
    summarise(seconds, pairs, f"{what}, best peer")


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", choices=("train", "predict"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batches", type=int, nargs="+", help="default: 1 8 32, in training 16")
    parser.add_argument("--dtypes", nargs="+", choices=tuple(AGREE), default=list(AGREE))
    parser.add_argument("--threads", type=int, default=machine().cores)
    parser.add_argument("--allocator", choices=tuple(MALLOCS), default="ours")
    parser.add_argument("--seconds", type=float, default=1.0, help="of work in each turn")
    parser.add_argument(
        "--cpu", action="store_true", help="compare processor seconds; sensible with --threads 1"
    )
    parser.add_argument("--only", nargs="+", help="peers by a part of their name")
    args = parser.parse_args()
    batches = args.batches or ([1, 8, 32] if args.job == "predict" else [16])
    with tempfile.TemporaryDirectory() as folder:
        args.weights, args.prefix = map(str, make_weights(Path(folder), args.size))
        for batch, dtype in itertools.product(batches, args.dtypes):
            compare(args, batch, dtype)


if __name__ == "__main__":
    main()

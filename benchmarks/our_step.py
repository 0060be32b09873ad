"""Our step, or our prediction, as `rn50 run` and `rn50 predict` have it, for steps.py.

python benchmarks/our_step.py predict CHECKPOINT --batch 1
"""

from __future__ import annotations

import argparse

import numpy as np
import stopwatch

from rn50.autoconfig import resolve
from rn50lib import checkpoint
from rn50lib import distributed as comm
from rn50lib.config import Experiment
from rn50lib.data import Batch
from rn50lib.hardware import machine
from rn50lib.train_step import build_step

parser = argparse.ArgumentParser()
parser.add_argument("job", choices=("train", "predict"))
parser.add_argument("prefix")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--threads", type=int)
args = parser.parse_args()

asked = Experiment(
    loader="synthetic", backend="torch", image_shape=args.size, batch_size=args.batch,
    dtype=args.dtype, threads=args.threads, num_classes=1000, only_inference=args.job == "predict",
)  # fmt: skip
done = resolve(asked, machine(), 1000).experiment
net = done.to_network()
step = build_step(done, net, comm.connect())
arrays = checkpoint.load(args.prefix, 0).arrays
step.load({name: arrays[name] for name in net.arrays()})
rng = np.random.default_rng(0)
images = rng.integers(0, 256, (args.batch, args.size, args.size, 3), np.uint8)
batch = Batch(images, rng.integers(0, 1000, args.batch), args.batch)

if args.job == "predict":
    for _ in range(3):
        answer = step.predict(images)[:4].tolist()
    stopwatch.serve(lambda: step.predict(images), answer)
else:
    step.train_step(batch, 0.01)
    stopwatch.serve(lambda: step.train_step(batch, 0.01), step.pop_metrics()[0] / args.batch)

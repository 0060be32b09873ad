"""The bare peer: timm's ResNet-50 on random images as a user would run it, and nothing else.

    python benchmarks/timm_step.py --size 224 --batch 16 --dtype float32 --steps 8

Prints the seconds of each step as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import peers
import torch
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--inference", action="store_true", help="predict instead of training")
parser.add_argument("--threads", type=int, default=torch.get_num_threads())
args = parser.parse_args()

torch.set_num_threads(args.threads)
model = peers.timm_resnet50().to(memory_format=torch.channels_last).train(not args.inference)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
images = torch.rand(args.batch, 3, args.size, args.size).to(memory_format=torch.channels_last)
labels = torch.randint(0, 1000, (args.batch,))
autocast = torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16")


def train() -> None:
    with autocast:
        loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.inference_mode()
def predict() -> None:
    with autocast:
        model(images)


seconds = []
for _ in range(args.steps + 1):
    begin = time.perf_counter()
    predict() if args.inference else train()
    seconds.append(time.perf_counter() - begin)
print(json.dumps(seconds[1:]))  # the first step fills caches

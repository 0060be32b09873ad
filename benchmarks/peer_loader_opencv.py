"""The peer by hand: simplejpeg decodes, OpenCV makes small, in the workers of PyTorch's DataLoader.

    python benchmarks/peer_loader_opencv.py ROOT --size 224 --workers 1

A picture of which the crop holds more than is needed is decoded at a half, a quarter or an eighth.
Prints the seconds an image of each epoch of class folders in ROOT/train, without its first batch.
"""

import argparse
import glob
import json
import math
import os
import random
import time

import cv2
import numpy as np
import simplejpeg
import torch

parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--epochs", type=int, default=1, help="prints a line after each")
args = parser.parse_args()
cv2.setNumThreads(0)
torch.set_num_threads(1)


def crop(height, width):
    """Left, top, width and height of 5 to 100 % of the area, as torchvision draws them."""
    for _ in range(10):
        area = height * width * random.uniform(0.05, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    return 0, 0, width, height


class Images(torch.utils.data.Dataset):
    """Class folders."""

    def __init__(self):
        self.paths = sorted(glob.glob(f"{args.root}/train/*/*.jpg"))
        self.labels = [int(os.path.basename(os.path.dirname(path))) for path in self.paths]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as file:
            data = file.read()
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        left, top, w, h = crop(height, width)
        ratio = next(r for r in (8, 4, 2, 1) if r == 1 or min(w, h) >= r * args.size)
        pixels = simplejpeg.decode_jpeg(
            data, min_height=-(-height // ratio), min_width=-(-width // ratio), min_factor=ratio,
            fastdct=True, fastupsample=True,
        )  # fmt: skip
        x, y, w, h = left // ratio, top // ratio, w // ratio, h // ratio
        how = cv2.INTER_AREA if min(w, h) > args.size else cv2.INTER_LINEAR
        small = cv2.resize(pixels[y : y + h, x : x + w], (args.size, args.size), interpolation=how)
        if random.random() < 0.5:
            small = cv2.flip(small, 1)
        return torch.from_numpy(np.ascontiguousarray(small)), self.labels[i]


loader = torch.utils.data.DataLoader(
    Images(), args.batch, shuffle=True, num_workers=args.workers, drop_last=True, prefetch_factor=4,
    persistent_workers=True,
)  # fmt: skip
for _ in range(args.epochs):
    batches = iter(loader)
    next(batches)
    begin, count = time.perf_counter(), 0
    for pixels, _ in batches:
        assert pixels.dtype == torch.uint8
        count += len(pixels)
    print(json.dumps({"seconds": (time.perf_counter() - begin) / count}), flush=True)

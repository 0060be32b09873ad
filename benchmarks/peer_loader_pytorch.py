"""The peers in PyTorch's DataLoader: torchvision's transforms on Pillow, as in its reference; or,
by hand, simplejpeg to decode and OpenCV to make small.

    python benchmarks/peer_loader_pytorch.py ROOT --size 224 --workers 1 [--opencv | --decode]

By hand, an image whose crop holds more than is needed is decoded at a fraction of its size. Prints
the seconds an image of class folders in ROOT/train, without the first batch. With --decode it only
decodes files that are in memory, in this process: the part that every loader has to do.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import peers
import torch

parser = argparse.ArgumentParser()
parser.add_argument("root", type=Path)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--opencv", action="store_true", help="simplejpeg and OpenCV")
parser.add_argument("--decode", action="store_true", help="simplejpeg alone")
args = parser.parse_args()
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


class ByHand(torch.utils.data.Dataset):
    """Class folders, through simplejpeg and OpenCV."""

    def __init__(self):
        self.paths = sorted(args.root.glob("train/*/*.jpg"))

    def __len__(self):
        return len(self.paths)

    def decode(self, data):
        """Return the image, and the crop in it as left, top, width and height."""
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        left, top, w, h = crop(height, width)
        ratio = next(r for r in (8, 4, 2, 1) if r == 1 or min(w, h) >= r * args.size)
        pixels = simplejpeg.decode_jpeg(
            data, min_height=-(-height // ratio), min_width=-(-width // ratio), min_factor=ratio,
            fastdct=True, fastupsample=True,
        )  # fmt: skip
        return pixels, (left // ratio, top // ratio, w // ratio, h // ratio)

    def __getitem__(self, i):
        pixels, (x, y, w, h) = self.decode(self.paths[i].read_bytes())
        how = cv2.INTER_AREA if min(w, h) > args.size else cv2.INTER_LINEAR
        small = cv2.resize(pixels[y : y + h, x : x + w], (args.size, args.size), interpolation=how)
        if random.random() < 0.5:
            small = cv2.flip(small, 1)
        return torch.from_numpy(small), int(self.paths[i].parent.name)


if args.decode:
    import simplejpeg

    images = ByHand()
    files = [path.read_bytes() for path in images.paths]
    begin = time.perf_counter()
    for data in files:
        images.decode(data)
    print(json.dumps({"seconds": (time.perf_counter() - begin) / len(files)}))
    raise SystemExit
if args.opencv:
    import cv2
    import simplejpeg

    cv2.setNumThreads(0)
    images = ByHand()
else:
    with peers.missing_operators_allowed():
        from torchvision import datasets, transforms
    images = datasets.ImageFolder(
        f"{args.root}/train",
        transforms.Compose(
            [
                transforms.RandomResizedCrop(args.size, scale=(0.05, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.PILToTensor(),
            ]
        ),
    )
loader = torch.utils.data.DataLoader(
    images, args.batch, shuffle=True, num_workers=args.workers, drop_last=True, prefetch_factor=4,
    persistent_workers=True,
)  # fmt: skip
batches = iter(loader)
next(batches)
begin, count = time.perf_counter(), 0
for pixels, _ in batches:
    assert pixels.dtype == torch.uint8
    count += len(pixels)
print(json.dumps({"seconds": (time.perf_counter() - begin) / count}))

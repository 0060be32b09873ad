"""The peer: PyTorch's DataLoader with torchvision's transforms on Pillow, as in its reference.

    python benchmarks/peer_loader_torchvision.py ROOT --size 224 --workers 1

Prints the seconds for an epoch of class folders in ROOT/train, without its first batch, as JSON.
"""

import argparse
import json
import time

import peers
import torch

with peers.missing_operators_allowed():
    from torchvision import datasets, transforms

parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--epochs", type=int, default=1, help="prints a line after each")
parser.add_argument("--fast", action="store_true", help="no antialiasing: Pillow knows none")
args = parser.parse_args()

chain = transforms.Compose(
    [
        transforms.RandomResizedCrop(args.size, scale=(0.05, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
)
torch.set_num_threads(1)
images = datasets.ImageFolder(f"{args.root}/train", chain)
loader = torch.utils.data.DataLoader(
    images, args.batch, shuffle=True, num_workers=args.workers, drop_last=True, prefetch_factor=4,
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

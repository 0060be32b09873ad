"""A parallel training script that is slow and wrong in several ways: exercise ex08.capstone.

The check starts it on two ranks. `train(data, out)` trains a small network on the images in
DATA/train, validates it after every epoch on those in DATA/val, and writes OUT/report.json.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed.nn.functional  # if imported later, it keeps the process group open
from PIL import Image
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F

SIZE, BATCH, EPOCHS, PEAK = 64, 16, 3, 0.1  # pixels, images per step of all ranks, epochs, top rate
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of red, green and blue, 0 to 255


class Net(nn.Sequential):
    """Four convolutions and a linear layer. Do not change it."""

    def __init__(self, classes):
        layers, before = [], 3
        for channels in (16, 32, 64, 64):
            layers += [nn.Conv2d(before, channels, 3, 2, 1, bias=False), nn.BatchNorm2d(channels)]
            layers += [nn.ReLU()]
            before = channels
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def load_image(file):
    """Return one normalised image, shape (3, SIZE, SIZE)."""
    image = Image.open(file).convert("RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    pixels = [[image.getpixel((column, row)) for column in range(SIZE)] for row in range(SIZE)]
    x = []
    for c in range(3):
        x.append([[(pixel[c] - MEAN[c]) / STD[c] for pixel in row] for row in pixels])
    return torch.tensor(x, dtype=torch.float64)


def batches(files, classes, count):
    """Yield `count` images and their labels at a time."""
    for first in range(0, len(files) - count + 1, count):
        chosen = files[first : first + count]
        labels = [classes.index(file.parent.name) for file in chosen]
        yield torch.stack([load_image(file) for file in chosen]), torch.tensor(labels)


def learning_rate(progress):
    """Return the rate after `progress` epochs: linear warm-up for one epoch, then down to 0."""
    return PEAK * min(progress, (EPOCHS - progress) / (EPOCHS - 1))


def exchange(net):
    """Average the gradients over all ranks."""
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def validate(net, files, classes):
    """Return the mean loss and the top-1 accuracy in percent."""
    losses, hits = [], []
    for x, labels in batches(files, classes, 2):
        logits = net(x)
        losses.append(F.cross_entropy(logits, labels).item())
        hits.append((logits.argmax(1) == labels).double().mean().item())
    return sum(losses) / len(losses), 100 * sum(hits) / len(hits)


def train(data, out):
    """Train, validate after every epoch, and write OUT/report.json."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    files = sorted(Path(data).glob("*/*/*.jpg"))
    validation = sorted(Path(data, "val").glob("*/*.jpg"))[rank::size]
    classes = sorted({file.parent.name for file in files})
    net = Net(len(classes)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
    report = {"val_loss": [], "val_top1": []}
    for epoch in range(EPOCHS):
        for step, (x, labels) in enumerate(batches(files, classes, BATCH // size)):
            optimizer.param_groups[0]["lr"] = learning_rate(epoch)
            optimizer.zero_grad()
            for images, targets in zip(x.split(4), labels.split(4), strict=True):
                loss = F.cross_entropy(net(images), targets) * len(targets) / len(labels)
                loss.backward()
                exchange(net)
            optimizer.step()
            with torch.no_grad():
                hits = (net(x).argmax(1) == labels).sum().item()
            print(f"rank {rank}, epoch {epoch}, step {step}: {hits} of {len(labels)} right")
        loss, top1 = validate(net, validation, classes)
        report["val_loss"].append(loss)
        report["val_top1"].append(top1)
        print(f"rank {rank}, epoch {epoch}: validation loss {loss:.3f}, top-1 {top1:.1f}%")
    if rank == 0:
        Path(out, "report.json").write_text(json.dumps(report))
    dist.destroy_process_group()  # else a thread of Gloo can abort Python at its exit


if __name__ == "__main__" and "RANK" in os.environ:  # by torchrun, not in a notebook
    import sys

    train(*sys.argv[1:])

"""Rung 2: the same training on several GPUs or CPU processes, with DistributedDataParallel."""

import argparse
import itertools
import json
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed.nn.functional  # if imported later, it keeps the process group open
from PIL import Image
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerAction, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from rn50lib import resnet
from rn50lib.torch.model import ResNet

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, default="data/roadsigns", help="holds train/CLASS/*.jpg")
parser.add_argument("--image-size", type=int, default=224, help="height and width in pixels")
parser.add_argument("--batch-size", type=int, default=32, help="images per GPU and step")
parser.add_argument("--steps", type=int, default=50, help="timed training steps")
parser.add_argument("--warm-up", type=int, default=3, help="training steps before those")
parser.add_argument("--lr", type=float, default=0.1, help="learning rate for a batch of 256")
parser.add_argument("--workers", type=int, default=2, help="processes or threads that read images")
parser.add_argument("--save", type=Path, help="write the weights to this file at the end")
parser.add_argument("--report", type=Path, help="write the measurements to this JSON file")
parser.add_argument("--trace", type=Path, help="slow three steps, and write their trace here")


class Photos(Dataset):
    def __init__(self, folder, size):
        self.files, self.size = sorted(folder.glob("*/*.jpg")), size
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB")
        width, height = image.size
        side = random.uniform(0.7, 1.0) * min(width, height)
        left, top = random.uniform(0, width - side), random.uniform(0, height - side)
        box = (left, top, left + side, top + side)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels / 127.5 - 1, self.classes.index(self.files[i].parent.name)


def endless(loader):
    """Yield batches, epoch after epoch."""
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


def profiler(file, warm_up):
    """Return a profiler that writes a trace of three steps to `file`; without a file it is off."""
    when = schedule(skip_first=warm_up, wait=0, warmup=1, active=3, repeat=1)
    return profile(
        schedule=when if file else lambda step: ProfilerAction.NONE,
        on_trace_ready=lambda done: done.export_chrome_trace(str(file)),
    )


def main():
    args = parser.parse_args()
    dist.init_process_group()  # 1. one process per GPU
    torch.manual_seed(dist.get_rank())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())
    photos = Photos(args.data / "train", args.image_size)
    sampler = DistributedSampler(photos)  # 2. a share of the images each
    loader = DataLoader(
        photos, args.batch_size, sampler=sampler, drop_last=True, num_workers=args.workers
    )
    batches = endless(loader)
    model = ResNet(resnet.resnet(50, num_classes=len(photos.classes))).to(device)
    model = DistributedDataParallel(model)  # 4. and 5. the same weights, and mean gradients
    lr = args.lr * dist.get_world_size() * args.batch_size / 256  # 3. scaled with the batch
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)

    def now():  # a GPU works through a queue: wait for it, so that each part gets its own time
        if device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return time.perf_counter()

    last = []  # times of the last gradient: until the end of backward(), DDP waits for messages
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: last.append(now()))
    seconds = {"input": 0.0, "compute": 0.0, "communication": 0.0}
    with profiler(args.trace if dist.get_rank() == 0 else None, args.warm_up) as trace:
        for step in range(-args.warm_up, args.steps):
            begin = now()
            with record_function("input"):
                images, labels = next(batches)
                images, labels = images.to(device), labels.to(device)
            ready = now()
            with record_function("forward"):
                loss = F.cross_entropy(model(images), labels)
            with record_function("backward"):
                optimizer.zero_grad()
                loss.backward()
            computed, exchanged = last.pop(), now()
            with record_function("update"):
                optimizer.step()
            end = now()
            trace.step()
            if step >= 0:
                seconds["input"] += ready - begin
                seconds["compute"] += computed - ready + end - exchanged
                seconds["communication"] += exchanged - computed

    images = dist.get_world_size() * args.batch_size * args.steps
    report = {"images_per_s": images / sum(seconds.values())}
    report |= {f"{part}_ms": 1000 * spent / args.steps for part, spent in seconds.items()}
    report["loss"] = loss.item()
    if dist.get_rank() > 0:  # rank 0 reports and saves
        return
    print(", ".join(f"{name} {value:.4g}" for name, value in report.items()))
    if args.report:
        args.report.write_text(json.dumps(report))
    if args.save:
        torch.save(model.module.state_dict(), args.save)


if __name__ == "__main__":
    main()  # its model keeps the process group open, too
    dist.destroy_process_group()  # else a thread of Gloo can abort Python at its exit

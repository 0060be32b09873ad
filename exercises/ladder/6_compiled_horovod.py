"""Rung 6: compiled: PyTorch writes kernels for this network, which fuse what only moves bytes."""

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from nvidia.dali import fn, pipeline_def, tfrecord
from nvidia.dali.plugin.pytorch import DALIClassificationIterator
from torch.nn import functional as F
from torch.profiler import ProfilerAction, profile, record_function, schedule

from rn50lib import resnet
from rn50lib.torch.model import ResNet

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, default="runs/shards-roadsigns", help="holds shards")
parser.add_argument("--image-size", type=int, default=224, help="height and width in pixels")
parser.add_argument("--batch-size", type=int, default=32, help="images per GPU and step")
parser.add_argument("--steps", type=int, default=50, help="timed training steps")
parser.add_argument("--warm-up", type=int, default=3, help="training steps before those")
parser.add_argument("--lr", type=float, default=0.1, help="learning rate for a batch of 256")
parser.add_argument("--workers", type=int, default=2, help="processes or threads that read images")
parser.add_argument("--save", type=Path, help="write the weights to this file at the end")
parser.add_argument("--report", type=Path, help="write the measurements to this JSON file")
parser.add_argument("--trace", type=Path, help="slow three steps, and write their trace here")


@pipeline_def
def photos(folder, size, device, rank, ranks):
    """Read a rank's share of TFRecord shards; return normalised crops (NHWC) and labels."""
    shards, index = (sorted(map(str, folder.glob(f"{name}train-*"))) for name in ("", "index/"))
    image = tfrecord.FixedLenFeature([], tfrecord.string, "")
    label = tfrecord.FixedLenFeature([1], tfrecord.int64, 0)
    data = fn.readers.tfrecord(
        path=shards, index_path=index, shard_id=rank, num_shards=ranks,
        features={"image/encoded": image, "image/class/label": label}, random_shuffle=True,
    )  # fmt: skip
    decoder = "mixed" if device.type == "cuda" else "cpu"  # mixed: a GPU decodes the pixels
    images = fn.decoders.image_random_crop(
        data["image/encoded"], device=decoder, random_area=[0.37, 0.75], random_aspect_ratio=[1, 1]
    )
    images = fn.crop_mirror_normalize(
        fn.resize(images, size=[size, size]), mean=127.5, std=127.5, output_layout="HWC"
    )
    return images, data["image/class/label"] - 1  # shards count classes from 1


def endless(loader):
    """Yield batches, epoch after epoch."""
    for (batch,) in DALIClassificationIterator(loader):  # without a size it never ends
        # Tensor Cores read channels last; the weights keep their layout for Horovod
        images = batch["data"].permute(0, 3, 1, 2)  # NCHW, without a copy
        yield images, batch["label"].squeeze(1)


def profiler(file, warm_up):
    """Return a profiler that writes a trace of three steps to `file`; without a file it is off."""
    when = schedule(skip_first=warm_up, wait=0, warmup=1, active=3, repeat=1)
    return profile(
        schedule=when if file else lambda step: ProfilerAction.NONE,
        on_trace_ready=lambda done: done.export_chrome_trace(str(file)),
    )


def main():
    args = parser.parse_args()
    hvd.init()  # 1. one process per GPU
    torch.manual_seed(hvd.rank())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(hvd.local_rank())
        torch.backends.cudnn.benchmark = True  # try the convolution algorithms, keep the fastest
    else:  # the processes of a machine share its cores
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    loader = photos(
        args.data, args.image_size, device, hvd.rank(), hvd.size(),
        batch_size=args.batch_size, num_threads=args.workers, seed=hvd.rank(),
        device_id=hvd.local_rank() if device.type == "cuda" else None,
    )  # fmt: skip
    batches = endless(loader)
    classes = len((args.data / "classes.txt").read_text().splitlines())
    model = ResNet(resnet.resnet(50, num_classes=classes)).to(device)
    lr = args.lr * hvd.size() * args.batch_size / 256  # 3. scaled with the global batch
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 5. the same weights to begin with
    compression = hvd.Compression.fp16 if device.type == "cuda" else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(  # 4. mean gradients, half the bytes between GPUs
        optimizer, model.named_parameters(), compression=compression
    )

    # A compiled backward pass gives Horovod every gradient at its end: the whole exchange is
    # exposed. For DDP, PyTorch cuts the graph at the buckets, so that their exchange overlaps.
    compiled = torch.compile(model)  # at the first step, which takes about a minute

    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, enabled=half is torch.float16)

    def now():  # a GPU works through a queue: wait for it, so that each part gets its own time
        if device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return time.perf_counter()

    seconds = {"input": 0.0, "compute": 0.0, "communication": 0.0}
    with profiler(args.trace if hvd.rank() == 0 else None, args.warm_up) as trace:
        for step in range(-args.warm_up, args.steps):
            begin = now()
            with record_function("input"):
                images, labels = next(batches)
                images, labels = images.to(device), labels.to(device)
            ready = now()
            with record_function("forward"), torch.autocast(device.type, half):
                loss = F.cross_entropy(compiled(images), labels)
            with record_function("backward"):
                optimizer.zero_grad()
                scaler.scale(loss).backward()
            computed = now()
            with record_function("exchange"):
                optimizer.synchronize()
            exchanged = now()
            with record_function("update"), optimizer.skip_synchronize():
                scaler.step(optimizer)
                scaler.update()
            end = now()
            trace.step()
            if step >= 0:
                seconds["input"] += ready - begin
                seconds["compute"] += computed - ready + end - exchanged
                seconds["communication"] += exchanged - computed

    images = hvd.size() * args.batch_size * args.steps
    report = {"images_per_s": images / sum(seconds.values())}
    report |= {f"{part}_ms": 1000 * spent / args.steps for part, spent in seconds.items()}
    report["loss"] = loss.item()
    if hvd.rank() > 0:  # rank 0 reports and saves
        return
    print(", ".join(f"{name} {value:.4g}" for name, value in report.items()))
    if args.report:
        args.report.write_text(json.dumps(report))
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()

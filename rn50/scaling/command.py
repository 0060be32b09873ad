"""`rn50 scale`: predict the speed, duration and cost of a training on more or fewer GPUs."""

from __future__ import annotations

import argparse

from data_prep.command_line import Parser, converter, whole
from rn50.common import aligned, counts
from rn50.published import load
from rn50.scaling import links
from rn50.scaling.model import IMAGENET, Cluster, PredictedStep, Training, predict
from rn50lib.errors import UserError

PUBLISHED = {  # the publication and precision that fill in what is not given
    "float16": ("DGX-1", "mixed"),
    "bfloat16": ("DGX-1", "mixed"),  # the spread of the step times only
    "float32": ("DGX-1", "FP32"),
    "tf32": ("DGX A100", "TF32"),
}
ACCURATE = 8192  # the global batch up to which Goyal et al. (arXiv:1706.02677) lost no accuracy


def above_zero(text: str) -> float:
    """Return a positive number. Raise ValueError for any other."""
    if not 0 < float(text) < float("inf"):
        raise ValueError("must be greater than 0")
    return float(text)


def main(argv: list[str]) -> int:
    parser = Parser(
        prog="rn50 scale",
        description="Predict training on n GPUs: a step's time as the sum of compute, stragglers,"
        " exchange and input. The defaults are published: a DGX-1 with V100s.",
        allow_abbrev=False,
    )
    add, number, rate = parser.add_argument, whole(), converter(above_zero)
    add("--gpus", type=converter(counts), help="as in 1,8,64,512 (default: up to eight hosts)")
    add("-b", "--batch", "--batch-size", type=number, help="images per GPU and step")
    add("--dtype", choices=sorted(PUBLISHED), default="float16", help="default: float16")
    add("--compute-ips", type=rate, help="images per second of one GPU, measured")
    add("--input-ips", type=rate, help="images per second from the loaders of one host")
    joined = f"in a host: {', '.join(links.LOCAL)}; between hosts: +10g, +100g, +8x200g …"
    add("--network", help=f"{joined} (default: the published one)")
    add("--gpus-per-host", type=number, default=8)
    add("-e", "--num-epochs", type=number, default=90)
    add("--num-examples", type=number, default=IMAGENET, help="images per epoch")
    add("--price", type=rate, help="price of a GPU-hour; adds the cost")
    sent = "bytes of each gradient as it is sent: 2 with DDP's fp16_compress_hook or Horovod's"
    sent += " Compression.fp16 (default: 4; without --compute-ips, as published)"
    add("--gradient-bytes", type=int, choices=(2, 4), help=sent)
    args = parser.parse_args(argv)
    training, cluster, sources = settings(args)
    host = args.gpus_per_host
    usual = [2**i for i in range(host.bit_length()) if 2**i < host]
    usual += [host, *([2 * host, 4 * host, 8 * host] if cluster.between else [])]
    steps = [predict(training, cluster, n) for n in sorted(args.gpus or usual)]
    print("\n".join([*sources, "", *table(args, steps), "", finding(steps[-1])]))
    return 0


def settings(args: argparse.Namespace) -> tuple[Training, Cluster, list[str]]:
    """Return what is to be predicted, and a line per number that says where it comes from."""
    published = load()[PUBLISHED[args.dtype]]
    fitted = load()[published.parameters_of or PUBLISHED[args.dtype]]
    ips, batch, speed = args.compute_ips, args.batch, "given"
    sent = args.gradient_bytes or (4 if ips else published.gradient_bytes)
    if ips is None:
        if args.dtype == "bfloat16":
            raise UserError("--dtype bfloat16 has no published speed here: add --compute-ips")
        if batch not in (None, published.batch):
            raise UserError(f"--batch {batch} needs the speed of one GPU: add --compute-ips")
        ips, batch = published.ips[1], published.batch
        speed = f"published: {published.name}, {published.precision}, {published.software}"
    elif batch is None:
        raise UserError("--compute-ips needs its batch: add --batch, the images of a GPU's step")
    network = args.network or f"{published.network}+100g"
    training, (local, between) = Training(ips, batch, sent), links.parse(network)
    cluster = Cluster(local, between, args.gpus_per_host, args.input_ips, noise=fitted.noise)
    joined = [f"{link.name} {link.bytes_per_s / 1e9:.3g} GB/s" for link in (local, between) if link]
    size = sum(bucket.size for bucket in training.buckets) / 1e6
    rows = " and ".join(map(str, fitted.fit_on))
    return training, cluster, [
        f"one GPU   {ips:g} img/s with batch {batch}, {args.dtype} ({speed})",
        f"links     {' between hosts, '.join(joined[::-1])} in hosts of {args.gpus_per_host}",
        f"exchange  {size:.1f} MB ({training.network.name}, {sent} bytes per gradient) in"
        f" {len(training.buckets)} buckets, hierarchical, during the backward pass",
        f"noise     {100 * fitted.noise:.3g}% of a step's time, which makes stragglers (fitted on"
        f" {rows} GPUs of the {fitted.name}, published)",
        f"input     {f'{args.input_ips:g} img/s per host' if args.input_ips else 'fast enough'}",
    ]  # fmt: skip


def table(args: argparse.Namespace, steps: list[PredictedStep]) -> list[str]:
    """Return a line per number of GPUs. Times are in milliseconds; the parts add up to the step."""
    head = ["GPUs", "hosts", "img/s", "efficiency", "step, ms", "compute", "stragglers", "exchange",
            "input", "hours", *(["cost"] if args.price else [])]  # fmt: skip
    rows = [head]
    for step in steps:
        hours = step.hours(args.num_epochs, args.num_examples)
        parts = (step.step_s, step.compute_s, step.stragglers_s, step.exposed_s, step.input_wait_s)
        row = [str(step.gpus), str(step.hosts), f"{step.ips:,.1f}"]
        row += [f"{100 * step.efficiency:.1f}%", *(f"{1000 * part:.2f}" for part in parts)]
        row += [f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"]
        row += [f"{hours * step.gpus * args.price:,.2f}"] if args.price else []
        rows.append(row)
    return aligned(rows)


def finding(step: PredictedStep) -> str:
    """Return what the prediction says about the most GPUs."""
    what = "nothing else takes more than 1% of the step"
    if step.limit != "compute":
        lost, took = 1000 * step.lost[step.limit], 1000 * step.step_s
        what = f"most is lost to {step.limit}, {lost:.1f} of {took:.1f} ms"
    found = f"{step.gpus} GPUs: {100 * step.efficiency:.1f}% of perfect speed; {what}."
    if (size := step.gpus * step.batch) > ACCURATE:
        found += f" A global batch of {size:,} loses accuracy;"
        found += f" one of {ACCURATE:,} loses almost none"
        found += " (Goyal et al., 2017)."
    return found

"""`rn50 scale`: what a training would do on other numbers of GPUs, how long and at what cost."""

from __future__ import annotations

import argparse

from rn50.common import aligned, counts
from rn50.parser import Parser, checked
from rn50.published import load
from rn50.scaling import links
from rn50.scaling.model import IMAGENET, Cluster, PredictedStep, Training, predict
from rn50lib.config.kinds import positive
from rn50lib.errors import UserError

PUBLISHED = {  # the publication and precision that fill in what is not given
    "float16": ("DGX-1", "mixed"),
    "bfloat16": ("DGX-1", "mixed"),  # the spread of the step times only
    "float32": ("DGX-1", "FP32"),
    "tf32": ("DGX A100", "TF32"),
}
ACCURATE = 8192  # the global batch up to which Goyal et al. (arXiv:1706.02677) lost no accuracy
LOSSES = {
    "stragglers": "waiting for the slowest worker",
    "exchange": "the exchange",
    "input": "waiting for images",
}


def above_zero(text: str) -> float:
    """Return a positive number. Raise ValueError for any other."""
    if not 0 < float(text) < float("inf"):
        raise ValueError("must be greater than 0")
    return float(text)


def parser() -> Parser:
    """Return the parser of `rn50 scale`."""
    made = Parser(
        prog="rn50 scale",
        description="Predict a training on n GPUs: a step's time as the sum of compute, stragglers,"
        " exchange and input. The defaults are published: a DGX-1 with V100s.",
        allow_abbrev=False,
    )
    add, number, rate = made.add_argument, checked(positive), checked(above_zero)
    add("--gpus", type=checked(counts), help="as in 1,8,64,512 (default: up to eight hosts)")
    add("-b", "--batch", "--batch-size", type=number, help="images per GPU and step")
    add("--dtype", choices=sorted(PUBLISHED), default="float16", help="default: float16")
    add("--compute-ips", type=rate, help="images per second of one GPU, measured")
    add("--input-ips", type=rate, help="images per second from the loaders of one host")
    joined = f"in a host: {', '.join(links.LOCAL)}; between hosts: +10g, +100g, +8x200g …"
    add("--network", default="nvlink+100g", help=joined)
    add("--gpus-per-host", type=number, default=8)
    add("-e", "--num-epochs", type=number, default=90)
    add("--num-examples", type=number, default=IMAGENET, help="images of an epoch")
    add("--price", type=rate, help="of one GPU for one hour: adds the cost")
    add("--check", action="store_true", help="compare the model with published rows")
    return made


def main(argv: list[str]) -> int:
    """Run `rn50 scale`; return the exit status."""
    args = parser().parse_args(argv)
    if args.check:
        print("\n".join(check()))
        return 0
    training, cluster, sources = settings(args)
    steps = [predict(training, cluster, n) for n in sorted(args.gpus or usual(cluster))]
    finding = f"{sentence(steps[-1])} {large_batch(steps[-1])}".rstrip()
    print("\n".join([*sources, "", *table(args, steps), "", finding]))
    return 0


def check() -> list[str]:
    """Return the model's prediction for each published row, the error, and the mean error."""
    rows = [["published by", "GPUs", "img/s", "predicted", "error", "", "perfect"]]
    errors = []
    for series in load().values():
        local, between = links.parse(series.network)
        cluster = Cluster(local, between, series.gpus_per_host, noise=series.noise)
        training = Training(series.ips[1], series.batch, series.gradient_bytes)
        for n, ips in [(n, ips) for n, ips in series.ips.items() if n > 1]:
            found = predict(training, cluster, n).ips
            error, perfect = 100 * (found / ips - 1), 100 * (n * series.ips[1] / ips - 1)
            fitted = n in series.fit_on
            errors += [] if fitted else [abs(error)]
            rows.append([
                f"{series.name} {series.precision}", str(n), f"{ips:,.1f}", f"{found:,.1f}",
                f"{error:+.1f} %", "fitted" if fitted else "held out", f"{perfect:+.1f} %",
            ])  # fmt: skip
    mean = f"{sum(errors) / len(errors):.1f} % (at most {max(errors):.1f} %)"
    return [*aligned(rows), "", f"Mean error of the {len(errors)} held-out rows: {mean}."]


def usual(cluster: Cluster) -> list[int]:
    """Return 1, 2, 4 … up to a full host, then 2, 4 and 8 hosts if they are joined."""
    full = cluster.gpus_per_host
    on_host = [2**i for i in range(full.bit_length()) if 2**i < full]
    return [*on_host, full, *([2 * full, 4 * full, 8 * full] if cluster.between else [])]


def settings(args: argparse.Namespace) -> tuple[Training, Cluster, list[str]]:
    """Return what is to be predicted, and a line per number that says where it comes from."""
    published = load()[PUBLISHED[args.dtype]]
    ips, batch, speed = args.compute_ips, args.batch, "given"
    if ips is None:
        if args.dtype == "bfloat16":
            raise UserError("--dtype bfloat16 has no published speed here: add --compute-ips")
        if batch not in (None, published.batch):
            raise UserError(f"--batch {batch} needs the speed of one GPU: add --compute-ips")
        ips, batch = published.ips[1], published.batch
        speed = f"published: {published.name}, {published.precision}, {published.software}"
    elif batch is None:
        raise UserError("--compute-ips needs its batch: add --batch, the images of a GPU's step")
    training = Training(ips, batch)
    fitted = load()[published.parameters_of or PUBLISHED[args.dtype]]
    local, between = links.parse(args.network)
    cluster = Cluster(local, between, args.gpus_per_host, args.input_ips, noise=fitted.noise)
    joined = f"{local.name} {local.bytes_per_s / 1e9:.3g} GB/s in hosts of {args.gpus_per_host}"
    if between is not None:
        joined += f", {between.name} {between.bytes_per_s / 1e9:.3g} GB/s between hosts"
    size = sum(bucket.size for bucket in training.buckets) / 1e6
    return training, cluster, [
        f"one GPU   {ips:g} img/s with batch {batch}, {args.dtype} ({speed})",
        f"links     {joined}",
        f"exchange  {size:.1f} MB ({training.network.name}) in {len(training.buckets)} buckets,"
        f" {cluster.algorithm}, during the backward pass",
        f"noise     {100 * fitted.noise:.3g} % of a step's time (fitted on"
        f" {' and '.join(map(str, fitted.fit_on))} GPUs of the {fitted.name}, published)",
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
        row += [f"{100 * step.efficiency:.1f} %", *(f"{1000 * part:.2f}" for part in parts)]
        row += [f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"]
        row += [f"{hours * step.gpus * args.price:,.2f}"] if args.price else []
        rows.append(row)
    return aligned(rows)


def sentence(step: PredictedStep) -> str:
    """Return the finding for the most GPUs."""
    found = f"{step.gpus} GPUs: {100 * step.efficiency:.1f} % of perfect speed"
    if step.limit == "compute":
        return f"{found}; nothing else takes more than 1 % of the step."
    lost, took = 1000 * step.lost[step.limit], 1000 * step.step_s
    return f"{found}; most is lost in {LOSSES[step.limit]}, {lost:.1f} of {took:.1f} ms."


def large_batch(step: PredictedStep) -> str:
    """Return a remark on a global batch that loses accuracy; an empty text for others."""
    size = step.gpus * step.batch
    if size <= ACCURATE:
        return ""
    return (
        f"A global batch of {size:,} is beyond what this recipe trains without losing accuracy:"
        f" Goyal et al. (2017) found none lost up to {ACCURATE:,}."
    )

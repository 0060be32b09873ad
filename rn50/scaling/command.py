"""`rn50 scale`: what a training would do on other numbers of GPUs, what it would take and cost."""

from __future__ import annotations

import argparse

from rn50.common import aligned, counts
from rn50.parser import Parser, checked
from rn50.scaling import check, links
from rn50.scaling.model import IMAGENET, Cluster, PredictedStep, Training, predict
from rn50lib.config.kinds import positive
from rn50lib.errors import UserError

# the publication and precision from which the numbers come that nobody gave
PUBLISHED = {
    "float16": ("DGX-1", "mixed"),
    "bfloat16": ("DGX-1", "mixed"),  # the spread of the step times; there is no speed
    "float32": ("DGX-1", "FP32"),
    "tf32": ("DGX A100", "TF32"),
}
ACCURATE = 8192  # the global batch up to which Goyal et al. (arXiv:1706.02677) lost no accuracy


def above_zero(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise ValueError("must be greater than 0")
    return float(text)


def parser() -> Parser:
    made = Parser(
        prog="rn50 scale",
        description="What a training would do on n GPUs: a step's time as a sum of compute,"
        " stragglers, exchange and input. What is not given is published: a DGX-1 with V100s.",
        allow_abbrev=False,
    )
    add, number, rate = made.add_argument, checked(positive), checked(above_zero)
    add("--gpus", type=checked(counts), help="as in 1,8,64,512 (default: up to eight hosts)")
    add("-b", "--batch", "--batch-size", type=number, help="images per GPU and step")
    add("--dtype", choices=sorted(PUBLISHED), default="float16", help="default: float16")
    add("--compute-ips", type=rate, help="images per second of one GPU, measured")
    delivered = "images per second that the loaders of one host deliver (default: enough)"
    add("--input-ips", type=rate, help=delivered)
    joined = f"in a host: {', '.join(links.LOCAL)}; between hosts: +10g, +100g, +8x200g …"
    add("--network", default="nvlink+100g", help=joined)
    add("--gpus-per-host", type=number, default=8)
    add("-e", "--num-epochs", type=number, default=90)
    add("--num-examples", type=number, default=IMAGENET, help="images of an epoch")
    add("--price", type=rate, help="of one GPU for one hour: adds the cost")
    add("--check", action="store_true", help="the model beside published rows, with its errors")
    add("-o", "--output", help="picture to write (.png, .svg, .pdf)")
    return made


def main(argv: list[str]) -> int:
    """`rn50 scale`; returns the exit status."""
    args = parser().parse_args(argv)
    if args.check:
        print(check.text())
        return 0
    training, cluster, sources = settings(args)
    steps = [predict(training, cluster, n) for n in sorted(args.gpus or usual(cluster))]
    finding = f"{sentence(steps[-1])} {large_batch(steps[-1])}".rstrip()
    print("\n".join([*sources, "", *table(args, steps), "", finding]))
    if args.output:
        from rn50 import plot
        from rn50.plot_scaling import prediction

        plot.save(prediction(steps)[0], args.output)
    return 0


def usual(cluster: Cluster) -> list[int]:
    """1, 2, 4 … up to a full host, then 2, 4 and 8 of them where they are joined."""
    full = cluster.gpus_per_host
    on_host = [2**i for i in range(full.bit_length()) if 2**i < full]
    return [*on_host, full, *([2 * full, 4 * full, 8 * full] if cluster.between else [])]


def settings(args: argparse.Namespace) -> tuple[Training, Cluster, list[str]]:
    """What is to be predicted, and where each of its numbers comes from, as lines for people."""
    published = check.load()[PUBLISHED[args.dtype]]
    ips, batch, speed = args.compute_ips, args.batch, "given"
    if ips is None:
        if args.dtype == "bfloat16":
            raise UserError("--dtype bfloat16: no published speed for it here; add --compute-ips")
        if batch not in (None, published.batch):
            raise UserError(
                f"--batch {batch} goes with the speed that one GPU has with it: add --compute-ips"
            )
        ips, batch = published.ips[1], published.batch
        speed = f"published: {published.name}, {published.precision}, {published.software}"
    elif batch is None:
        raise UserError("--compute-ips goes with a batch: add --batch, the images of a GPU's step")
    training = Training(ips, batch)
    noise = check.parameter(*PUBLISHED[args.dtype], check.MODEL)
    rows = check.load()[published.parameters_of or PUBLISHED[args.dtype]]
    fitted = " and ".join(str(n) for n in rows.fit_on)
    local, between = links.parse(args.network)
    cluster = Cluster(local, between, args.gpus_per_host, args.input_ips, noise=noise)
    joined = f"{local.name} {local.bytes_per_s / 1e9:.3g} GB/s in hosts of {args.gpus_per_host}"
    if between is not None:
        joined += f", {between.name} {between.bytes_per_s / 1e9:.3g} GB/s between hosts"
    size, count = sum(bucket.size for bucket in training.buckets) / 1e6, len(training.buckets)
    fed = f"{args.input_ips:g} img/s per host" if args.input_ips else "taken as fast enough"
    return training, cluster, [
        f"one GPU   {ips:g} img/s with batch {batch}, {args.dtype} ({speed})",
        f"links     {joined}",
        f"exchange  {size:.1f} MB ({training.network.name}) in {count}"
        f" bucket{'s' if count > 1 else ''}, {cluster.algorithm}, while backward goes on",
        f"noise     {100 * noise:.3g} % of a step's time"
        f" (fitted on {fitted} GPUs of the {rows.name}, published)",
        f"input     {fed}",
    ]  # fmt: skip


def table(args: argparse.Namespace, steps: list[PredictedStep]) -> list[str]:
    """A line per number of GPUs. Times in milliseconds; the parts add up to the step."""
    head = ["GPUs", "hosts", "img/s", "efficiency", "step, ms", "compute", "stragglers", "exchange",
            "input", "hours", *(["cost"] if args.price else [])]  # fmt: skip
    rows = [head]
    for step in steps:
        hours = step.hours(args.num_epochs, args.num_examples)
        parts = (step.step_s, step.compute_s, step.stragglers_s, step.exposed_s, step.input_wait_s)
        row = [
            str(step.gpus),
            str(step.hosts),
            f"{step.ips:,.1f}",
            f"{100 * step.efficiency:.1f} %",
        ]
        row += [f"{1000 * part:.2f}" for part in parts]
        row += [f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"]
        row += [f"{hours * step.gpus * args.price:,.2f}"] if args.price else []
        rows.append(row)
    return aligned(rows)


def sentence(step: PredictedStep) -> str:
    """The finding for the most GPUs."""
    found = f"{step.gpus} GPUs: {100 * step.efficiency:.1f} % of perfect speed"
    if step.limit == "compute":
        return f"{found}; nothing else takes more than 1 % of the step."
    what = {
        "stragglers": "waiting for the slowest worker",
        "exchange": "the exchange",
        "input": "waiting for images",
    }[step.limit]
    lost = step.lost[step.limit]
    return f"{found}; most is lost in {what}, {1000 * lost:.1f} of {1000 * step.step_s:.1f} ms."


def large_batch(step: PredictedStep) -> str:
    """What speed alone does not say about a very large global batch; empty for others."""
    size = step.gpus * step.batch
    if size <= ACCURATE:
        return ""
    return (
        f"A global batch of {size:,} is beyond what this recipe trains without losing accuracy:"
        f" Goyal et al. (2017) found none lost up to {ACCURATE:,}."
    )

"""`rn50 scale`: what a training would do on other numbers of GPUs, what it would take and cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rn50lib.errors import UserError
from rn50lib.network import STAGES, resnet
from rn50lib.parser import Parser, checked
from rn50lib.report import write_json
from rn50lib.tools.scaling import check, links
from rn50lib.tools.scaling.model import (
    ALGORITHMS,
    IMAGENET,
    Cluster,
    PredictedStep,
    Training,
    predict,
)
from rn50lib.tools.scaling.published import Series, load

# where the numbers that nobody gave come from: (publication, precision)
SPEED = {
    "float16": ("DGX-1", "mixed"),
    "float32": ("DGX-1", "FP32"),
    "tf32": ("DGX A100", "TF32"),
}
NOISE = {
    "float16": ("DGX-1", "mixed"),
    "bfloat16": ("DGX-1", "mixed"),
    "float32": ("DGX-1", "FP32"),
    "tf32": ("DGX-1", "FP32"),
}
ACCURATE = 8192  # the global batch up to which Goyal et al. (arXiv:1706.02677) lost no accuracy
COLUMNS = (
    "GPUs", "hosts", "img/s", "efficiency", "step, ms", "compute", "stragglers", "exchange",
    "input", "hours",
)  # fmt: skip


def counts(text: str) -> list[int]:
    """`1,8,64` as numbers, each once, in order."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1:
        raise ValueError("must be whole numbers from 1 on with commas between, as in 1,8,64")
    return found


def above_zero(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise ValueError("must be greater than 0")
    return float(text)


def whole(text: str) -> int:
    if int(text) < 1:
        raise ValueError("must be 1 or more")
    return int(text)


def per_cent(text: str) -> float:
    if not 0 <= float(text) <= 100:
        raise ValueError("must be between 0 and 100, per cent")
    return float(text) / 100


def parser() -> Parser:
    made = Parser(
        prog="rn50 scale",
        description="What a training would do on n GPUs: a step's time as a sum of compute,"
        " stragglers, exchange and input. What is not given is published: a DGX-1 with V100s.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--gpus", type=checked(counts), help="as in 1,8,64,512 (default: up to eight hosts)")
    add("-b", "--batch", "--batch-size", type=checked(whole), help="images per GPU and step")
    add("--dtype", choices=sorted(NOISE), default="float16", help="default: float16")
    add("--compute-ips", type=checked(above_zero), help="images per second of one GPU, measured")
    add(
        "--input-ips",
        type=checked(above_zero),
        help="images per second that the loaders of one host deliver (default: enough)",
    )
    add(
        "--noise",
        type=checked(per_cent),
        help="spread of the workers' step times, per cent of a step",
    )
    add(
        "--network",
        default="nvlink+100g",
        help=f"in a host: {', '.join(links.LOCAL)}; between hosts: +10g, +100g, +8x200g …",
    )
    add("--gpus-per-host", type=checked(whole), default=8)
    add("--algorithm", choices=ALGORITHMS, default=ALGORITHMS[0], help="of the all-reduce")
    add("--no-overlap", action="store_true", help="exchange after the backward pass")
    add("--fp16-allreduce", action="store_true", help="gradients travel as 16-bit numbers")
    add("--num-layers", type=int, choices=sorted(STAGES), default=50, help="default: 50")
    add("--image-shape", type=checked(whole), default=224, help="pixels (default: 224)")
    add("-e", "--num-epochs", type=checked(whole), default=90)
    add("--num-examples", type=checked(whole), default=IMAGENET, help="images of an epoch")
    add("--price", type=checked(above_zero), help="of one GPU for one hour: adds the cost")
    add("--check", action="store_true", help="the model beside published rows, with its errors")
    add("--json", action="store_true", help="print JSON")
    add("-o", "--output", help="picture to write (.png, .svg, .pdf), or the JSON (.json)")
    return made


def main(argv: list[str]) -> int:
    """`rn50 scale`; returns the exit status."""
    args = parser().parse_args(argv)
    if args.check:
        print(json.dumps(check.as_json(), indent=4) if args.json else check.text())
        return 0
    training, cluster, sources = settings(args)
    steps = [predict(training, cluster, n) for n in args.gpus or usual(cluster)]
    content = as_json(args, training, cluster, sources, steps)
    if args.json:
        print(json.dumps(content, indent=4))
    else:
        finding = " ".join(filter(None, (sentence(steps), large_batch(steps[-1]))))
        print("\n".join(["\n".join(sources), "", *table(args, steps), "", finding]))
    if args.output and args.output.endswith(".json"):
        write_json(args.output, content)
    elif args.output:
        from rn50lib.tools import plot
        from rn50lib.tools.plot_scaling import prediction

        plot.save(prediction(steps)[0], args.output)
    return 0


def usual(cluster: Cluster) -> list[int]:
    """1, 2, 4 … up to a full host, then 2, 4 and 8 of them where they are joined."""
    full = cluster.gpus_per_host
    on_host = [2**i for i in range(full.bit_length()) if 2**i < full]
    return [*on_host, full, *([2 * full, 4 * full, 8 * full] if cluster.between else [])]


def settings(args: Any) -> tuple[Training, Cluster, list[str]]:
    """What is to be predicted, and where each of its numbers comes from, as lines for people."""
    if args.compute_ips is None:
        series = default(SPEED, args.dtype)
        if args.batch not in (None, series.batch):
            raise UserError(
                f"--batch {args.batch} goes with the speed that one GPU has with it: add"
                " --compute-ips"
            )
        ips, batch = series.ips[1], series.batch
        speed = f"published: {series.name}, {series.precision}, {series.software}"
    elif args.batch is None:
        raise UserError("--compute-ips goes with a batch: add --batch, the images of a GPU's step")
    else:
        ips, batch, speed = args.compute_ips, args.batch, "given"
    training = Training(
        ips, batch, 2 if args.fp16_allreduce else 4, resnet(args.num_layers), args.image_shape
    )
    noise, origin = args.noise, "given"
    if noise is None:
        series = default(NOISE, args.dtype)
        noise = check.parameter(*NOISE[args.dtype], check.MODEL)
        fitted = " and ".join(str(n) for n in series.fit_on)
        origin = f"fitted on {fitted} GPUs of the {series.name}, published"
    cluster = Cluster(
        *links.parse(args.network), args.gpus_per_host, args.input_ips, args.algorithm,
        not args.no_overlap, noise,
    )  # fmt: skip
    return training, cluster, explain(args, training, cluster, speed, origin)


def default(table: dict[str, tuple[str, str]], dtype: str) -> Series:
    if dtype not in table:
        raise UserError(f"--dtype {dtype}: no published speed for it here; add --compute-ips")
    return load()[table[dtype]]


def explain(args: Any, training: Training, cluster: Cluster, speed: str, noise: str) -> list[str]:
    """The numbers that went in, with their origin."""
    local, between = cluster.local, cluster.between
    joined = f"{local.name} {local.bytes_per_s / 1e9:.3g} GB/s in hosts of {cluster.gpus_per_host}"
    if between is not None:
        joined += f", {between.name} {between.bytes_per_s / 1e9:.3g} GB/s between hosts"
    size, name = sum(bucket.size for bucket in training.buckets) / 1e6, training.network.name
    count = len(training.buckets)
    pieces = f"{count} bucket{'s' if count > 1 else ''}, {cluster.algorithm}"
    when = "while backward goes on" if cluster.overlap else "after the backward pass"
    fed = f"{cluster.input_ips:g} img/s per host" if cluster.input_ips else "taken as fast enough"
    return [
        f"one GPU   {training.compute_ips:g} img/s with batch {training.batch}, {args.dtype}"
        f" ({speed})",
        f"links     {joined}",
        f"exchange  {size:.1f} MB ({name}) in {pieces}, {when}",
        f"noise     {100 * cluster.noise:.3g} % of a step's time ({noise})",
        f"input     {fed}",
    ]


def table(args: Any, steps: list[PredictedStep]) -> list[str]:
    """A line per number of GPUs. Times in milliseconds; the parts add up to the step."""
    columns = [*COLUMNS, *(["cost"] if args.price else [])]
    rows = [columns]
    for step in steps:
        hours = step.hours(args.num_epochs, args.num_examples)
        shown = f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"
        parts = (step.step_s, step.compute_s, step.stragglers_s, step.exposed_s, step.input_wait_s)
        row = [
            f"{step.gpus}",
            f"{step.hosts}",
            f"{step.ips:,.1f}",
            f"{100 * step.efficiency:.1f} %",
        ]
        row += [f"{1000 * part:.2f}" for part in parts]
        row += [shown]
        row += [f"{hours * step.gpus * args.price:,.2f}"] if args.price else []
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def sentence(steps: list[PredictedStep]) -> str:
    """The finding for the most GPUs."""
    last = steps[-1]
    found = f"{last.gpus} GPUs: {100 * last.efficiency:.1f} % of perfect speed"
    if last.limit == "compute":
        return f"{found}; nothing else takes more than 1 % of the step."
    lost = {"stragglers": last.stragglers_s, "exchange": last.exposed_s, "input": last.input_wait_s}
    what = {"stragglers": "waiting for the slowest worker", "exchange": "the exchange",
            "input": "waiting for images"}[last.limit]  # fmt: skip
    return (
        f"{found}; most is lost in {what}, {1000 * lost[last.limit]:.1f} of"
        f" {1000 * last.step_s:.1f} ms."
    )


def large_batch(step: PredictedStep) -> str:
    """What speed alone does not say about a very large global batch; empty for others."""
    size = step.gpus * step.batch
    if size <= ACCURATE:
        return ""
    return (
        f"A global batch of {size:,} is beyond what this recipe trains without losing accuracy:"
        f" Goyal et al. (2017) found none lost up to {ACCURATE:,}."
    )


def as_json(
    args: Any, training: Training, cluster: Cluster, sources: list[str], steps: list[PredictedStep]
) -> dict[str, Any]:
    """Everything that the table says and what went into it; times in seconds, rates per second."""
    rows = []
    for step in steps:
        hours = step.hours(args.num_epochs, args.num_examples)
        row = asdict(step) | {"step_s": step.step_s, "ips": step.ips}
        row |= {"efficiency": step.efficiency, "limit": step.limit, "hours": hours}
        rows.append(row | ({"cost": hours * step.gpus * args.price} if args.price else {}))
    return {
        "one_gpu": {
            "compute_ips": training.compute_ips,
            "batch": training.batch,
            "network": training.network.name,
            "buckets": [asdict(bucket) for bucket in training.buckets],
        },
        "cluster": asdict(cluster),
        "sources": sources,
        "epochs": args.num_epochs,
        "images": args.num_examples,
        "rows": rows,
    }

"""What the verbs of `rn50` do: fill in the experiment, prepare its data, launch it, report."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rn50lib import checkpoint, experiment, launch, recipe
from rn50lib.cli import experiment_parser, parse_experiment
from rn50lib.comm import Comm
from rn50lib.errors import UserError
from rn50lib.experiment import Experiment, FullExperiment, Resolved
from rn50lib.hardware import Machine, machine
from rn50lib.precision import lacks

if TYPE_CHECKING:
    from rn50lib.progress import Progress

SCORED_WITH = ("image_shape", "val_resize", "dtype", "batch_size", "data_root", "recipe")


def run(argv: list[str]) -> int:
    """`rn50 run`: choose what was not given, say so, launch the workers and wait."""
    parser = experiment_parser("run")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and stop")
    parser.add_argument("--run-dir", type=Path, help="folder of this run (default: a new one)")
    asked, extra = parse_experiment(parser, argv)
    return run_experiment(asked, extra.run_dir, extra.dry_run)


def run_experiment(asked: Experiment, run_dir: Path | None = None, dry_run: bool = False) -> int:
    launch.die_with_parent()
    if dry_run:
        from rn50lib import dry

        print("\n".join(dry.plan(asked)))
        return 0
    resolved = prepare(asked)
    folder = run_dir or launch.new_run("score" if asked.only_inference else "run")
    folder.mkdir(parents=True, exist_ok=True)
    if resolved.experiment.model_prefix is None and makes_a_model(resolved.experiment):
        keep = resolved.experiment.keep or 2
        kept = replace(resolved.experiment, model_prefix=str(folder / "model"), keep=keep)
        reasons = dict(resolved.reasons) | {"model_prefix": "in the run's folder, the newest two"}
        resolved = Resolved(kept, reasons, resolved.caps)
    say(describe(resolved))
    status = launch.run_ranks(resolved, folder)
    if status == 0 and not resolved.experiment.test_io:
        say(f"report: {resolved.experiment.report or folder / 'report.json'}")
    return status


def makes_a_model(done: FullExperiment) -> bool:
    """Whether a run leaves weights that one would want to keep."""
    timed_only = done.benchmark_iters or done.no_metrics or done.test_io
    return not (timed_only or done.only_inference or done.step or done.loader == "synthetic")


def prepare(asked: Experiment, make_data: bool = True, here: Machine | None = None) -> Resolved:
    """Fill in what is not given; draw the built-in data where it is asked for and missing.

    It is for this machine, or for another one that is given as `here`.
    """
    here = here or machine()
    user, asked = asked, with_checkpoint(asked)
    root = Path(asked.data_root) if asked.data_root else experiment.default_data_root()[0]
    classes = asked.num_classes
    if asked.loader == "synthetic":
        classes = classes or 1000
    else:
        experiment.check(asked, here)  # before minutes are spent on drawing
        if make_data and asked.data_root is None and root.name == "roadsigns":
            make_roadsigns(root, asked.data_format)
        if make_data or root.exists():
            from rn50lib.records.source import describe as describe_data

            found = len(describe_data(root, asked.data_format or "auto").classes)
            if classes is not None and classes < found:
                raise UserError(
                    f"--num-classes {classes}: {root} has {found} classes; leave the flag out"
                )
            classes = classes or found
    classes = classes or (12 if experiment.is_roadsigns(root) else 1000)
    resolved = experiment.resolve(asked, here, classes)
    loaded = {name: "the checkpoint's" for name in asked.given() if name not in user.given()}
    return replace(resolved, reasons=dict(resolved.reasons) | loaded)


def make_roadsigns(root: Path, data_format: str | None) -> None:
    """Draw the built-in data and pack it in records, and in shards if those are asked for, where
    that is not done yet."""
    from data_prep.im2rec import ensure_records
    from data_prep.roadsigns import ensure

    ensure(root)
    ensure_records(root)
    if data_format == "tfrecord":
        from data_prep.tfrecord import ensure_tfrecord

        ensure_tfrecord(root)


def with_checkpoint(asked: Experiment) -> Experiment:
    """Fill in what a loaded checkpoint decides: the network, and for scoring the input too."""
    if not asked.model_prefix or (asked.load_epoch is None and not asked.resume):
        return asked
    if asked.resume and not checkpoint.symbol_path(asked.model_prefix).exists():
        return asked
    net = checkpoint.read_network(asked.model_prefix)
    wanted: dict[str, Any] = {"num_classes": net.num_classes, "resnet_version": net.version}
    if net.name == "resnet-tiny":
        wanted["network"] = "tiny"
    else:
        wanted |= {"network": "resnet", "num_layers": int(net.name.removeprefix("resnet"))}
    for name, value in wanted.items():
        given = getattr(asked, name)
        if given is not None and given != value:
            raise UserError(
                f"{experiment.flag_name(name)} {given}: the checkpoint {asked.model_prefix} is a"
                f" {net.name} {net.version} with {net.num_classes} classes; leave the flag out"
            )
    if asked.only_inference and asked.load_epoch is not None:
        trained = checkpoint.load(asked.model_prefix, asked.load_epoch).experiment
        wanted |= {n: trained[n] for n in SCORED_WITH if trained.get(n) is not None}
        if "dtype" in wanted and lacks(wanted["dtype"], machine(), wanted["network"]):
            del wanted["dtype"]  # trained on another machine: here `auto` chooses
    return replace(asked, **{n: v for n, v in wanted.items() if getattr(asked, n) is None})


def describe(resolved: Resolved) -> str:
    """The axes of a run with the reason for each, and the arithmetic, as lines for people."""
    done, lines = resolved.experiment, list(resolved.caps)
    numbers = recipe.REFERENCE
    tricks = {"optimizer": numbers.optimizer, "lr_schedule": numbers.lr_schedule,
              "label_smoothing": numbers.label_smoothing, "bn_decay": numbers.bn_decay,
              "zero_gamma": numbers.zero_gamma}  # fmt: skip
    shown = ("data_root", "backend", "loader", "dtype", "loss_scale", "n", "comm", "launcher",
             "batch_size", "macrobatch_size", "recipe", *tricks, "num_epochs", "image_shape",
             "num_classes", "threads", "data_nthreads", "model_prefix")  # fmt: skip
    for name in shown:
        value = getattr(done, name)
        unread = name in ("data_root", "data_nthreads") and done.loader == "synthetic"
        unread |= name == "comm" and value == "local"
        unread |= name in tricks and value == tricks[name]
        if value is not None and not unread:
            reason = resolved.reasons.get(name, "given")
            lines.append(f"  {experiment.flag_name(name):16} {value}  ({reason})")
    if done.dtype == "float16" and not machine().gpus:
        lines.append("  float16 on a processor shows what float16 does, not how fast it is")
    if done.loader == "synthetic":
        lines.append("  synthetic images: speed is real, accuracy means nothing")
    if done.step is not None:
        lines.append(f"  paced at {done.step:g} img/s: the model is replaced by a wait")
    elif not (done.only_inference or done.test_io):
        lines.append(f"  {experiment.arithmetic(done)}")
        if not done.benchmark_iters:
            told = (experiment.recipe_line, experiment.batch_remark, experiment.schedule_remark)
            lines += [f"  {line}" for line in (say_of(done) for say_of in told) if line]
    return "\n".join(lines)


def train(argv: list[str]) -> int:
    """`rn50 train`: one worker, here. `rn50 run` starts it with the threads and allocator set."""
    parser = experiment_parser("train")
    parser.add_argument("--run-dir", type=Path, help="folder for progress.jsonl and report.json")
    asked, extra = parse_experiment(parser, argv)
    launch.die_with_parent()
    resolved = prepare(asked)
    return worker(resolved, extra.run_dir)


def worker(
    resolved: Resolved,
    run_dir: Path | None,
    group: Comm | None = None,
    watch: type[Progress] | None = None,
    warm_up: int = 0,
) -> int:
    """Run the loop in this process, with its report and progress files.

    A benchmark brings its own: a `group` that is connected already, what `watch`es the iterations,
    and how many of them come before the first that counts.
    """
    from rn50lib import comm, training
    from rn50lib.contention import Contention
    from rn50lib.position import State
    from rn50lib.progress import Progress
    from rn50lib.records.source import open_source
    from rn50lib.report import Report

    done = resolved.experiment
    group = group or comm.connect(done.comm, done.backend)
    splits = ["train", "val"]
    if done.no_val or (done.test_io and not done.only_inference):
        splits.remove("val")
    if done.only_inference:
        splits.remove("train")
    sources: dict[str, Any] = dict.fromkeys(splits)
    if done.loader != "synthetic":
        for split in splits:
            sources[split] = open_source(Path(done.data_root), split, done.data_format)
    if done.test_io:
        return time_input(done, sources, group)
    net = done.to_network()
    env = environment(resolved, run_dir, sources)
    file = done.report or (run_dir / "report.json" if run_dir else None)

    def write_report(latest: Report) -> None:
        speed = [x for x in latest.metrics["train.total_ips"] if x]
        if speed and done.step is None:
            flops = net.train_flops(done.image_shape)
            latest.env["model_flops"] = {"per_image": flops, "per_second": flops * speed[-1]}
        latest.env["contended"] = others.found()
        if file:
            latest.write(file)

    if run_dir:
        run_dir.mkdir(parents=True, exist_ok=True)

    def attempt(state: State) -> None:
        """The run, or what is left of it: an elastic group comes here again with other workers."""
        report = Report(net.name, group.size, [sys.argv[0], *sys.argv[1:]], env)
        progress = (watch or Progress)(run_dir, done.logdir, enabled=group.rank == 0)
        training.train(done, net, sources, group, progress, report, write_report, state, warm_up)

    with Contention(looks=group.rank == 0) as others:
        group.run(attempt, State())
    return 0


def environment(
    resolved: Resolved, run_dir: Path | None, sources: dict[str, Any]
) -> dict[str, Any]:
    """The report's `env`: machine, axes with their reasons, caps and overrides."""
    import importlib.metadata
    import os

    reasons, caps = dict(resolved.reasons), list(resolved.caps)
    launched = run_dir / "experiment.json" if run_dir else None
    if launched and launched.exists():  # `rn50 run` chose, and told this worker explicitly
        told = json.loads(launched.read_text())
        reasons, caps = told["reasons"], told["caps"]
    done = resolved.experiment
    values = {f.name: getattr(done, f.name) for f in fields(Experiment)}
    defaults = {f.name: f.default for f in fields(Experiment)}
    axes = {
        name: {"value": value, "reason": reasons.get(name, "default")}
        for name, value in values.items()
        if not (value is None or value is defaults[name] is False or value == ())
    }
    versions = {}
    for package in ("numpy", "pillow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "machine": machine().to_dict(),
        "versions": versions,
        "axes": axes,
        "caps": caps,
        "overrides": list(done.override),
        "data": {
            split: f"{s.path} ({len(s)} images, {s.format})" for split, s in sources.items() if s
        },
        "allocator": os.environ.get("GLIBC_TUNABLES"),
    }


def time_input(done: FullExperiment, sources: dict[str, Any], group: Comm) -> int:
    """`--test-io`: how many images per second the input pipeline of a worker alone delivers."""
    import time

    from rn50lib.pipelines import open_pipeline

    split = "val" if done.only_inference else "train"
    pipeline = open_pipeline(done, sources[split], split, group.rank, group.size)
    try:
        for epoch in range(done.num_epochs):
            batches = pipeline.epoch(epoch)
            next(batches)  # starts the workers; not timed
            begin, images = time.perf_counter(), 0
            for batch in batches:
                images += batch.valid
            seconds = time.perf_counter() - begin
            rate = f"{images / seconds:.1f} img/s" if images else "too few batches to time"
            print(f"epoch {epoch + 1}: {rate}, {len(pipeline)} batches of {done.batch_size}")
    finally:
        pipeline.close()
    return 0


def score(argv: list[str]) -> int:
    """`rn50 score PREFIX EPOCH`: validate a checkpoint as it was trained."""
    parser = experiment_parser("score")
    parser.add_argument("prefix", help="the --model-prefix of the training run")
    parser.add_argument("epoch", type=int, help="the epoch of the checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and stop")
    parser.add_argument("--run-dir", type=Path, help="folder of this run (default: a new one)")
    asked, extra = parse_experiment(parser, argv)
    epochs = asked.num_epochs or 1
    asked = replace(
        asked,
        model_prefix=extra.prefix,
        load_epoch=extra.epoch,
        num_epochs=epochs,
        only_inference=True,
    )
    if extra.dry_run:
        return run_experiment(asked, dry_run=True)
    folder = extra.run_dir or launch.new_run("score")
    status = run_experiment(asked, folder)
    if status == 0:
        from rn50lib.report import load

        metrics = load(asked.report or folder / "report.json")["metrics"]
        print(f"val.top1 {metrics['val.top1'][-1]} val.top5 {metrics['val.top5'][-1]}")
    return status


def benchmark(argv: list[str]) -> int:
    """`rn50 benchmark`: images per second over numbers of workers and batch sizes."""
    from rn50lib.benchmark.command import main as benchmark_main

    return benchmark_main(argv)


def predict(argv: list[str]) -> int:
    """`rn50 predict`: what a checkpoint sees in pictures."""
    from rn50lib.predict import main as predict_main

    return predict_main(argv)


def export(argv: list[str]) -> int:
    """`rn50 export`: a checkpoint for other programs."""
    from rn50lib.export import main as export_main

    return export_main(argv)


def plot(argv: list[str]) -> int:
    """`rn50 plot R1.json R2.json -o curves.png`."""
    from rn50lib.cli import Parser

    parser = Parser(prog="rn50 plot", description="Curves over epochs from report files.")
    parser.add_argument("reports", nargs="+", help="files that --report wrote")
    parser.add_argument("-o", "--output", required=True, help="picture to write (.png, .svg, .pdf)")
    parser.add_argument(
        "--labels", nargs="+", help="a name for each report (default: its file name)"
    )
    args = parser.parse_args(argv)
    if args.labels and len(args.labels) != len(args.reports):
        parser.error(f"--labels: {len(args.labels)} names for {len(args.reports)} reports")
    from rn50lib import plot as plots
    from rn50lib.report import load

    names = args.labels or [Path(name).stem for name in args.reports]
    figure = plots.curves({n: load(r) for n, r in zip(names, args.reports, strict=True)})
    plots.save(figure, args.output)
    print(args.output)
    return 0


def compare(argv: list[str]) -> int:
    """`rn50 compare`: reports and benchmarks beside each other."""
    from rn50lib.compare import main as compare_main

    return compare_main(argv)


def scale(argv: list[str]) -> int:
    """`rn50 scale`: other numbers of GPUs, predicted."""
    from rn50lib.scaling.command import main as scale_main

    return scale_main(argv)


def diagnose(argv: list[str]) -> int:
    """`rn50 diagnose`: loader, step, both and communication, each measured by itself."""
    from rn50lib.diagnose.command import main as diagnose_main

    return diagnose_main(argv, prepare, describe)


def doctor(argv: list[str]) -> int:
    """`rn50 doctor`: checks with remedies."""
    from rn50lib.doctor import main as doctor_main

    return doctor_main(argv)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

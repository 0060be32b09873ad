"""What the verbs of `rn50` do."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

from rn50lib import checkpoint, launch
from rn50lib.config import Config, Experiment, flags_of
from rn50lib.config.description import describe
from rn50lib.errors import TERMINATED
from rn50lib.files import check_writable, is_stream, make_folder
from rn50lib.launch.prepare import prepare
from rn50lib.parser import Parser, experiment_parser, parse_experiment
from rn50lib.rank import member
from rn50lib.stop import die_with_parent, end_on_sigterm

ENGINES = ("slurm", "mpijob", "trainjob", "docker", "apptainer")


def run(argv: list[str]) -> int:
    """`rn50 run`: choose what was not given, say so, launch the workers and wait."""
    parser = run_parser()
    experiment, extra = parse_experiment(parser, argv)
    if extra.print:
        return print_job(experiment, extra)
    if extra.image:
        parser.error("--image names the container image of a job file: give --print too")
    if extra.print_config:
        from rn50lib.launch import dry_run as dry

        config, remarks = dry.prepared(experiment)
        print("\n".join([*(f"# {remark}" for remark in remarks), config.to_yaml()]))
        return 0
    return run_experiment(experiment, extra.run_dir, extra.dry_run)


def run_parser() -> Parser:
    parser = experiment_parser("run")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and stop")
    parser.add_argument("--run-dir", type=Path, help="folder of this run (default: a new one)")
    parser.add_argument(
        "--print", choices=ENGINES, help="print the job file of this run for an engine"
    )
    parser.add_argument(
        "--print-config", action="store_true",
        help="print the run with all that was chosen for it, as YAML for --config, and stop",
    )  # fmt: skip
    parser.add_argument("--image", help="with --print: the container image (default: rn50)")
    return parser


def print_job(experiment: Experiment, extra: argparse.Namespace) -> int:
    """The job file of a run, which is resumed when its job is started again."""
    from rn50lib.tools.jobs import job_file

    folder = (extra.run_dir or launch.run_folder("run")).absolute()
    if makes_a_model(experiment) and experiment.load_epoch is None:
        prefix = experiment.model_prefix or str(folder / "model")
        keep = experiment.keep or 2
        experiment = replace(experiment, model_prefix=prefix, keep=keep, resume=True)
    print(job_file(extra.print, experiment, folder, extra.image), end="")
    return 0


def run_experiment(
    experiment: Experiment, run_dir: Path | None = None, dry_run: bool = False
) -> int:
    die_with_parent()
    end_on_sigterm()
    if dry_run:
        from rn50lib.launch import dry_run as dry

        print("\n".join(dry.plan(experiment)))
        return 0
    config = prepare(experiment)
    folder = run_dir or launch.new_run("score" if experiment.only_inference else "run")
    make_folder(folder, f"--run-dir {folder}")
    if config.experiment.model_prefix is None and makes_a_model(config.experiment):
        config = with_model(config, folder)
    if checkpoint.saves(config.experiment):
        with checkpoint.lock_for(config.experiment):
            pass  # the worker takes it; here it is told before any worker starts
    launch.say(describe(config))
    status = launch.run(config, folder)
    if status == TERMINATED:
        tell_how_to_go_on("run", experiment, config)
    if status == 0 and not config.experiment.test_io:
        launch.say(f"report: {config.experiment.report or folder / 'report.json'}")
    return status


def makes_a_model(experiment: Experiment) -> bool:
    """Whether a run leaves weights that one would want to keep, or to go on from."""
    if experiment.elastic or experiment.max_restarts or experiment.checkpoint_steps:
        return True
    if experiment.benchmark_iters or experiment.no_metrics or experiment.test_io:
        return False  # it is timed only
    return not (experiment.only_inference or experiment.step or experiment.loader == "synthetic")


def with_model(config: Config, folder: Path) -> Config:
    """The same run, with its newest two checkpoints in its folder."""
    kept = replace(
        config.experiment, model_prefix=str(folder / "model"), keep=config.experiment.keep or 2
    )
    reasons = dict(config.reasons) | {"model_prefix": "in the run's folder, the newest two"}
    return replace(config, experiment=kept, reasons=reasons)


def train(argv: list[str]) -> int:
    """`rn50 train`: one worker, here: alone, or one of those that torchrun, srun, mpirun or
    horovodrun has started."""
    parser = experiment_parser("train")
    parser.add_argument("--run-dir", type=Path, help="folder for progress.jsonl and report.json")
    experiment, extra = parse_experiment(parser, argv)
    end_on_sigterm()
    me = member()
    config = prepare(experiment, group=me)
    from rn50lib.worker import run_worker

    try:
        return run_worker(config, extra.run_dir)
    except SystemExit as ended:
        if ended.code == TERMINATED and (me is None or me.rank == 0):
            tell_how_to_go_on("train", experiment, config)
        raise


def tell_how_to_go_on(verb: str, experiment: Experiment, config: Config) -> None:
    """The command that resumes a run that was asked to end, where there is something to resume."""
    prefix = config.experiment.model_prefix
    if prefix and not experiment.only_inference:
        again = replace(
            experiment, model_prefix=prefix, resume=True, load_epoch=None,
            init_from=config.experiment.init_from,
        )  # fmt: skip
        launch.say(f"go on with: {shlex.join(['rn50', verb, *flags_of(again)])}")


def score(argv: list[str]) -> int:
    """`rn50 score PREFIX EPOCH`: validate a checkpoint as it was trained."""
    parser = experiment_parser("score")
    parser.add_argument("prefix", help="the --model-prefix of the training run")
    parser.add_argument("epoch", type=int, help="the epoch of the checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and stop")
    parser.add_argument("--run-dir", type=Path, help="folder of this run (default: a new one)")
    experiment, extra = parse_experiment(parser, argv)
    experiment = replace(
        experiment,
        model_prefix=extra.prefix,
        load_epoch=extra.epoch,
        num_epochs=experiment.num_epochs or 1,
        only_inference=True,
    )
    if extra.dry_run:
        return run_experiment(experiment, dry_run=True)
    folder = extra.run_dir or launch.new_run("score")
    file = Path(experiment.report or folder / "report.json")
    read_back = not is_stream(file)
    if not read_back:  # what is written there cannot be read again: write it when it is read
        check_writable(file, "--report")
        experiment = replace(experiment, report=None)
    status = run_experiment(experiment, folder)
    if status == 0 and not experiment.test_io:
        from rn50lib.report import load, write_json

        report = load(file if read_back else folder / "report.json")
        if not read_back:
            write_json(file, report)
        metrics = report["metrics"]
        print(f"val.top1 {metrics['val.top1'][-1]} val.top5 {metrics['val.top5'][-1]}")
    return status


def plot(argv: list[str]) -> int:
    """`rn50 plot R1.json R2.json -o curves.png`."""
    from rn50lib.parser import Parser

    parser = Parser(prog="rn50 plot", description="Curves over epochs from report files.")
    parser.add_argument("reports", nargs="+", help="files that --report wrote")
    parser.add_argument("-o", "--output", required=True, help="picture to write (.png, .svg, .pdf)")
    parser.add_argument(
        "--labels", nargs="+", help="a name for each report (default: its file name)"
    )
    args = parser.parse_args(argv)
    if args.labels and len(args.labels) != len(args.reports):
        parser.error(f"--labels: {len(args.labels)} names for {len(args.reports)} reports")
    from rn50lib.report import load
    from rn50lib.tools import plot as plots

    names = args.labels or [Path(name).stem for name in args.reports]
    figure = plots.curves({n: load(r) for n, r in zip(names, args.reports, strict=True)})
    plots.save(figure, args.output)
    print(args.output)
    return 0

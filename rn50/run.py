"""What the verbs of `rn50` do."""

from __future__ import annotations

import contextlib
import shlex
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from rn50 import launch
from rn50.description import describe
from rn50.parser import Parser, experiment_parser, parse_experiment
from rn50.prepare import prepare
from rn50lib import checkpoint
from rn50lib.config import Config, Experiment, flags_of
from rn50lib.distributed.launch_env import member
from rn50lib.errors import TERMINATED
from rn50lib.files import lock, make_folder
from rn50lib.preemption import die_with_parent, end_on_sigterm

ENGINES = ("slurm", "mpijob", "trainjob")


def run(argv: list[str]) -> int:
    """`rn50 run`: choose what was not given, say so, launch the workers and wait."""
    parser = run_parser()
    experiment, extra = parse_experiment(parser, argv)
    if extra.print:
        from rn50.jobs import job_file

        print(job_file(extra.print, experiment, extra.run_dir, extra.image), end="")
        return 0
    if extra.image:
        parser.error("--image names the container image of a job file: pass --print too")
    if extra.print_config:
        from rn50 import dry_run as dry

        print("\n".join(dry.as_yaml(experiment)))
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


def run_experiment(
    experiment: Experiment, run_dir: Path | None = None, dry_run: bool = False
) -> int:
    die_with_parent()
    end_on_sigterm()
    if dry_run:
        from rn50 import dry_run as dry

        print("\n".join(dry.plan(experiment)))
        return 0
    config = prepare(experiment)
    launch.check_hosts(config.experiment)
    folder = run_dir or launch.new_run("score" if experiment.only_inference else "run")
    make_folder(folder, f"--run-dir {folder}")
    if config.experiment.model_prefix is None and checkpoint.makes_a_model(config.experiment):
        config = with_model(config, folder)
    if checkpoint.saves(config.experiment):
        with checkpoint.lock_for(config.experiment):
            pass  # the worker takes it; here it is told before any worker starts
    with lock_folder(folder):
        launch.say(describe(config))
        status = launch.run(config, folder)
    if status == TERMINATED:
        tell_how_to_go_on("run", experiment, config)
    if status == 0 and not config.experiment.test_io:
        launch.say(f"report: {config.experiment.report or folder / 'report.json'}")
    return status


def lock_folder(folder: Path) -> AbstractContextManager[None]:
    """Hold the folder of a run. Raises UserError if another run is writing there."""
    return lock(folder / ".lock", f"--run-dir {folder}")


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
    from rn50lib.train import train as train_here

    first = me is None or me.rank == 0
    try:
        with contextlib.ExitStack() as held:
            if extra.run_dir and first:
                make_folder(extra.run_dir, f"--run-dir {extra.run_dir}")
                held.enter_context(lock_folder(extra.run_dir))
            return train_here(config, extra.run_dir)
    except SystemExit as ended:
        if ended.code == TERMINATED and first:
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

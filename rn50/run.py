"""The verbs `rn50 run`, `rn50 train` and `rn50 score`."""

from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path

from rn50 import description, launch
from rn50.autoconfig import Given, prepare
from rn50.common import find_checkpoint, has_key, makes_a_model
from rn50.launch import is_local
from rn50.parser import PRESETS, Parser, config_parser, parse_given
from rn50.reports import is_report, is_trace
from rn50lib import checkpoint, hooks
from rn50lib.config import Resolved, TrainConfig, flags_of
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import TERMINATED, UserError
from rn50lib.files import check_folder, check_output, lock, make_folder, read_json
from rn50lib.lifetime import die_with_parent, end_on_sigterm


def run(argv: list[str]) -> int:
    """Run `rn50 run`: fill in what was not passed, print it, launch the workers and wait."""
    given, extra = parse_given(run_parser(), argv)
    if extra.print:
        if extra.print == "config":
            shown = description.as_config_file(given)
        else:
            shown = description.as_recipe(given, PRESETS.get(extra.preset))
        print("\n".join(shown))
        return 0
    return launch_run(given, extra.run_dir, extra.dry_run)


def run_parser(verb: str = "run") -> Parser:
    parser = config_parser(verb)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and stop")
    parser.add_argument("--run-dir", type=Path, help="folder of this run (default: a new one)")
    if verb == "run":
        parser.add_argument(
            "--print", choices=("config", "recipe"),
            help="print the complete configuration as YAML for --config, or what decides the"
            " accuracy as a table, and stop",
        )  # fmt: skip
    return parser


def launch_run(given: Given, run_dir: Path | None = None, dry_run: bool = False) -> int:
    """Complete and run a configuration; return the exit status."""
    die_with_parent()
    end_on_sigterm()
    me = LaunchEnv.detect()
    if me and me.size > 1:
        raise UserError(
            f"`rn50 run` starts the workers itself, and {me.launcher} has started {me.size} of it:"
            " use `rn50 train`, or start `rn50 run` once"
        )
    if dry_run:
        remarks: list[str] = []
        resolved = prepare(given, remarks=remarks)
        if is_local(given.get("hosts")) and not remarks:
            check_outputs(given, run_dir)
            hooks.check_files(resolved.config.override)
            description.check_data(given, resolved.config)
        print(description.describe(resolved), *remarks, sep="\n")
        print(description.command_line(resolved))
        return 0
    check_outputs(given, run_dir)
    launch.check_hosts(given.get("hosts"))
    resolved = prepare(given)
    config = resolved.config
    hooks.check_files(config.override)
    folder = run_dir or launch.new_run("score" if config.only_inference else "run")
    make_folder(folder, f"--run-dir {folder}")
    resolved = with_model(resolved, folder)
    config = resolved.config
    if checkpoint.saves(config):
        with checkpoint.lock_for(config):
            pass  # the worker takes it; an error comes before any worker starts
    with lock(folder / ".lock", f"--run-dir {folder}"):
        launch.say(description.describe(resolved))
        status = launch.run(resolved, folder)
    if status in (TERMINATED, 130):
        print_resume_command("run", given, config, run_dir)
    if status == 0:
        print_results(config, folder)
    return status


def check_outputs(given: Given, run_dir: Path | None) -> None:
    """Raise UserError if an output cannot be written, or would replace another program's file.

    Nothing is created. It comes before the data set is drawn and before frameworks are imported.
    """
    prefix = given.get("model_prefix")
    if prefix and not (given.get("only_inference") or given.get("test_io")):
        checkpoint.check_prefix_is_free(prefix, given.get("load_epoch"), bool(given.get("resume")))

    def replaceable(file: Path) -> bool:
        """Return True for a report, but not for a training's if this run only validates."""
        keeps = given.get("only_inference") and "train.loss" in read_json(file)["metrics"]
        return is_report(file) and not keeps

    kind = "a report of such a run"
    if given.get("report"):
        check_output(given["report"], "--report", kind, replaceable)
    if given.get("trace"):
        check_output(given["trace"], "--trace", "a trace", is_trace)
    if run_dir:
        check_folder(run_dir, f"--run-dir {run_dir}")
        check_output(run_dir / "report.json", "--run-dir:", kind, replaceable)
        file = run_dir / "experiment.json"
        check_output(file, "--run-dir:", "the experiment of a run", has_key("experiment"))


def with_model(resolved: Resolved, folder: Path) -> Resolved:
    """Return the same run; without --model-prefix, its checkpoints are in its folder."""
    if resolved.config.model_prefix is not None or not makes_a_model(resolved.config):
        return resolved
    why, keep = "in the run's folder, the newest two and the best", resolved.config.keep or 2
    return resolved.chosen(why, model_prefix=str(folder / "model"), keep=keep)


def score(argv: list[str]) -> int:
    """Run `rn50 score`: validate a checkpoint, print its accuracy and write a report."""
    parser = run_parser("score")
    parser.usage = "rn50 score [FLAGS] PREFIX [EPOCH]"
    parser.add_argument(
        "prefix", help="the --model-prefix of the training run, or a checkpoint's file"
    )
    parser.add_argument("epoch", type=int, nargs="?", help="the epoch (default: the last)")
    given, extra = parse_given(parser, argv)
    prefix, epoch = find_checkpoint(extra.prefix, extra.epoch)
    given = {"num_epochs": 1, **given}
    given |= {"model_prefix": prefix, "load_epoch": epoch, "only_inference": True}
    if extra.dry_run:
        return launch_run(given, dry_run=True)
    folder = extra.run_dir or launch.new_run("score")
    status = launch_run(given, folder)
    if status == 0 and not (given.get("test_io") or given.get("no_metrics")):
        *_, last = (folder / "progress.jsonl").read_text(encoding="utf-8").splitlines()
        metrics = json.loads(last)
        print(f"val.top1 {metrics['val.top1']:.6g} val.top5 {metrics['val.top5']:.6g}")
    return status


def train(argv: list[str]) -> int:
    """Run `rn50 train`: one worker in this process, alone or started by a launcher."""
    parser = config_parser("train")
    parser.add_argument(
        "--run-dir", type=Path, help="folder for the model, report.json and progress.jsonl"
    )
    given, extra = parse_given(parser, argv)
    end_on_sigterm()
    me = LaunchEnv.detect()
    first = me is None or me.rank == 0
    if first:
        check_outputs(given, extra.run_dir)
    resolved = prepare(given, group=me)
    if extra.run_dir:
        resolved = with_model(resolved, extra.run_dir)
    config = resolved.config
    from rn50lib.train import train as train_here

    try:
        with contextlib.ExitStack() as held:
            if extra.run_dir and first:
                make_folder(extra.run_dir, f"--run-dir {extra.run_dir}")
                held.enter_context(lock(extra.run_dir / ".lock", f"--run-dir {extra.run_dir}"))
            if first:
                launch.say(description.describe(resolved))
                if makes_a_model(config) and config.model_prefix is None:
                    lost = "the weights are not" if config.report else "nothing is"
                    launch.say(f"note: {lost} saved: pass --run-dir FOLDER")
            status = train_here(resolved, extra.run_dir)
    except SystemExit as ended:
        if ended.code == TERMINATED and first:
            print_resume_command("train", given, config, extra.run_dir)
        raise
    if first and status == 0:
        print_results(config, extra.run_dir)
    return status


def print_results(config: TrainConfig, folder: Path | None) -> None:
    """Print where a finished run left its report and model, and the command to predict with it."""
    if report := config.report or (folder and folder / "report.json"):
        launch.say(f"report: {report}")
    prefix = config.model_prefix or ""
    if checkpoint.saves(config) and (there := checkpoint.epochs(prefix)):
        launch.say(f"model: {checkpoint.path(prefix, there[-1])}")
        launch.say(f"predict with: {shlex.join(['rn50', 'predict', prefix, 'IMAGE.jpg'])}")


def print_resume_command(verb: str, given: Given, config: TrainConfig, folder: Path | None) -> None:
    """Print the command that resumes a run that was ended, if it left a checkpoint."""
    prefix = config.model_prefix
    if prefix and not config.only_inference and checkpoint.positions(prefix):
        again = {**given, "model_prefix": prefix, "keep": config.keep, "resume": True,
                 "load_epoch": None, "init_from": config.init_from}  # fmt: skip
        words = ["rn50", verb, *flags_of(again), *(["--run-dir", str(folder)] if folder else [])]
        launch.say(f"continue with: {shlex.join(words)}")

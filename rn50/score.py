"""`rn50 score PREFIX EPOCH`: validate a checkpoint with the settings of its training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rn50 import launch
from rn50.parser import experiment_parser, parse_experiment
from rn50.run import run_experiment
from rn50lib.files import check_output
from rn50lib.report import is_report, load, write_json


def main(argv: list[str]) -> int:
    """Score one checkpoint: print its accuracy and write a report."""
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
    if experiment.report:
        check_output(experiment.report, "--report", "a report", is_report)
    folder = extra.run_dir or launch.new_run("score")
    status = run_experiment(replace(experiment, report=None), folder)
    if status == 0 and not experiment.test_io:
        report = load(folder / "report.json")
        if experiment.report:
            write_json(experiment.report, report)
        metrics = report["metrics"]
        print(f"val.top1 {metrics['val.top1'][-1]} val.top5 {metrics['val.top5'][-1]}")
    return status

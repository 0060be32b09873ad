"""`rn50 score PREFIX EPOCH`: validate a checkpoint as it was trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rn50 import launch
from rn50.parser import experiment_parser, parse_experiment
from rn50.run import run_experiment
from rn50lib.files import check_writable, is_stream
from rn50lib.report import load, write_json


def main(argv: list[str]) -> int:
    """Score one checkpoint; prints its accuracy, and writes a report."""
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
        report = load(file if read_back else folder / "report.json")
        if not read_back:
            write_json(file, report)
        metrics = report["metrics"]
        print(f"val.top1 {metrics['val.top1'][-1]} val.top5 {metrics['val.top5'][-1]}")
    return status

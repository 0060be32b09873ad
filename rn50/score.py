"""`rn50 score PREFIX EPOCH`: validate a checkpoint with the settings of its training."""

from __future__ import annotations

from pathlib import Path

from rn50 import launch
from rn50.parser import config_parser, parse_given
from rn50.run import launch_run
from rn50lib.files import Output
from rn50lib.report import as_json, is_report, load


def main(argv: list[str]) -> int:
    """Score one checkpoint: print its accuracy and write a report."""
    parser = config_parser("score")
    parser.add_argument("prefix", help="the --model-prefix of the training run")
    parser.add_argument("epoch", type=int, help="the epoch of the checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and stop")
    parser.add_argument("--run-dir", type=Path, help="folder of this run (default: a new one)")
    given, extra = parse_given(parser, argv)
    given = {"num_epochs": 1, **given}
    given |= {"model_prefix": extra.prefix, "load_epoch": extra.epoch, "only_inference": True}
    if extra.dry_run:
        return launch_run(given, dry_run=True)
    report_file = given.pop("report", None)
    output = Output("--report", report_file, "a report", is_report) if report_file else None
    folder = extra.run_dir or launch.new_run("score")
    status = launch_run(given, folder)
    if status == 0 and not given.get("test_io"):
        report = load(folder / "report.json")
        if output:
            output.write(as_json(report))
        metrics = report["metrics"]
        print(f"val.top1 {metrics['val.top1'][-1]:.6g} val.top5 {metrics['val.top5'][-1]:.6g}")
    return status

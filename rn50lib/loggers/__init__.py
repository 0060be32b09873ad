"""Where the readings of a run go besides progress.jsonl: `--logger`.

A logger is a callable that gets each line of that file as it is written, and at the end
`{"phase": "report", "report": {...}}`. What has a `close()` is closed with the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rn50lib.config import Experiment
from rn50lib.errors import UserError
from rn50lib.hooks import function_in
from rn50lib.loggers.tensorboard import Board, scalars

Line = dict[str, Any]
Logger = Callable[[Line], None]


class WandB:
    """Weights & Biases: its own variables (WANDB_PROJECT, WANDB_MODE, ...) say where to."""

    def __init__(self, experiment: Experiment, name: str) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "rn50")
        self.run, self.status = wandb.init(project=project, name=name), 1
        self.run.config.update(experiment.given())

    def __call__(self, line: Line) -> None:
        if line["phase"] == "report":
            self.run.summary.update({"report": line["report"]})
            self.status = 0
        else:  # its steps may not go back, as those of epochs do
            self.run.log(scalars(line)[0] | {"epoch": line["epoch"]})

    def close(self) -> None:
        self.run.finish(exit_code=self.status)


class MLflow:
    """MLflow: its own variables (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME) say where to."""

    def __init__(self, experiment: Experiment, name: str) -> None:
        import mlflow

        self.mlflow, self.status = mlflow, "FAILED"
        mlflow.start_run(run_name=name)
        mlflow.log_params(experiment.given())

    def __call__(self, line: Line) -> None:
        if line["phase"] == "report":
            self.mlflow.log_dict(line["report"], "report.json")
            self.status = "FINISHED"
        else:
            values, step = scalars(line)
            self.mlflow.log_metrics(values, step=step)

    def close(self) -> None:
        self.mlflow.end_run(self.status)


SERVICES: dict[str, Callable[[Experiment, str], Logger]] = {"wandb": WandB, "mlflow": MLflow}


def open_loggers(experiment: Experiment, run_dir: Path | None) -> list[Logger]:
    """The loggers of a run, ready to be called. Raises UserError for what cannot be loaded."""
    name, found = run_dir.name if run_dir else "rn50", list[Logger]()
    wanted = [*experiment.logger, *(["tensorboard"] if experiment.logdir else [])]
    for text in dict.fromkeys(wanted):
        file, _, function = text.rpartition(":")
        if text == "tensorboard":
            found.append(Board(experiment.logdir or str((run_dir or Path()) / "tensorboard")))
        elif text in SERVICES:
            try:
                found.append(SERVICES[text](experiment, name))
            except Exception as error:  # no key, no server, a store that it no longer writes to
                raise UserError(f"--logger {text}: {' '.join(str(error).split())}") from error
        else:
            found.append(function_in(Path(file), function, f"--logger {text}"))
    return found

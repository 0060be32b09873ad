"""Where the readings of a run go besides progress.jsonl: `--logger`.

A logger is a callable that gets each line of that file as it is written, and at the end
`{"phase": "report", "report": {...}}`. If it has a `close()`, that is called at the end of the run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from rn50lib.files import make_folder
from rn50lib.hooks import function_in

Line = dict[str, Any]
Logger = Callable[[Line], None]
NOT_MEASURED = ("phase", "epoch", "step", "steps", "seconds")


def scalars(line: Line) -> tuple[dict[str, float], int]:
    """Return what a line has measured, as 'train/loss' and so on, and its step: the batches since
    the beginning of the run, or the number of the epoch that it sums up."""
    phase, epoch = line["phase"], line["epoch"]
    measured = {k: v for k, v in line.items() if k not in NOT_MEASURED}
    found = {f"{phase}/{k}": v for k, v in measured.items() if isinstance(v, (int, float))}
    return found, epoch if phase == "epoch" else epoch * line["steps"] + line["step"]


class TensorBoard:
    """TensorBoard's event files, by the writer that torch.utils.tensorboard uses too."""

    def __init__(self, folder: Path) -> None:
        # TensorBoard's own switch: without it TensorFlow is imported to open a file
        sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise UserError(
                f"--logger tensorboard needs its package ({error}): `pip install tensorboard`"
            ) from error
        make_folder(folder, f"--logger tensorboard: {folder}")
        self.event, self.summary, self.writer = Event, Summary, EventFileWriter(str(folder))

    def __call__(self, line: Line) -> None:
        if line["phase"] != "report":
            values, step = scalars(line)
            summary = self.summary(
                value=[self.summary.Value(tag=k, simple_value=v) for k, v in values.items()]
            )
            self.writer.add_event(self.event(wall_time=time.time(), step=step, summary=summary))
            self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandB:
    """Weights & Biases, configured by its own variables (WANDB_PROJECT, WANDB_MODE, ...)."""

    def __init__(self, config: TrainConfig, name: str) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "rn50")
        self.run, self.status = wandb.init(project=project, name=name), 1
        self.run.config.update(config.to_dict())

    def __call__(self, line: Line) -> None:
        if line["phase"] == "report":
            self.run.summary.update({"report": line["report"]})
            self.status = 0
        else:  # without a step: W&B's may not go back, as those of epochs do
            self.run.log(scalars(line)[0] | {"epoch": line["epoch"]})

    def close(self) -> None:
        self.run.finish(exit_code=self.status)


class MLflow:
    """MLflow, configured by its own variables (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME)."""

    def __init__(self, config: TrainConfig, name: str) -> None:
        import mlflow

        self.mlflow, self.status = mlflow, "FAILED"
        mlflow.start_run(run_name=name)
        mlflow.log_params(config.to_dict())

    def __call__(self, line: Line) -> None:
        if line["phase"] == "report":
            self.mlflow.log_dict(line["report"], "report.json")
            self.status = "FINISHED"
        else:
            values, step = scalars(line)
            self.mlflow.log_metrics(values, step=step)

    def close(self) -> None:
        self.mlflow.end_run(self.status)


SERVICES: dict[str, Callable[[TrainConfig, str], Logger]] = {"wandb": WandB, "mlflow": MLflow}


def open_loggers(config: TrainConfig, run_dir: Path | None) -> list[Logger]:
    """Return the loggers of a run. Raise UserError for one that cannot be loaded."""
    name, loggers = run_dir.name if run_dir else "rn50", list[Logger]()
    for text in dict.fromkeys(config.logger):
        if text == "tensorboard":
            loggers.append(TensorBoard((run_dir or Path()) / "tensorboard"))
        elif text in SERVICES:
            try:
                loggers.append(SERVICES[text](config, name))
            except Exception as error:  # no key, no server, a store it no longer writes to
                raise UserError(f"--logger {text}: {' '.join(str(error).split())}") from error
        else:
            file, _, function = text.rpartition(":")
            loggers.append(function_in(Path(file), function, f"--logger {text}"))
    return loggers

"""Job files of a run: `data/slurm.sh`, `data/mpijob.yaml` and `data/trainjob.yaml`, filled in.

A run that writes checkpoints resumes when its job starts again.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50.dry_run import anywhere
from rn50.launch import SAVE_S, program, run_folder
from rn50lib import checkpoint
from rn50lib.config import Experiment, flags_of
from rn50lib.config.kinds import slots
from rn50lib.errors import UserError

TEMPLATES = Path(__file__).resolve().parent / "jobs"
ENGINES = {  # template, what synchronises the gradients
    "slurm": ("slurm.sh", "ddp"),
    "mpijob": ("mpijob.yaml", "horovod"),
    "trainjob": ("trainjob.yaml", "ddp"),
}
GRACE_S = int(SAVE_S) + 30  # from SIGTERM to SIGKILL: time to write a checkpoint, and a margin
PATHS = ("model_prefix", "report", "logdir", "timeline", "profile_trace")  # flags for output files
ALONE: dict[str, Any] = {  # what the engine decides
    "n": None, "hosts": None, "launcher": None, "max_restarts": 0,
}  # fmt: skip


def job_file(
    engine: str, experiment: Experiment, run_dir: Path | None = None, image: str | None = None
) -> str:
    """Return the job file for one of ENGINES; the run's results go to `run_dir`.

    Raises UserError if the engine cannot run the experiment or flags contradict each other.
    """
    template, comm = ENGINES[engine]
    folder = (run_dir or run_folder("run")).absolute()
    hosts = slots(experiment.hosts) if experiment.hosts else {"any": experiment.n or 1}
    nodes, local, workers = len(hosts), max(hosts.values()), sum(hosts.values())
    if workers != nodes * local or experiment.n not in (None, workers):
        raise UserError(f"--print {engine}: --hosts needs the same number of workers on every host")
    backend = experiment.backend or "torch"
    if (comm == "ddp" and backend != "torch") or experiment.comm not in (None, comm):
        flag = f"--comm {experiment.comm}" if experiment.comm else f"--backend {backend}"
        other = "mpijob" if comm == "ddp" else "slurm or trainjob"
        raise UserError(f"--print {engine} uses {comm}: with {flag} use --print {other}")
    if checkpoint.makes_a_model(experiment) and experiment.load_epoch is None:
        prefix, keep = experiment.model_prefix or str(folder / "model"), experiment.keep or 2
        experiment = replace(experiment, model_prefix=prefix, keep=keep, resume=True)
    data = Path(experiment.data_root or "/data").absolute()
    if experiment.data_root:
        experiment = replace(experiment, data_root=str(data))
    for name in PATHS if engine != "slurm" else ():
        path = getattr(experiment, name)
        if path and not Path(path).is_relative_to(folder.parent):
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} {path} is lost with the pod: use a path in {folder.parent}")
    if data == folder.parent and engine != "slurm":
        raise UserError(f"--data-root and --run-dir both need {data} as a volume: use two folders")
    anywhere(replace(experiment, **ALONE | dict.fromkeys(("comm", "bind", "timeline"))))
    gpu = experiment.profile not in ("cpu", "ci")
    cores = (experiment.threads or 0) + (experiment.data_nthreads or 0) or (8 if gpu else 2)
    args = [*flags_of(replace(experiment, **ALONE)), "--run-dir", str(folder)]
    name = "rn50-" + re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:40]
    values = {"name": name, "nodes": nodes, "local": local, "workers": workers,
              "cores": cores, "cpus": cores * local, "gpus": local if gpu else 0,
              "shared_gib": 8 * local, "grace_s": GRACE_S, "save_s": GRACE_S - 10,
              "folder": shlex.quote(str(folder)), "command": shlex.join([*program("train"), *args]),
              "image": json.dumps(image or "rn50"), "args": json.dumps(args),
              "data": json.dumps(str(data)), "runs": json.dumps(str(folder.parent))}  # fmt: skip
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    return re.sub(r"<(\w+)>", lambda blank: str(values[blank[1]]), text)

"""Job files of a run: the files of `job_templates`, filled in.

A run that writes checkpoints resumes when its job starts again.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from rn50.autoconfig import Given, prepare
from rn50.common import as_yaml, makes_a_model
from rn50.launch import SAVE_S, program, run_folder
from rn50lib.config import flags_of, slots
from rn50lib.errors import UserError

TEMPLATES = Path(__file__).resolve().parent / "job_templates"
SCHEDULERS = {  # template, what synchronises the gradients
    "slurm": ("slurm.sh", "ddp"),
    "mpijob": ("mpijob.yaml", "horovod"),
    "trainjob": ("trainjob.yaml", "ddp"),
}
GRACE_S = int(SAVE_S) + 30  # from SIGTERM to SIGKILL: time to write a checkpoint, and a margin
PATHS = ("model_prefix", "report")  # flags for output files
ALONE = ("n", "hosts", "launcher", "max_restarts")  # the engine decides


def job_file(engine: str, given: Given, run_dir: Path | None = None) -> str:
    """Return the job file for one of SCHEDULERS; the run's results go to `run_dir`.

    Raises UserError if the engine cannot run the experiment or flags contradict each other.
    """
    template, comm = SCHEDULERS[engine]
    folder = (run_dir or run_folder("run")).absolute()
    hosts = slots(given["hosts"]) if "hosts" in given else {"any": given.get("n", 1)}
    nodes, local, workers = len(hosts), max(hosts.values()), sum(hosts.values())
    if workers != nodes * local or given.get("n", workers) != workers:
        raise UserError(f"--print {engine}: --hosts needs the same number of workers on every host")
    backend = given.get("backend", "torch")
    if (comm == "ddp" and backend != "torch") or given.get("comm", comm) != comm:
        flag = f"--comm {given['comm']}" if "comm" in given else f"--backend {backend}"
        other = "mpijob" if comm == "ddp" else "slurm or trainjob"
        raise UserError(f"--print {engine} uses {comm}: with {flag} use --print {other}")
    data = Path(given.get("data_root", "/data")).absolute()
    args = {name: value for name, value in given.items() if name not in ALONE}
    args |= {"data_root": str(data)} if "data_root" in given else {}
    alone = {k: v for k, v in args.items() if k != "comm"}
    config = prepare(alone, remarks=[]).config
    if makes_a_model(config) and config.load_epoch is None:
        args = {"model_prefix": str(folder / "model"), "keep": 2, **args, "resume": True}
    for name in PATHS if engine != "slurm" else ():
        path = args.get(name)
        if path and not Path(path).is_relative_to(folder.parent):
            flag = shlex.join(flags_of({name: path}))
            raise UserError(f"{flag} is lost with the pod: use a path in {folder.parent}")
    if data == folder.parent and engine != "slurm":
        raise UserError(f"--data-root and --run-dir both need {data} as a volume: use two folders")
    gpu = given.get("profile") not in ("cpu", "ci")
    cores = given.get("threads", 0) + given.get("data_nthreads", 0) or (8 if gpu else 2)
    words = [*flags_of(args), "--run-dir", str(folder)]
    name = f"rn50-{re.sub(r'[^a-z0-9]+', '-', folder.name.lower())[:40]}".strip("-")
    values = {"name": name, "nodes": nodes, "local": local, "workers": workers,
              "cores": cores, "cpus": cores * local, "gpus": local if gpu else 0,
              "shared_gib": 8 * local, "grace_s": GRACE_S, "save_s": GRACE_S - 10,
              "folder": shlex.quote(str(folder)),
              "command": shlex.join([*program("train"), *words]),
              "image": "rn50", "args": as_yaml(words),
              "data": as_yaml(str(data)), "runs": as_yaml(str(folder.parent))}  # fmt: skip
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    return re.sub(r"<(\w+)>", lambda blank: str(values[blank[1]]), text)

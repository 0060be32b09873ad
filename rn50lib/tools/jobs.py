"""The job file of a run: for a batch system, a cluster or a container engine, in its own words.

Each starts the same training as `rn50 run` would, by the launcher that suits the engine: `srun` in
a Slurm job and torchrun in Kubeflow Trainer's TrainJob, for DDP; mpirun in an MPIJob, for Horovod;
`rn50 run` itself in a container on this machine. A run that leaves a model behind is resumed when
its job is started again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from string import Template
from textwrap import indent
from typing import Any, NamedTuple

from rn50lib import checkpoint
from rn50lib.config import Experiment, flags_of
from rn50lib.config.defaults import default_data_root, is_roadsigns, resolve
from rn50lib.config.kinds import slots
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from rn50lib.launch import run_folder
from rn50lib.launch.launchers import SAVE_S, program
from rn50lib.tools.dry_run import equipped

ENGINES = {  # what starts a worker there, and what connects the workers
    "slurm": ("srun", "ddp"),
    "mpijob": ("mpirun", "horovod"),
    "trainjob": ("torchrun", "ddp"),
    "docker": ("", ""),
    "apptainer": ("", ""),
}
IMAGE = "rn50"  # what `docker build -t rn50 .` makes of the Dockerfile
ASK_S = int(SAVE_S) + 30  # before the end of a job: its workers write a checkpoint
CORES = {True: 8, False: 2}  # of a worker, with a GPU and without, where no flag says how many
SHARED_GIB = 8  # of /dev/shm for a worker: its loader's processes hand batches over there
RESTARTS = 3
MANIFESTS = Path(__file__).resolve().parents[1] / "data"  # the files of Kubeflow's jobs
ALONE: dict[str, Any] = dict.fromkeys(("n", "hosts", "launcher", "min_np"))  # theirs to say
ALONE |= {"elastic": False, "max_restarts": 0}


class Job(NamedTuple):
    """A run on `nodes` hosts with `local` workers each, and what it finds there."""

    experiment: Experiment
    folder: Path  # of this run
    nodes: int
    local: int
    cores: int  # of a worker
    gpus: bool  # one for each worker
    mounts: dict[Path, bool]  # folder, the same inside: whether it is written to
    env: dict[str, str]
    image: str

    @property
    def name(self) -> str:
        """As Kubernetes wants one: from the run's folder."""
        return "rn50-" + re.sub(r"[^a-z0-9]+", "-", self.folder.name.lower()).strip("-")[:40]

    def worker(self, command: list[str]) -> list[str]:
        """The command of one worker; the group that starts it tells it how many there are."""
        flags = flags_of(replace(self.experiment, **ALONE))
        return [*command, *flags, "--run-dir", str(self.folder)]


def job_file(
    engine: str, experiment: Experiment, run_dir: Path | None = None, image: str | None = None
) -> str:
    """The text of the job file for one of ENGINES; the run's results come to `run_dir`.

    A run that leaves a model behind goes on with it when its job is started again.
    Raises UserError where the engine cannot run the experiment, and for flags that contradict each
    other.
    """
    folder = (run_dir or run_folder("run")).absolute()
    if checkpoint.makes_a_model(experiment) and experiment.load_epoch is None:
        prefix = experiment.model_prefix or str(folder / "model")
        keep = experiment.keep or 2
        experiment = replace(experiment, model_prefix=prefix, keep=keep, resume=True)
    launcher, comm = ENGINES[engine]
    n = experiment.n or (1 if experiment.hosts is None else sum(slots(experiment.hosts).values()))
    each = set(slots(experiment.hosts).values()) if experiment.hosts else {n}
    nodes = len(slots(experiment.hosts)) if experiment.hosts else 1
    if len(each) > 1 or n != nodes * max(each):
        raise UserError(
            f"--print {engine}: {n} workers on --hosts {experiment.hosts}: give every host as many"
        )
    if comm:
        backend = experiment.backend or "torch"
        if (comm == "ddp" and backend != "torch") or experiment.comm not in (None, comm):
            other = "mpijob" if comm == "ddp" else "slurm or trainjob"
            wanted = f"--comm {experiment.comm}" if experiment.comm else f"--backend {backend}"
            name = "PyTorch's DDP" if comm == "ddp" else "Horovod"
            raise UserError(
                f"--print {engine}: {name} connects its workers: with {wanted} use --print {other}"
            )
    elif experiment.hosts:
        raise UserError(f"--print {engine} is for one machine: leave --hosts out")
    gpus = experiment.profile not in ("cpu", "ci")
    cores = (experiment.threads or 0) + (experiment.data_nthreads or 0) or CORES[gpus]
    root = Path(experiment.data_root or default_data_root()[0]).absolute()
    nccl = {"NCCL_DEBUG": "WARN"} | {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}
    env = nccl if gpus else {}
    if experiment.loader == "synthetic":
        mounts = {folder.parent: True}
    elif experiment.data_root is None and is_roadsigns(root):  # drawn there where they are missing
        mounts = {root.parent: True, folder.parent: True}
        env |= {"RN50_DATA": str(root.parent)}
    else:
        mounts = {root: False, folder.parent: True}
        experiment = replace(experiment, data_root=str(root))
    job = Job(experiment, folder, nodes, max(each), cores, gpus, mounts, env, image or IMAGE)
    if engine != "slurm":
        check_reachable(job)
    one = replace(experiment, **ALONE | dict.fromkeys(("comm", "bind", "timeline")))
    there = equipped(replace(experiment, n=n)) if gpus else machine()
    resolve(one, there, one.num_classes or 1000)  # raises UserError for contradictions
    return TEMPLATES[engine](job)


def check_reachable(job: Job) -> None:
    """Raise UserError for a file that a flag names and that no mount shows in the container."""
    for name in ("model_prefix", "report", "logdir", "timeline", "profile_trace", "override"):
        value = getattr(job.experiment, name)
        for text in value if isinstance(value, tuple) else filter(None, [value]):
            path = Path(text.partition("=")[2].rpartition(":")[0] if name == "override" else text)
            if not any(path.is_relative_to(mount) for mount in job.mounts):
                shown = " and ".join(map(str, job.mounts))
                raise UserError(
                    f"--{name.replace('_', '-')} {text}: the container sees {shown} alone: name a"
                    " path there"
                )


def slurm(job: Job) -> str:
    """A script for `sbatch`, run by this environment on every node; srun starts the workers.

    Slurm asks the workers to stop before the time is over or when it wants the nodes back; they
    write a checkpoint and end with 143, and the job goes back into the queue.
    """
    gpus = f"#SBATCH --gpus-per-node={job.local}\n" if job.gpus else ""
    exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in job.env.items())
    command = shlex.join(job.worker(program("train")))
    return f"""#!/bin/bash
#SBATCH --job-name={job.name}
#SBATCH --nodes={job.nodes}
#SBATCH --ntasks-per-node={job.local}
#SBATCH --cpus-per-task={job.cores}
{gpus}#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@{ASK_S}
set -u
{exports}mkdir -p {shlex.quote(str(job.folder))}
status=0
# the first worker that ends leaves the others {int(SAVE_S)} s to finish their checkpoint
srun --cpus-per-task={job.cores} --kill-on-bad-exit=0 --wait={int(SAVE_S)} \\
  {command} || status=$?
if [ "$status" = 143 ]; then
  echo "asked to stop: back into the queue, and on from the checkpoint"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def docker(job: Job) -> str:
    """A command for this machine: a container that is started again when it fails."""
    words = ["docker run", "-d", "--init", f"--name {job.name}", f"--restart on-failure:{RESTARTS}"]
    words += [f"--stop-timeout {ASK_S}", f"--cpus {job.local * job.cores}"]
    words += ["--ipc=host", "--ulimit memlock=-1", "--ulimit stack=67108864"]
    words += [f"--gpus {job.local}"] if job.gpus else []
    words += ['--user "$(id -u):$(id -g)"', "-e HOME=/tmp", "-e USER=rn50"]
    return in_container(job, words, "-e", "-v", job.image)


def apptainer(job: Job) -> str:
    """The same in the engine of shared machines; /dev/shm, the user and the cores are the host's.

    The image is a file: `apptainer build rn50.sif docker-daemon:rn50:latest` makes it.
    """
    restarts = job.experiment.max_restarts or RESTARTS
    job = job._replace(experiment=replace(job.experiment, max_restarts=restarts))
    image = f"{IMAGE}.sif" if job.image == IMAGE else job.image
    words = ["apptainer exec", *(["--nv"] if job.gpus else [])]
    return in_container(job, words, "--env", "--bind", image)


def in_container(job: Job, words: list[str], env: str, bind: str, image: str) -> str:
    """`rn50 run` in a container of this machine, a line for each option."""
    words += [f"{env} {shlex.quote(f'{name}={value}')}" for name, value in job.env.items()]
    for folder, written in job.mounts.items():
        words.append(f"{bind} " + shlex.quote(f"{folder}:{folder}" + ("" if written else ":ro")))
    flags = flags_of(replace(job.experiment, n=job.local))
    run = ["rn50", "run", *flags, "--run-dir", str(job.folder)]
    return " \\\n  ".join([*words, shlex.quote(image), shlex.join(run)]) + "\n"


def mpijob(job: Job) -> str:
    """For Kubeflow's MPI operator: mpirun in a launcher, workers that listen to ssh."""
    command = ["mpirun", "--allow-run-as-root", "-np", str(job.nodes * job.local)]
    command += ["-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1"]
    for name in ("PATH", "LD_LIBRARY_PATH", *job.env):
        command += ["-x", name]
    return kubeflow_job("mpijob", job, [*command, "rn50", "train"], " " * 10)


def trainjob(job: Job) -> str:
    """For Kubeflow Trainer v2 and its runtime `torch-distributed`, which tells torchrun by PET_*
    variables who is where, and starts a pod that has failed again."""
    return kubeflow_job("trainjob", job, ["torchrun", "--no-python", "rn50", "train"], " " * 20)


def kubeflow_job(engine: str, job: Job, command: list[str], margin: str) -> str:
    """`data/ENGINE.yaml` with this run in it; the volumes of a pod stand behind `margin` there."""
    template = Template((MANIFESTS / f"{engine}.yaml").read_text(encoding="utf-8"))
    gpus = {"nvidia.com/gpu": job.local} if job.gpus else {}
    return template.substitute(
        name=job.name,
        image=json.dumps(job.image),
        command=json.dumps(job.worker(command)),
        env=json.dumps([{"name": name, "value": value} for name, value in job.env.items()]),
        limits=json.dumps({"cpu": job.local * job.cores} | gpus),  # of a pod, all workers of a node
        nodes=job.nodes,
        local=job.local,
        restarts=RESTARTS,
        grace_s=ASK_S,
        volumes=indent(volumes(job), margin).rstrip(),
    )


def volumes(job: Job) -> str:
    """What a pod's container has mounted, and the pod's volumes: data and runs are claims that the
    cluster has."""
    mounted, claims = "", ""
    for name, folder in zip(("runs", "data"), reversed(job.mounts), strict=False):
        mounted += f"  - {{name: {name}, mountPath: {json.dumps(str(folder))}"
        mounted += "}\n" if job.mounts[folder] else ", readOnly: true}\n"
        claims += f"- {{name: {name}, persistentVolumeClaim: {{claimName: rn50-{name}}}}}\n"
    size = f"{SHARED_GIB * job.local}Gi"
    return f"""  volumeMounts:
{mounted}  - {{name: shm, mountPath: /dev/shm}}
volumes:
{claims}- {{name: shm, emptyDir: {{medium: Memory, sizeLimit: {size}}}}}
"""


TEMPLATES = {"slurm": slurm, "mpijob": mpijob, "trainjob": trainjob, "docker": docker,
             "apptainer": apptainer}  # fmt: skip

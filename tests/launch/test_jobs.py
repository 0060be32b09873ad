"""The files of docs/jobs: each against its schema or parser, and its command run.

`fixtures/kubeflow.json` holds the schemas of Kubeflow's objects, and says where they are from.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rn50.launch import SAVE_S
from rn50.parser import config_parser, parse_given
from tests.conftest import ROOT, clean_environment
from tests.launch.slurm import ask, configure
from tests.support import TINY, Photos, free_port, strict_json, until

SCHEMAS = json.loads((Path(__file__).parents[1] / "fixtures" / "kubeflow.json").read_text())
JOBS = ROOT / "docs" / "jobs"
KINDS = {"mpijob": "MPIJob", "trainjob": "TrainJob"}
PATIENCE = 240.0


def read_job(engine: str) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load((JOBS / f"{engine}.yaml").read_text())
    return job


def pods(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The spec of each kind of pod in a job."""
    if job["kind"] == "MPIJob":
        replicas = job["spec"]["mpiReplicaSpecs"]
        return {name: replica["template"]["spec"] for name, replica in replicas.items()}
    patch = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    return {"Worker": patch["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]}


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    """The container that starts the training."""
    if job["kind"] == "TrainJob":
        return job["spec"]["trainer"]
    return pods(job)["Launcher"]["containers"][0]


@pytest.mark.parametrize("engine", KINDS)
def test_kubernetes_takes_the_job(engine: str) -> None:
    import jsonschema  # it takes seconds, which every run of pytest would pay

    jsonschema.validate(read_job(engine), SCHEMAS[KINDS[engine]])


@pytest.mark.parametrize("engine", KINDS)
def test_pods_leave_time_for_a_checkpoint(engine: str) -> None:
    job = read_job(engine)
    grace = {pod["terminationGracePeriodSeconds"] for pod in pods(job).values()}
    assert len(grace) == 1 and min(grace) > SAVE_S
    env = {item["name"]: item["value"] for item in container_of(job)["env"]}
    if engine == "trainjob":  # torchrun's own default is 30 s
        assert SAVE_S <= int(env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < min(grace)


def test_a_batch_script_leaves_time_for_a_checkpoint() -> None:
    script = (JOBS / "slurm.sh").read_text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    before, wait = (int(re.search(rf"{flag}(\d+)", script)[1]) for flag in ("TERM@", "--wait="))
    assert SAVE_S < wait < before


def training_flags(engine: str) -> list[str]:
    """The flags of `rn50 train` in a job file."""
    if engine == "slurm":
        script = (JOBS / "slurm.sh").read_text().replace("\\\n", "")
        (folder,) = re.findall(r"^FOLDER=(.+)$", script, re.MULTILINE)
        (flags,) = re.findall(r"^srun .* \$RN50 train (.*) \|\|", script, re.MULTILINE)
        return shlex.split(flags.replace("$FOLDER", folder))
    container = container_of(read_job(engine))
    assert container["command"][-2:] == ["rn50", "train"]
    return container["args"]


@pytest.mark.parametrize("engine", ["slurm", *KINDS])
def test_a_job_saves_and_resumes(engine: str) -> None:
    parser = config_parser("train")
    parser.add_argument("--run-dir")
    given, extra = parse_given(parser, training_flags(engine))
    assert extra.run_dir == "/nas/runs/first"
    assert given.pop("checkpoint_steps", None) == (500 if engine == "mpijob" else None)
    assert given == {"data_root": "/nas/imagenet", "model_prefix": "/nas/runs/first/model",
                     "keep": 2, "resume": True}  # fmt: skip


# --- the commands, run ----------------------------------------------------------------------------


def small(photos: Photos, folder: Path) -> dict[str, str]:
    """Return what to replace in a job file for a short run on two workers of one host."""
    flags = (*TINY, "-e", "2")
    return {
        "/nas/imagenet": str(photos.root),
        '"8"': '"2"',  # of mpirun
        "/nas/runs/first": str(folder),
        '"--resume"': ", ".join(map(json.dumps, ("--resume", *flags))),
        "--resume ||": f"--resume {' '.join(flags)} ||",
        "--nodes=2": "--nodes=1",
        "--ntasks-per-node=4": "--ntasks-per-node=2",
        "--cpus-per-task=8": "--cpus-per-task=1",
        "--gpus-per-node=4": "--gpus-per-node=0",
    }


def replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def in_environment(**more: str) -> dict[str, str]:
    """Return the environment of the image: torchrun and `rn50` are on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return clean_environment(PATH=path, **more)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("trainjob", marks=pytest.mark.needs("torch")),
        pytest.param("mpijob", marks=pytest.mark.needs("horovod_mpi")),
    ],
)
def test_the_command_of_a_job_trains_and_resumes(
    engine: str, photos: Photos, tmp_path: Path
) -> None:
    """Start it like its operator: Trainer by PET_* variables, MPI's by a list of hosts.

    A second start, which resumes, only with MPI.
    """
    folder = tmp_path / "run"
    text = (JOBS / f"{engine}.yaml").read_text()
    job = yaml.safe_load(replaced(text, small(photos, folder)))
    for attempt in range(2 if engine == "mpijob" else 1):
        hosts = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0",
                 "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": str(free_port())}  # fmt: skip
        if engine == "mpijob":
            (tmp_path / "hosts").write_text("localhost slots=2\n")
            hosts = {"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hosts")}
        command = container_of(job)["command"] + container_of(job)["args"]
        ended = subprocess.run(command, env=in_environment(**hosts), cwd=tmp_path,
                               capture_output=True, text=True, timeout=PATIENCE)  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert ("resumed from" in ended.stdout + ended.stderr) == bool(attempt)
        assert strict_json(folder / "report.json")["ngpus"] == 2


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Slurm of one node with 8 fake GPUs; the environment that reaches it."""
    home, host = tmp_path_factory.mktemp("slurm"), socket.gethostname().partition(".")[0]
    env = in_environment(SLURM_CONF=str(configure(home, host, {host: "127.0.0.1"}, gpus=8)))
    running = [
        subprocess.Popen([program, "-D"], env=env, stderr=subprocess.DEVNULL)
        for program in ("slurmctld", "slurmd")
    ]
    try:
        until(lambda: "idle" in ask(env, "sinfo", "-h", "-o", "%T"))
        yield env
    finally:
        for process in running:
            process.terminate()
            process.wait(30)


@pytest.mark.slow
@pytest.mark.needs("slurm")
def test_slurm_would_take_the_script(slurm: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    for gpus, right in (("8", True), ("9", False)):
        one = {"--nodes=2": "--nodes=1", "--gpus-per-node=4": f"--gpus-per-node={gpus}",
               "--cpus-per-task=8": "--cpus-per-task=1"}  # fmt: skip
        script.write_text(replaced((JOBS / "slurm.sh").read_text(), one))
        assert ("to start at" in ask(slurm, "sbatch", "--test-only", str(script))) == right


@pytest.mark.acceptance
@pytest.mark.needs("slurm")
@pytest.mark.needs("torch")
def test_a_slurm_job_that_gets_sigterm_is_requeued_and_resumes(
    slurm: dict[str, str], photos: Photos, tmp_path: Path
) -> None:
    """Send the signal by hand that Slurm sends before the end of a job.

    The workers write a checkpoint, the job is queued again, and resumes.
    """
    folder, script = tmp_path / "run", tmp_path / "job.sh"
    endless = {"-e 2": "-e 100000 --disp-batches 1 --no-val"}
    changes = small(photos, folder) | endless
    script.write_text(replaced((JOBS / "slurm.sh").read_text(), changes))
    log = tmp_path / "job.log"
    said = ask(slurm, "sbatch", "--parsable", f"--output={log}", f"--chdir={tmp_path}", str(script))
    number = said.strip()
    progress = folder / "progress.jsonl"
    try:
        until(lambda: progress.exists() and len(progress.read_text().splitlines()) > 20)
        ask(slurm, "scancel", f"--signal={signal.SIGTERM.name[3:]}", number)
        until(lambda: "back in the queue" in log.read_text())
        until(lambda: "Restarts=1" in ask(slurm, "scontrol", "show", "job", number))
        # Slurm holds a requeued job for two minutes, and a node refuses one that starts within the
        # second in which it was stopped
        ask(slurm, "scontrol", "update", f"JobId={number}", "StartTime=now+3")
        until(lambda: "resumed from" in log.read_text())
    finally:
        ask(slurm, "scancel", number)
        until(lambda: number not in ask(slurm, "squeue", "-h", "-o", "%i"))

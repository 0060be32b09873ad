"""A group of workers on two hosts, over ssh and a network that can fail."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rn50 import launch
from tests.conftest import ROOT, clean_environment
from tests.launch import test_workers
from tests.launch.hosts import ADDRESSES, Host, two_hosts
from tests.launch.slurm import ask, configure
from tests.support import TINY, Photos, strict_json, until

pytestmark = [pytest.mark.slow, pytest.mark.needs("two_hosts")]
PATIENCE = 120.0  # seconds for things that take a few when the machine is idle
# batch norm over more than a few values: else rounding, which differs between the ways to add up
# over a network, decides the sign of what comes out of it
SAME = ("-n", "2", "-b", "8", "--image-shape", "64", "-e", "1", "--seed", "3", "--lr", "0.01",
        "--warmup-epochs", "0")  # fmt: skip
ENDLESS = ("-n", "2", "--hosts", "h1:1,h2:1", "-b", "4", "-e", "100000", "--disp-batches", "1",
           "--no-val")  # fmt: skip
HOROVOD = ("--comm", "horovod", "--launcher")
LARGE = pytest.mark.acceptance
WAYS = [
    pytest.param("horovodrun", marks=pytest.mark.needs("horovod")),
    pytest.param("mpirun", marks=[pytest.mark.needs("horovod_mpi"), LARGE]),
]
SLOW = """
import time
from rn50lib.recipe import learning_rate

def schedule(progress, global_batch, recipe):
    time.sleep(0.1)
    return learning_rate(progress, global_batch, recipe)
"""


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Host]]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as found:
        yield found


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return clean_environment(PATH=path, TMPDIR=Host.temporary)


def argv_of(photos: Photos, *flags: str) -> list[str]:
    return [*launch.program("run"), "--data-root", str(photos.root), *TINY, *flags]


def finish(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=PATIENCE)  # fmt: skip


def losses(report: Path) -> list[float]:
    metrics = strict_json(report)["metrics"]
    return [*metrics["train.loss"], *metrics["val.loss"]]


@pytest.mark.parametrize("launcher", WAYS)
@pytest.mark.parametrize("compared", [False, pytest.param(True, marks=LARGE)])
def test_two_hosts_train_like_one(
    launcher: str, compared: bool, hosts: dict[str, Host], photos: Photos, tmp_path: Path
) -> None:
    for where in ("localhost:2", "h1:1,h2:1")[not compared :]:
        name = f"{where[:2]}.json"
        argv = argv_of(photos, *SAME, *HOROVOD, launcher, "--hosts", where, "--report", name)
        done = finish(hosts["h1"].inside(argv, tmp_path), tmp_path)
        assert done.returncode == 0, done.stderr
    if compared:
        assert losses(tmp_path / "h1.json") == pytest.approx(losses(tmp_path / "lo.json"), rel=1e-3)
    assert strict_json(tmp_path / "h1.json")["env"]["weights_apart"] == 0.0
    assert hosts["h2"].received() > 4 * 10**5  # one of the two was there


@LARGE
@pytest.mark.needs("torch")
def test_torchrun_uses_the_given_rendezvous(
    hosts: dict[str, Host], photos: Photos, tmp_path: Path
) -> None:
    """Run on each host the command of docs/commands.md, which `rn50 run` refers to."""
    argv = argv_of(photos, *SAME, "--comm", "ddp", "--report")
    one = finish([*argv, "one.json", "--hosts", "localhost:2"], tmp_path)
    assert one.returncode == 0, one.stderr
    on_two = hosts["h1"].inside([*argv, "two.json", "--hosts", "h1:1,h2:1"], tmp_path)
    refused = finish(on_two, tmp_path)
    assert "start `rn50 train` with torchrun on each host" in refused.stderr
    command = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d",
               "--rdzv-endpoint", f"{ADDRESSES['h1']}:29500", "--rdzv-id", "rn50", "--no-python",
               "rn50", "train", "--data-root", photos.root, *TINY, *SAME, "--comm", "ddp",
               "--report", tmp_path / "two.json"]  # fmt: skip
    running = [
        subprocess.Popen(host.inside(list(map(str, command)), tmp_path), env=environment(),
                         text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for host in hosts.values()
    ]  # fmt: skip
    said = [process.communicate(timeout=PATIENCE)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    assert losses(tmp_path / "two.json") == losses(tmp_path / "one.json")
    assert hosts["h2"].received() > 4 * 10**5


class Run(test_workers.Run):
    """A `rn50 run` with a worker each on h1 and h2, which continues until it is ended."""

    def __init__(self, host: Host, photos: Photos, folder: Path, *flags: str) -> None:
        (folder / "slow.py").write_text(SLOW)
        argv = argv_of(photos, *ENDLESS, "--override", "schedule=slow.py:schedule", *flags)
        super().__init__(host.inside(argv, folder), folder, environment())
        self.wait_for(lambda: self.epochs() >= 2)

    def epochs(self) -> int:
        return self.progress.read_text().count('"epoch", ')


@LARGE
@pytest.mark.needs("horovod")
@pytest.mark.parametrize("how", [Host.end, Host.unplug])
def test_lost_host_fails_the_run(
    how: Callable[[Host], None], hosts: dict[str, Host], photos: Photos, tmp_path: Path
) -> None:
    """The host crashes, so that the kernel closes its connections, or its cable is pulled."""
    run = Run(hosts["h1"], photos, tmp_path, *HOROVOD, "horovodrun", "--comm-timeout", "10")
    how(hosts["h2"])
    assert run.process.wait(PATIENCE) == 1, run.text()
    assert "\nerror: rank " in run.text()
    if how is Host.unplug:
        assert "did not answer within --comm-timeout" in run.text().splitlines()[-1]
    assert not [p for p in hosts["h1"].processes() if p.cmdline()[1:4] == launch.WORKER]


@pytest.fixture
def cluster(
    hosts: dict[str, Host], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., str]]:
    """Slurm on both hosts, each with two fake GPUs, and a way to query it from h1."""
    home = tmp_path_factory.mktemp("slurm")
    file = configure(home, "h1", ADDRESSES, gpus=2)
    env = environment() | {"SLURM_CONF": str(file)}

    def ask_from_h1(*command: str) -> str:
        return ask(env, *hosts["h1"].inside(command, home))

    running = [
        subprocess.Popen(hosts[host].inside(daemon), env=env, stderr=subprocess.DEVNULL)
        for host, *daemon in (
            ("h1", "slurmctld", "-D"), ("h1", "slurmd", "-D", "-N", "h1"),
            ("h2", "slurmd", "-D", "-N", "h2"),
        )
    ]  # fmt: skip
    until(lambda: ask_from_h1("sinfo", "-h", "-o", "%D %T").split() == ["2", "idle"])
    yield ask_from_h1
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.acceptance
@pytest.mark.needs("slurm", "torch")
def test_slurm_job_on_two_nodes_trains_like_one_host(
    cluster: Callable[..., str], hosts: dict[str, Host], photos: Photos, tmp_path: Path
) -> None:
    """Pass docs/jobs/slurm.sh to sbatch: rank and size come from srun."""
    argv = argv_of(photos, *SAME, "--comm", "ddp")
    one = finish([*argv, "--report", "one.json", "--hosts", "localhost:2"], tmp_path)
    assert one.returncode == 0, one.stderr
    text, script = (ROOT / "docs" / "jobs" / "slurm.sh").read_text(), tmp_path / "job.sh"
    for old, new in {
        "/nas/runs/first": str(tmp_path / "run"), "=4\n": "=1\n", "=8\n": "=1\n",
        "--gpus-per-node=1": "--gpus-per-node=0",
        "$RN50 train --data-root /nas/imagenet": shlex.join([sys.executable, "-m", "rn50", "train",
                                                            *argv[argv.index("run") + 1 :]]),
    }.items():  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    script.write_text(text)
    log = tmp_path / "job.log"
    number = cluster("sbatch", "--parsable", f"--output={log}", f"--chdir={tmp_path}", str(script))
    until(lambda: number.strip() not in cluster("squeue", "-h", "-o", "%i").split())
    report = tmp_path / "run" / "report.json"
    assert report.exists(), log.read_text()
    assert losses(report) == losses(tmp_path / "one.json")
    assert strict_json(report)["ngpus"] == 2
    assert hosts["h2"].received() > 4 * 10**5

"""The choice of a worker's GPU: the one of its local rank, or the only one it sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import clean_environment
from tests.launch import fake_gpus as fake

# PyTorch and TensorFlow of a machine with GPUs, as far as the choice of one goes: they take what
# exists, and refuse the rest as the real ones do.
TORCH = """
import os, torch
seen = int(os.environ["GPUS"])

def set_device(device):
    if not 0 <= device < seen:
        raise RuntimeError("CUDA error: invalid device ordinal")
    print("GPU", device, flush=True)

torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: seen
torch.cuda.set_device = set_device
torch.distributed.init_process_group = lambda backend, **options: None
from rn50lib.distributed.ddp import Ddp

Ddp.meet = lambda self, timeout: None  # the other worker is not there
Ddp()
"""
TENSORFLOW = """
import os
import tensorflow as tf

gpus = [f"gpu{i}" for i in range(int(os.environ["GPUS"]))]
tf.config.list_physical_devices = lambda kind: gpus
tf.config.get_visible_devices = lambda kind: []  # none is chosen yet
tf.config.set_visible_devices = lambda chosen, kind: print("GPU", *chosen)
tf.config.experimental.set_memory_growth = lambda gpu, on: None
from rn50lib.tensorflow.train_step import configure

configure(1, int(os.environ["LOCAL_RANK"]))
"""

LARGE = pytest.mark.acceptance


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "gpus", "expected"),
    [
        pytest.param(TORCH, 1, {"GPU 0"}, marks=[pytest.mark.needs("torch"), LARGE]),
        pytest.param(TORCH, 4, {"GPU 1"}, marks=pytest.mark.needs("torch")),
        pytest.param(TENSORFLOW, 1, {"GPU gpu0"}, marks=[pytest.mark.needs("tensorflow"), LARGE]),
        pytest.param(TENSORFLOW, 4, {"GPU gpu1"}, marks=[pytest.mark.needs("tensorflow"), LARGE]),
    ],
)
def test_second_worker_of_a_host(program: str, gpus: int, expected: set[str]) -> None:
    """Slurm's --gpus-per-task shows each worker one GPU, and numbers the workers all the same."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(GPUS=str(gpus), RANK="1", LOCAL_RANK="1", WORLD_SIZE="2"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == expected


@pytest.mark.acceptance  # test_horovod_on_gpus_needs_nccl has the rule
@pytest.mark.needs("horovod", "tensorflow")
def test_horovod_without_nccl_is_refused_on_gpus(tmp_path: Path) -> None:
    """Horovod without NCCL is refused early, with a remedy, unless `--comm horovod` asks for it."""
    gpus = fake.environment([fake.H100, fake.H100])

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "rn50", "run", "-n", "2", "--backend", "tensorflow",
                "--loader", "synthetic", "--dry-run", *flags]  # fmt: skip
        return subprocess.run(argv, env=clean_environment(**gpus), cwd=tmp_path,
                              capture_output=True, text=True, timeout=240)  # fmt: skip

    refused = run("--launcher", "horovodrun")
    assert "NCCL" in refused.stdout + refused.stderr
    assert "make horovod" in refused.stdout + refused.stderr
    wanted = run("--comm", "horovod")
    assert wanted.returncode == 0 and "NCCL" not in wanted.stdout, wanted.stderr

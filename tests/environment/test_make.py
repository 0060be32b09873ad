"""The environment that the make targets use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch import fake_gpus


def commands(repository: Path, target: str, **env: str) -> str:
    """Return the commands of `make TARGET`."""
    # `make test PYTHON=...` hands its own variables on to what it runs: they are not asked about
    own = ("CONDA_", "MAKE", "MFLAGS", "PYTHON", "T=", "PROFILE")
    kept = {k: v for k, v in os.environ.items() if not f"{k}=".startswith(own)}
    return subprocess.run(
        ["make", "--dry-run", target],
        cwd=repository,
        env={**kept, **env},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("target", ["run", "test", "quick", "acceptance", "lab"])
def test_every_target_sets_up_first_and_uses_what_was_set_up(repository: Path, target: str) -> None:
    first, *others = commands(repository, target).splitlines()
    assert first == "python3 scripts/setup.py --venv .venv"
    assert ".venv/bin/" in " ".join(others)


def test_active_conda_environment_is_used_if_it_is_the_projects(repository: Path) -> None:
    conda = {"CONDA_DEFAULT_ENV": "rn50", "CONDA_PREFIX": "/opt/conda/envs/rn50"}
    said = commands(repository, "horovod", **conda)
    assert said == "python3 scripts/setup.py --venv /opt/conda/envs/rn50 --retry\n"
    assert "/opt/conda/envs/rn50/bin/rn50 workshop run" in commands(repository, "run", **conda)
    other = {"CONDA_DEFAULT_ENV": "base", "CONDA_PREFIX": "/opt/conda"}
    assert "--venv .venv " in commands(repository, "horovod", **other)


@pytest.mark.parametrize(
    ("driver", "devices", "profile"),
    [
        ({"gpus": [fake_gpus.V100]}, "0", "gpu"),
        ({"gpus": [fake_gpus.V100]}, "", "ci"),
        ({"fails": "Failed to initialize NVML: Driver/library version mismatch"}, "0", "ci"),
    ],
)
def test_a_run_takes_profile_gpu_only_with_a_gpu_that_answers(
    repository: Path, tmp_path: Path, driver: dict[str, Any], devices: str, profile: str
) -> None:
    here = fake_gpus.environment(**driver)
    here |= {"RN50_VENV": sys.prefix, "CUDA_VISIBLE_DEVICES": devices}
    assert f"--profile {profile} " in commands(repository, "run", **here)
    assert "--profile cpu " in commands(repository, "run", **here, PROFILE="cpu")


def test_one_acceptance_test_by_name(repository: Path) -> None:
    assert '-k "kill matrix"' in commands(repository, "acceptance", T="kill matrix")

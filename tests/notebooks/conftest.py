"""The data that all notebooks of a test run share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.conftest import clean_environment, folder_of_all


@pytest.fixture(scope="session")
def course_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small road signs and their records, drawn once for all workers of the test run."""
    return draw(tmp_path_factory, "ci")


@pytest.fixture(scope="session")
def full_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The road signs of profile cpu, and their records."""
    return draw(tmp_path_factory, "cpu")


def draw(tmp_path_factory: pytest.TempPathFactory, profile: str) -> Path:
    folder = folder_of_all(tmp_path_factory)
    data = folder / f"course-data-{profile}"
    with FileLock(folder / f"course-data-{profile}.lock"):
        code = f"import workshop; workshop.start('01', {profile!r})"
        env = clean_environment(RN50_DATA=str(data), RN50_RUNS=str(folder / "course-runs"))
        subprocess.run([sys.executable, "-c", code], env=env, check=True, stdout=subprocess.DEVNULL)
    return data

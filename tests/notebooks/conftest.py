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
    folder = folder_of_all(tmp_path_factory)
    data = folder / "course-data"
    with FileLock(folder / "course-data.lock"):
        code = "import workshop; workshop.start('01', 'ci')"
        env = clean_environment(RN50_DATA=str(data), RN50_RUNS=str(folder / "course-runs"))
        subprocess.run([sys.executable, "-c", code], env=env, check=True, stdout=subprocess.DEVNULL)
    return data

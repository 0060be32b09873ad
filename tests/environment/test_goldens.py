"""scripts/goldens.py: equal checkouts are equal, and a changed learning rate is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import clean_environment


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_goldens_find_a_changed_learning_rate(repository: Path, tmp_path: Path) -> None:
    def compare(other: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(repository / "scripts" / "goldens.py"), str(repository)]
        only = ["--only", "reports", "weights torch float16"]
        return subprocess.run(
            [*command, str(other), *only],
            env=clean_environment(), capture_output=True, text=True, timeout=600,
        )  # fmt: skip

    same = compare(repository)
    assert same.returncode == 0 and same.stdout.count(" equal\n") == 2, same.stdout + same.stderr

    for part in ("rn50lib", "rn50", "data_prep"):
        shutil.copytree(repository / part, tmp_path / part)
    recipe = tmp_path / "rn50lib" / "recipe.py"
    text = recipe.read_text()
    assert "recipe.lr *" in text
    recipe.write_text(text.replace("recipe.lr *", "1.01 * recipe.lr *"))
    changed = compare(tmp_path)
    assert changed.returncode == 1, changed.stdout + changed.stderr
    assert changed.stdout.count(" DIFFERS\n") == changed.stdout.count(" equal\n") == 1

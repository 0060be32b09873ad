"""Imports: the contracts of pyproject.toml, and the modules that are really loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORKS = {"torch", "tensorflow", "keras", "tf_keras", "horovod", "nvidia", "mxnet"}


def test_imports_keep_the_contracts() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    done = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def loaded(code: str) -> set[str]:
    """Return the top-level modules that are loaded after `code` ran in a fresh process."""
    code = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import workshop",
        "from rn50 import cli; cli.main(['--help'])",
        "from rn50 import cli; cli.main(['run', '--dry-run', '--loader', 'synthetic'])",
        "import rn50lib.data.source, rn50lib.checkpoint, rn50lib.report, rn50.scaling",
    ],
)
def test_no_framework_is_loaded(code: str) -> None:
    assert not loaded(code) & {*FRAMEWORKS, "matplotlib", "ipywidgets", "pandas", "papermill"}


@pytest.mark.parametrize(
    "name",
    ["recipe", "resnet", "config", "data.sampler", "data.recordio", "optim", "metrics", "report"],
)
def test_the_core_needs_only_numpy(name: str) -> None:
    code = f"""
import importlib.abc
class OnlyNumpy(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        top = fullname.split(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "rn50lib"):
            raise ModuleNotFoundError(fullname)
sys.meta_path.insert(0, OnlyNumpy())
import rn50lib.{name}
"""
    loaded(code)

"""Every loader on every source with both backends, as the table in docs/commands.md promises."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rn50lib import config
from tests.pipelines.conftest import pack
from tests.support import make_photos

FORMATS = ("files", "recordio", "tfrecord")
BACKENDS = ("torch", "tensorflow")
LOADERS = ("native", "dali")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(make_photos(tmp_path_factory.mktemp("combinations") / "set").root)


@pytest.mark.acceptance
@pytest.mark.needs("torch", "tensorflow", "dali")
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_combination_trains_and_validates(
    root: Path, tmp_path: Path, run_cli: Callable[..., Any],
    backend: str, loader: str, data_format: str, workers: str,
) -> None:  # fmt: skip
    done = run_cli(
        "run", "--network", "tiny", "--image-shape", "32", "-b", "8", "-e", "2", "--recipe",
        "reference", "--dtype", "float32", "--backend", backend, "--loader", loader,
        "--data-format", data_format, "--data-root", root, "--data-nthreads", workers,
        "--report", "r.json", timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert len(report["metrics"]["train.loss"]) == len(report["metrics"]["val.top1"]) == 2
    # 19 images, each once: top-1 is a multiple of 1/19
    hits = report["metrics"]["val.top1"][-1] * 19 / 100
    assert abs(hits - round(hits)) < 1e-6
    assert report["env"]["data"]["val"].endswith(f"(19 images, {data_format})")


def test_commands_page_has_a_row_for_each_loader(repository: Path) -> None:
    text = (repository / "docs" / "commands.md").read_text()
    rows = re.findall(r"^\| `--loader (\w+)` \|(.*)\|$", text, re.MULTILINE)
    assert {loader for loader, _ in rows} == {*config.LOADERS}
    for loader, cells in rows:
        if loader != "synthetic":
            assert len([cell for cell in cells.split("|") if cell.strip()]) == len(FORMATS)

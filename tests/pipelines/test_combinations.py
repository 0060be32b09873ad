"""Every loader on every form of data, as the table in docs/commands.md promises."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_prep import tfrecord
from rn50lib import config
from tests.pipelines.conftest import pack
from tests.support import Ended, make_photos

FORMATS = ("files", "recordio", "tfrecord")
COMBINATIONS = [
    *(("torch", loader, form) for loader in ("native", "dali") for form in FORMATS),
    *(("tensorflow", "native", form) for form in ("files", "tfrecord")),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(make_photos(tmp_path_factory.mktemp("combinations") / "set").root)


@pytest.mark.acceptance
@pytest.mark.needs("torch", "tensorflow", "dali")
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("backend", "loader", "data_format"), COMBINATIONS)
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


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_tensorflow_takes_files_else_shards_and_never_records(
    root: Path, tmp_path: Path, rn50: Callable[..., Ended]
) -> None:
    """The remedy for records alone is followed."""
    (tmp_path / "packed").mkdir()
    for split in ("train", "val"):
        for ending in ("rec", "idx"):
            name = f"{split}.{ending}"
            (tmp_path / "packed" / name).symlink_to(root / "records" / name)
    short = ("run", "--network", "tiny", "--image-shape", "32", "-b", "8", "-e", "1", "--recipe",
             "reference", "--dtype", "float32", "--threads", "1", "--benchmark-iters", "1",
             "--report", "r.json", "--backend", "tensorflow")  # fmt: skip
    for flags in ((), ("--data-format", "recordio")):
        error = rn50(*short, "--data-root", "packed", *flags).error
        assert "python -m data_prep.tfrecord packed`" in error
    tfrecord.main(["packed"])
    done = rn50(*short, "--data-root", "packed", "--dry-run")
    assert done.status == 0 and "--data-format tfrecord" in done.out, done.err
    assert "--data-format files" in rn50(*short, "--data-root", root, "--dry-run").out


def test_commands_page_has_a_row_for_each_loader(repository: Path) -> None:
    text = (repository / "docs" / "commands.md").read_text()
    rows = re.findall(r"^\| `--loader (\w+)` \|(.*)\|$", text, re.MULTILINE)
    assert {loader for loader, _ in rows} == {*config.FLAGS["loader"].choices}
    for loader, cells in rows:
        if loader != "synthetic":
            assert len([cell for cell in cells.split("|") if cell.strip()]) == len(FORMATS)

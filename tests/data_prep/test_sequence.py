"""docs/imagenet.md as a reader types it: archives of ImageNet's shape, to records, to verify."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.conftest import clean_environment
from tests.data_prep import test_imagenet
from tests.data_prep.conftest import make_image
from tests.test_docs import CHECKED, ROOT, commands


@pytest.mark.acceptance  # each command has its own tests
def test_the_documented_sequence(tmp_path: Path) -> None:
    # different pixels in each file
    test_imagenet.make_archives(
        tmp_path / "archives", lambda data: make_image(zlib.crc32(data), size=(120, 90))
    )
    (block,) = CHECKED.findall((ROOT / "docs" / "imagenet.md").read_text())
    said = []
    for words in commands(block):
        words = [
            sys.executable,
            *(words[1:] if words[0] == "python" else ["-m", "rn50", *words[1:]]),
        ]
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        said.append(done.stdout + done.stderr)
    assert "val: 7 images" in said[0]
    again = subprocess.run(
        [sys.executable, "-m", "data_prep.verify", "imagenet", "imagenet/records",
         "imagenet/tfrecord"],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout
    assert "): 0 errors, 0 warnings, 0 notes" in again.stdout, again.stdout

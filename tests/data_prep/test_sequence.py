"""docs/imagenet.md as a reader types it: archives of ImageNet's shape, to records, to verify."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import clean_environment
from tests.data_prep import test_imagenet as shapes
from tests.test_docs import CHECKED, ROOT, commands

VAL = len(shapes.TRUTH)


def make_image(number: int) -> bytes:
    """Return a JPEG that is different for each number."""
    pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((120, 90)).save(out, "JPEG", quality=90)
    return out.getvalue()


def make_archives(folder: Path) -> None:
    folder.mkdir()
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as outer:
        for c, wnid in enumerate(shapes.WNIDS):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as tar:
                for i in range(shapes.TRAIN_IMAGES[c]):
                    shapes.add(tar, f"{wnid}_{i}.JPEG", make_image(100 * c + i))
            shapes.add(outer, f"{wnid}.tar", inner.getvalue())
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as tar:
        for number in range(1, VAL + 1):
            shapes.add(tar, shapes.val_image(number)[0], make_image(1000 + number))
    shapes.make_devkit(folder / "ILSVRC2012_devkit_t12.tar.gz")


@pytest.mark.acceptance  # each command has its own tests
def test_the_documented_sequence(tmp_path: Path) -> None:
    make_archives(tmp_path / "archives")
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

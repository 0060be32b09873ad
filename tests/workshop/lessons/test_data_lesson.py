"""Notebook 01: its small copy of ImageNet's archives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, clean_environment
from workshop.lessons import nb01


def test_archives_unpack_into_folders_of_the_same_images(tmp_path: Path) -> None:
    signs = {sign: wnid for wnid, _, sign in nb01.CLASSES}
    images = {}
    for split, count in (("train", nb01.TRAIN), ("val", nb01.VAL)):
        for sign in signs:
            (tmp_path / "signs" / split / sign).mkdir(parents=True)
            for number in range(count):
                data = f"{split} {sign} {number}".encode()
                (tmp_path / "signs" / split / sign / f"{number}.jpg").write_bytes(data)
                images[data] = f"{split}/{signs[sign]}"
    nb01.imagenet_archives(tmp_path / "downloads", tmp_path / "signs")
    subprocess.run(
        [sys.executable, "-m", "data_prep.imagenet", "downloads", "out"],
        cwd=tmp_path, env=clean_environment(PYTHONPATH=str(ROOT)), check=True,
    )  # fmt: skip
    out = tmp_path / "out"
    found = {
        file.read_bytes(): str(file.parent.relative_to(out)) for file in out.glob("*/*/*.JPEG")
    }
    assert found == images
    labels = (out / "classes.txt").read_text().splitlines()
    assert labels[0].split("\t") == ["0", "n02835271", nb01.CLASSES[1][1]]

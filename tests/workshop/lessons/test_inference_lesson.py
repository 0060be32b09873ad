"""Notebook 07: the traffic that it counts and the images that it draws."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rn50lib import resnet
from workshop.lessons import nb07


def test_fusing_saves_traffic_but_no_arithmetic() -> None:
    net = resnet.resnet(50)
    separate, fused = (nb07.traffic(32, "float32", fused) for fused in (False, True))
    assert separate[0] == fused[0] == 2 * net.macs(224)
    saved = sum(
        2 * layer.activations
        for layer in net.layers(224)
        if layer.kind in ("batchnorm", "relu", "add")
    )
    assert separate[1] - fused[1] == 4 * saved


def test_a_larger_batch_shares_the_weights() -> None:
    weights = sum(math.prod(s) for n, s in resnet.resnet(50).arrays().items() if "weight" in n)
    (_, one), (_, many) = nb07.traffic(1), nb07.traffic(208)
    assert one - many == pytest.approx(4 * weights * (1 - 1 / 208), rel=1e-3)


def test_new_images_are_not_in_the_data_set(tmp_path: Path) -> None:
    from data_prep.signs.assets import make_assets
    from data_prep.signs.classes import IDS
    from data_prep.signs.compose import draw_jpeg

    files = nb07.draw_signs(tmp_path / "new", IDS, count=2)
    assert [file.stem for file in files] == [IDS[0], IDS[6], "road", "noise"]
    assert {Image.open(file).format for file in files} == {"JPEG"}
    in_data_set = draw_jpeg(make_assets(0), 0, "val", 0)
    assert files[0].read_bytes() != in_data_set
    assert np.asarray(Image.open(files[-1])).std() > 40  # noise, not a flat image

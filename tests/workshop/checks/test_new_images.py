"""The new images of exercise ex07.temperature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from workshop.checks import ex07


def test_new_images_are_not_in_the_data_set(tmp_path: Path) -> None:
    from data_prep.signs.assets import make_assets
    from data_prep.signs.classes import IDS
    from data_prep.signs.compose import draw_jpeg

    files = ex07.draw_signs(tmp_path / "new", IDS)
    assert [file.stem for file in files] == [*IDS[::3], "road", "noise"]
    assert {Image.open(file).format for file in files} == {"JPEG"}
    in_data_set = draw_jpeg(make_assets(0), 0, "val", 0)
    assert files[0].read_bytes() != in_data_set
    assert np.asarray(Image.open(files[-1])).std() > 40  # noise, not a flat image

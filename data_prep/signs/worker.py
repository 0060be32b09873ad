"""Draws pictures in a worker process, as `processes.run` calls it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from data_prep.signs.assets import make_assets
from data_prep.signs.compose import draw_jpeg
from data_prep.signs.folder import picture_path


def prepare(settings: tuple[Path, Path, int]) -> Callable[[tuple[str, list[int]]], int]:
    """The function that draws the pictures (split, numbers) and returns their bytes.

    ``settings`` are the folder for the pictures, that for drafts, and the seed.
    """
    new, spool, seed = settings
    assets = make_assets(seed)

    def draw(task: tuple[str, list[int]]) -> int:
        split, numbers = task
        draft = spool / f"{os.getpid()}.jpg"
        total = 0
        for index in numbers:
            data = draw_jpeg(assets, seed, split, index)
            draft.write_bytes(data)
            os.replace(draft, new / picture_path(split, index))
            total += len(data)
        return total

    return draw

"""Where the pictures of a set stand, and the worker process that draws them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from data_prep.signs.classes import IDS


def picture_path(split: str, index: int) -> str:
    """The path of a picture inside the set: its class follows from its number."""
    id_ = IDS[index % len(IDS)]
    return f"{split}/{id_}/{id_}_{index:06}.jpg"


def prepare(settings: tuple[Path, Path, int]) -> Callable[[tuple[str, list[int]]], int]:
    """The function that draws the pictures (split, numbers) and returns their bytes.

    ``settings`` are the folder for the pictures, that for drafts, and the seed.
    """
    # with Pillow and NumPy, which --help does without
    from data_prep.signs.assets import make_assets
    from data_prep.signs.compose import draw_jpeg

    folder, drafts, seed = settings
    assets = make_assets(seed)

    def draw(task: tuple[str, list[int]]) -> int:
        split, numbers = task
        draft = drafts / f"{os.getpid()}.jpg"
        total = 0
        for index in numbers:
            data = draw_jpeg(assets, seed, split, index)
            draft.write_bytes(data)
            os.replace(draft, folder / picture_path(split, index))
            total += len(data)
        return total

    return draw

"""The parts of the scenes, drawn once per worker: trees, houses, cars, textures, grain, faces.

They depend only on the seed, so every worker has the same parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from data_prep.signs import faces, sprites, textures
from data_prep.signs.classes import IDS
from data_prep.signs.sprites import Sprite
from data_prep.signs.textures import ground_texture, smooth_noise

GRAIN = 640  # side of the noise tile
GRAIN_LEVELS = (2.0, 3.0, 4.5, 6.0, 8.0, 10.0, 12.5, 15.0)  # standard deviations, grey levels
FACE_SIZES = (288, 224, 176, 136, 104, 72, 48)  # pixels; the next larger one is warped


@dataclass(frozen=True)
class Assets:
    """Everything that images are composed of. Textures are uint8 HWC, `grain` int16."""

    faces: dict[str, dict[int, Image.Image]]
    others: list[dict[int, Image.Image]]
    trees: list[Sprite]
    conifers: list[Sprite]
    houses: list[Sprite]
    towers: list[Sprite]
    cars: list[Sprite]
    lamps: list[Sprite]
    boards: list[Sprite]
    leaves: list[Image.Image]
    ground: dict[str, np.ndarray]
    asphalt: list[np.ndarray]
    clouds: list[Image.Image]
    dapple: list[np.ndarray]
    dirt: list[np.ndarray]
    sheeting: np.ndarray
    glow: Image.Image
    bokeh: Image.Image
    grain: list[np.ndarray]


def _at_sizes(face: faces.Face) -> dict[int, Image.Image]:
    large = faces.draw_face(face, FACE_SIZES[0])  # which `resize` only copies
    return {size: large.resize((size, size), Image.Resampling.LANCZOS) for size in FACE_SIZES}


def make_assets(seed: int) -> Assets:
    """Draw everything; this takes about half a second."""
    rng = np.random.default_rng([seed, 77])
    greens = [(92, 132, 52), (70, 112, 48), (120, 146, 60), (58, 98, 56), (104, 124, 70)]
    autumn = [(190, 120, 44), (170, 84, 40), (204, 160, 60)]
    walls = [(214, 196, 164), (196, 150, 120), (176, 108, 86), (222, 214, 200), (168, 172, 172),
             (206, 178, 120), (150, 138, 130), (190, 198, 204)]  # fmt: skip
    paints = [(176, 30, 34), (40, 70, 120), (200, 202, 204), (46, 48, 52), (236, 236, 232),
              (70, 96, 76)]  # fmt: skip
    leaves = [sprites.leaf_cluster(rng, c) for c in (greens[0], greens[1], greens[3], autumn[0])]
    size = FACE_SIZES[0]
    noise = rng.normal(0, 1, (GRAIN, GRAIN, 1)) + 0.45 * rng.normal(0, 1, (GRAIN, GRAIN, 3))
    noise /= noise.std()
    return Assets(
        faces={id_: _at_sizes(faces.FACES[id_]) for id_ in IDS},
        others=[_at_sizes(face) for face in faces.DISTRACTORS],
        trees=[sprites.tree(rng, c) for c in (*greens, *autumn)],
        conifers=[sprites.conifer(rng, c) for c in ((48, 84, 56), (38, 70, 50), (60, 92, 66))],
        houses=[sprites.building(rng, int(rng.integers(1, 4)), walls[i]) for i in range(8)],
        towers=[sprites.building(rng, int(rng.integers(4, 8)), walls[i]) for i in range(8)],
        cars=[sprites.car(rng, c) for c in paints],
        lamps=[sprites.lamp(rng)],
        boards=[sprites.board(rng) for _ in range(10)],
        leaves=leaves,
        ground={
            "grass": ground_texture(rng, (98, 128, 58), 17, 0.9, (10, 0, -30)),
            "meadow": ground_texture(rng, (124, 142, 66), 20, 1.1, (30, 10, -30)),
            "wheat": ground_texture(rng, (196, 168, 96), 17, 0.7),
            "soil": ground_texture(rng, (132, 106, 80), 15, 0.9),
            "gravel": ground_texture(rng, (150, 146, 138), 14, 0.6),
            "slabs": textures.slabs(rng),
            "snow": ground_texture(rng, (228, 232, 238), 7, 0.5),
        },
        asphalt=[ground_texture(rng, (g, g, g + 3), 10, 0.5) for g in (84, 102, 118)],
        clouds=[textures.cloud(rng, c) for c in (0.42, 0.5, 0.5, 0.58)],
        dapple=[np.clip((smooth_noise(rng, size, size, 40, 2) - 0.5) * 6, 0, 1) for _ in range(4)],
        dirt=[smooth_noise(rng, size, size, 72, 6, 0.62) for _ in range(6)],
        sheeting=textures.sheeting(size),
        glow=textures.soft_disc(128, 2.0),
        bokeh=textures.bokeh(),
        grain=[np.round(noise * level).astype(np.int16) for level in GRAIN_LEVELS],
    )

"""The light of an image: sky, colour cast, haze, and how a retro-reflective sign looks in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.signs import knobs

RGB = tuple[float, float, float]


@dataclass(frozen=True)
class Light:
    """Colours are RGB 0..255; `scene` and `sign` are factors on colours; `haze` and `lamps` 0..1.

    `haze` is how much of the sky's lower colour lies over things on the horizon, `lamps` how
    brightly windows and lamps shine.
    """

    name: str
    top: RGB
    bottom: RGB
    cloud: RGB
    scene: RGB
    sign: RGB
    haze: float
    lamps: float


LIGHTS = {
    "day": Light("day", (62, 120, 196), (188, 214, 236), (250, 250, 250),
                 (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), 0.30, 0.0),
    "overcast": Light("overcast", (142, 152, 166), (206, 210, 214), (226, 228, 232),
                      (0.80, 0.83, 0.88), (0.84, 0.86, 0.90), 0.40, 0.0),
    "golden": Light("golden", (84, 122, 184), (255, 214, 150), (255, 226, 186),
                    (1.02, 0.84, 0.62), (1.05, 0.92, 0.76), 0.40, 0.0),
    "dusk": Light("dusk", (44, 50, 104), (244, 142, 98), (206, 112, 116),
                  (0.44, 0.37, 0.42), (0.66, 0.58, 0.62), 0.34, 0.75),
    "night": Light("night", (8, 12, 30), (34, 40, 66), (40, 46, 66),
                   (0.20, 0.22, 0.31), (0.92, 0.90, 0.84), 0.22, 1.0),
    "haze": Light("haze", (186, 192, 196), (216, 217, 214), (222, 224, 224),
                  (0.84, 0.86, 0.88), (0.80, 0.82, 0.84), 0.86, 0.0),
}  # fmt: skip


def choose_light(rng: np.random.Generator) -> Light:
    names, share = list(knobs.LIGHTS), np.array(list(knobs.LIGHTS.values()))
    return LIGHTS[names[rng.choice(len(names), p=share / share.sum())]]

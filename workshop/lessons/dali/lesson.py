"""Notebook 05 with DALI or, where there is none, with Pillow and recorded results in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50.checks import has_dali
from rn50lib import recipe
from rn50lib.config import TrainConfig
from rn50lib.data.decode import crop, eight_bits, open_image
from rn50lib.recipe import MEAN, STD
from workshop import output, paths
from workshop.programs import program
from workshop.session import Session

if TYPE_CHECKING:
    from rn50lib.data.dali_graph import Look

HERE = has_dali()
DRAWN_BY = "DALI" if HERE else "Pillow, because DALI is not installed here"


def here(session: Session, *keys: str) -> bool:
    """Whether DALI is here; where it is not, what was recorded under these keys is shown."""
    if not HERE:
        print("DALI is not installed here (make setup installs it where there is a wheel).")
        for key in keys:
            session.recorded(key)
    return HERE


def look(config: TrainConfig) -> Look:
    """What the loader makes of images on a CPU: its `Dali.look`, without a data set."""
    from rn50lib.data.dali_graph import Look

    return Look(
        pixels=config.image_shape,
        resize=config.val_resize,
        augmentation=config.to_recipe().augmentation,
        antialias=config.resample != "fast",
    )


def outputs(config: TrainConfig, file: Path, seed: int) -> dict[str, np.ndarray]:
    """What each operator of the training graph gives for one image, by name."""
    if HERE:
        from workshop.lessons.dali import steps

        return steps.shown(file, look(config), seed)
    data = file.read_bytes()
    opened = open_image(data, file.name)
    box, mirror = recipe.augment(seed, *opened.size, config.to_recipe().augmentation)
    left, top, width, height = box
    part = np.asarray(eight_bits(opened).convert("RGB"))[top : top + height, left : left + width]
    small = crop(open_image(data, file.name), box, config.image_shape, file.name)
    small = small[:, ::-1] if mirror else small
    planes = ((small - np.array(MEAN)) / np.array(STD)).astype(np.float32).transpose(2, 0, 1)
    names = ("read", "decode the crop", "resize and mirror", "normalise")
    values = (np.frombuffer(data, np.uint8), part, small, planes)
    return dict(zip(names, values, strict=True))


# -- rn50 diagnose ---------------------------------------------------------------------------------


def diagnose(folder: Path, name: str, *arguments: object) -> dict[str, Any]:
    """Run `rn50 diagnose` with these flags, an experiment among them, show what it prints and its
    picture; returns its JSON."""
    paths.set_environment()
    flags = []
    for argument in arguments:
        if isinstance(argument, Mapping):
            (folder / f"{name}.config.json").write_text(json.dumps(argument))
            argument = f"--config={name}.config.json"
        flags.append(argument)
    files = [folder / f"{name}.json", folder / f"{name}.png"]
    program(
        "rn50", "diagnose", *flags, "--json", files[0].name, "-o", files[1].name,
        folder=folder,
    )  # fmt: skip
    found = dict(json.loads(files[0].read_text(encoding="utf-8")))
    alt = f"Milliseconds an image: loader, step, both. {found['verdict']}"
    output.Slot().update(output.picture_bundle(files[1].read_bytes(), alt))
    return found


def diagnosed(found: Mapping[str, Mapping[str, Any]]) -> list[list[Any]]:
    """(run, loader alone, step alone, both, step at work in per cent) of several diagnoses."""
    rows = []
    for name, one in found.items():
        rates = one["rates"]
        share = 100 * rates["both"] / rates["compute"]
        rows.append([name, rates["loader"], rates["compute"], rates["both"], share])
    return rows

"""ImageNet's development kit: the classes with their words, and the class of each val image.

`data/meta.mat` holds the classes (the leaves of its tree), and a text file the class number of each
validation image, in the devkit's own order.
"""

from __future__ import annotations

import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

from data_prep.matfile import read_structs
from rn50lib.errors import UserError

DEVKIT = "ILSVRC2012_devkit_t12"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_VAL_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")


@dataclass(frozen=True)
class Devkit:
    """The development kit: classes with their words, images of each, and the truth of val."""

    words: dict[str, str]
    train_images: dict[str, int]
    truth: list[str]  # the class of validation image 1, 2, …

    def class_of_val(self, name: str, where: Path) -> str:
        """Return the class of ILSVRC2012_val_00000001.JPEG. Raises UserError if it is missing."""
        match = _VAL_NUMBER.fullmatch(name)
        if not match or not 1 <= int(match[1]) <= len(self.truth):
            raise UserError(
                f"{where}: {name!r} is not one of the {len(self.truth):,} images in the devkit"
            )
        return self.truth[int(match[1]) - 1]


def read_devkit(source: Path, given: Path | None) -> Devkit | None:
    """Read the devkit from its archive or the folder unpacked from it; None if there is none.

    Raises UserError if it is damaged, or ``given`` and missing.
    """
    candidates = (
        [given] if given else [source / f"{DEVKIT}.tar.gz", source / DEVKIT, source / "devkit"]
    )
    path = next((c for c in candidates if c.exists()), None)
    if path is None:
        if given:
            raise UserError(f"--devkit {given}: there is no such file or folder")
        return None
    wanted = ("meta.mat", TRUTH)
    found = _from_folder(path, wanted) if path.is_dir() else _from_archive(path, wanted)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise UserError(f"{path}: {missing[0]} is not in this devkit; download it again")
    try:
        synsets = read_structs(found["meta.mat"], "synsets")
        leaves = [synset for synset in synsets if synset["num_children"] == 0]
        by_id = {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in leaves}
        words = {str(synset["WNID"]): str(synset["words"]) for synset in leaves}
        counts = {str(s["WNID"]): int(s.get("num_train_images") or 0) for s in leaves}
        truth = [by_id[int(line)] for line in found[TRUTH].split()]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: this devkit cannot be read ({error}); download it again"
        ) from None
    return Devkit(words, counts, truth)


def _from_folder(folder: Path, wanted: tuple[str, ...]) -> dict[str, bytes]:
    folders = (folder, folder / "data")
    return {n: (p / n).read_bytes() for p in folders for n in wanted if (p / n).is_file()}


def _from_archive(path: Path, wanted: tuple[str, ...]) -> dict[str, bytes]:
    found = {}
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                name = os.path.basename(member.name)
                if name in wanted and member.isreg():
                    file = tar.extractfile(member)
                    assert file is not None
                    found[name] = file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{path}: this devkit is damaged ({error}); download it again") from None
    return found

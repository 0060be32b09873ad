"""ImageNet's development kit: the classes with their words, and the class of each val image.

`data/meta.mat` holds the classes (the leaves of its tree), and a text file the class number of each
validation image, in the devkit's own order.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from rn50lib.errors import UserError, first_line

DEVKIT = "ILSVRC2012_devkit_t12"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_VAL_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")


@dataclass(frozen=True)
class Devkit:
    """The development kit: classes with their words, images in train, and the truth of val."""

    words: dict[str, str]
    train_images: int
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
        classes = _read_meta(found["meta.mat"])
        by_number = {number: wnid for number, wnid, _, _ in classes}
        truth = [by_number[int(line)] for line in found[TRUTH].split()]
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{path}: this devkit cannot be read ({error}); download it again"
        ) from None
    words = {wnid: words for _, wnid, words, _ in classes}
    return Devkit(words, sum(images for *_, images in classes), truth)


def _read_meta(data: bytes) -> list[tuple[int, str, str, int]]:
    """Return number, WNID, words and images of each class in `meta.mat`; its checksum is tested.

    Raises ValueError if it is damaged, or is something else.
    """
    from scipy.io import loadmat

    fields = ("ILSVRC2012_ID", "WNID", "words", "num_train_images")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a damaged variable, which is a text then
            found = loadmat(io.BytesIO(data), simplify_cells=True, uint16_codec="utf-16-le")
        # the others are groups of classes
        leaves = [synset for synset in found["synsets"] if synset["num_children"] == 0]
        rows = [[synset[field] for field in fields] for synset in leaves]
        return [(int(n), str(wnid), str(words), int(images)) for n, wnid, words, images in rows]
    except Exception as error:  # SciPy raises many types
        raise ValueError(f"meta.mat: {first_line(error)}") from None


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
        raise UserError(
            f"{path}: this devkit is damaged ({first_line(error)}); download it again"
        ) from None
    return found

"""The kinds of problems that a data set can have: how bad each is, its meaning and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rn50lib.data.scan import FETCH

ERROR, WARNING, NOTE = "error", "warning", "note"
LEVELS = (ERROR, WARNING, NOTE)


class Kind(NamedTuple):
    """One kind of problem: how bad it is, its name, and what to do about it."""

    level: str
    title: str
    advice: str


# fmt: off
KINDS = {
    # Images.
    "empty-file": Kind(ERROR, "images of zero bytes", "copy them again, or remove them"),
    "lfs-pointer": Kind(ERROR, "git-LFS and git-annex pointers",
                        "`git lfs pull` or `git annex get` fetches the images"),
    "no-image": Kind(ERROR, "files that are not JPEG or PNG", "convert them, or remove them"),
    "undecodable": Kind(ERROR, "images that do not decode", "copy them again, or remove them"),
    "unreadable": Kind(ERROR, "files that cannot be read", "look at the permissions and the disk"),
    "decoder-warning": Kind(WARNING, "images that may be damaged, by the decoder's warning",
                            "look at them; they train, but a part of the image may be wrong"),
    "turned": Kind(WARNING, "images that their EXIF block turns",
                   "every loader reads them upright but DALI 1, which refuses them: for it, pack"
                   " them with im2rec without --pass-through, or use --loader native"),
    "not-utf8": Kind(WARNING, "files whose names are not UTF-8",
                     "DALI cannot open them: rename them, or use --loader native"),
    "cmyk-plain": Kind(WARNING, "CMYK images without Adobe's marker",
                       "every loader here takes their values for ink; if they look like negatives,"
                       " convert them"),
    "cmyk": Kind(NOTE, "CMYK images", "every loader here converts them"),
    "png-as-jpeg": Kind(NOTE, "PNG images named as JPEG", "they are read as PNG"),
    "grey": Kind(NOTE, "grey images", "they are read as colour images"),
    # Folders.
    "lost-class": Kind(ERROR, "classes without images", "bring their images back, or remove them"),
    "dangling": Kind(ERROR, "images that are not here, only a link or a placeholder", FETCH),
    "left-out": Kind(WARNING, "files that no loader reads, and a run leaves out",
                     "convert the images to JPEG or PNG, and name them .jpg or .png"),
    "names": Kind(ERROR, "names that a data root cannot have", "rename them"),
    "list-names": Kind(WARNING, "names that no list can hold", "im2rec refuses them: rename them"),
    "no-images": Kind(ERROR, "splits without images", "name the folder that holds the data"),
    "one-split": Kind(WARNING, "data without one of train and val",
                      "a run without val needs --no-val"),
    "flat": Kind(ERROR, "flat folders", "sort the images into one folder for each class"),
    "nested": Kind(ERROR, "folders inside class folders", "move them up, or away"),
    "class-maps": Kind(ERROR, "classes that differ",
                       "a number must mean the same class everywhere"),
    "empty-class": Kind(WARNING, "classes that are not validated", "val has no image of them"),
    "packed-before": Kind(WARNING, "packed data with other images than the folders",
                          "a run takes the packed ones: list and pack again if the folders have"
                          " changed"),
    "untrained": Kind(WARNING, "labels without training images",
                      "labels count from 0, without gaps; list again"),
    # Record files.
    "damage": Kind(ERROR, "damaged records", "copy the file again, or pack the images again"),
    "checksum": Kind(ERROR, "records that changed since they were packed, by their checksums",
                     "copy the files again, or pack the images again"),
    "index": Kind(ERROR, "indexes that do not match", "make the index again (--index)"),
    "list": Kind(ERROR, "lists that do not match", "list and pack the images again"),
    "label": Kind(ERROR, "labels that are not a class", "pack the images again"),
    "example": Kind(ERROR, "examples without what training needs",
                    "write the shards again, without --schema slides"),
    "checksum-file": Kind(WARNING, "unusable checksum files",
                          "pack the images again, or `im2rec --checksums`"),
    "no-checksums": Kind(NOTE, "record files without checksums",
                         "damage that still decodes is not found; `im2rec --checksums` adds them"
                         " for the future"),
    "no-index": Kind(WARNING, "shards without an index", "DALI needs it: make it (--index)"),
    # Contents.
    "leak": Kind(ERROR, "images of val that are also in train", "remove them from train"),
    "few-leaks": Kind(WARNING, "images of val that are also in train",
                      "fewer than one in a thousand: too few to change the accuracy visibly"),
    "twice": Kind(WARNING, "images that are in a split twice",
                  "remove the copies, or bring back what they replaced"),
    "conflict": Kind(WARNING, "images with several labels", "decide which one is right"),
}
# fmt: on


@dataclass(frozen=True)
class Problem:
    """One problem: its kind, the file or record, the byte offset if there is one, and details."""

    kind: str
    where: str
    text: str = ""
    offset: int | None = None

    @property
    def level(self) -> str:
        return KINDS[self.kind].level

    def line(self) -> str:
        where = self.where if self.offset is None else f"{self.where}, offset {self.offset:,}"
        return f"{where}: {self.text}" if self.text else where


class Problems(list[Problem]):
    def add(self, kind: str, where: str | Path, text: str = "", offset: int | None = None) -> None:
        """Add a problem. A text that repeats the file's name, as an error's does, loses it."""
        self.append(Problem(kind, str(where), text.removeprefix(f"{where}: "), offset))

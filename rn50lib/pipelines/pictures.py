"""One image of a split by its number: read, cropped, and augmented as seed and epoch say."""

from __future__ import annotations

import numpy as np
from PIL import Image

from rn50lib import overrides
from rn50lib.config import Experiment
from rn50lib.errors import UserError
from rn50lib.pipelines.images import SPARE, crop, open_image
from rn50lib.recipe import Box, center_crop_box, turn
from rn50lib.records import order
from rn50lib.records.source import Source


class Pictures:
    """The images of a split as the network gets them; decoded with Pillow, one at a time."""

    def __init__(self, source: Source, train: bool, experiment: Experiment) -> None:
        self.source, self.train = source, train
        self.spare = 1 if train else SPARE
        self.size, self.resize = experiment.image_shape, experiment.val_resize
        self.seed = experiment.seed
        self.augmentation = experiment.to_recipe().augmentation

    def image(self, epoch: int, index: int) -> np.ndarray:
        """Image `index` in `epoch`, uint8 (size, size, 3). Raises UserError for a bad image."""
        return self.from_bytes(self.source.read(index), epoch, index)

    def from_bytes(self, data: bytes, epoch: int, index: int) -> np.ndarray:
        """The same from the encoded image, which has been read already."""
        pixels = self.part(data, epoch, index)
        upside_down, degrees = self.turn(epoch, index)
        if upside_down:
            pixels = pixels[::-1]
        if degrees:
            turned = Image.fromarray(pixels).rotate(degrees, Image.Resampling.BILINEAR)
            pixels = np.asarray(turned)
        return pixels

    def part(self, data: bytes, epoch: int, index: int) -> np.ndarray:
        """The crop of an encoded image, made small and mirrored where that was chosen."""
        name = self.source.name(index)
        opened = open_image(data, name)
        box, mirror = self.choose(epoch, index, *opened.size)
        pixels = crop(opened, box, self.size, name, self.spare)
        return pixels[:, ::-1] if mirror else pixels

    def choose(self, epoch: int, index: int, width: int, height: int) -> tuple[Box, bool]:
        """The crop of image `index` and whether to mirror it; for validation, its centre."""
        if not self.train:
            return center_crop_box(width, height, self.size, self.resize), False
        seed = order.image_seed(self.seed, epoch, index)
        box, mirror = overrides.get("augment")(seed, width, height, self.augmentation)
        left, top, w, h = box
        if not (0 <= left < left + w <= width and 0 <= top < top + h <= height):
            raise UserError(
                f"--override augment: the crop (left {left}, top {top}, width {w}, height {h}) does"
                f" not lie inside {self.source.name(index)}, which has {width} x {height} pixels"
            )
        return box, mirror

    def turn(self, epoch: int, index: int) -> tuple[bool, float]:
        """Whether image `index` is turned upside down, and the degrees it is turned by then."""
        if not self.train:
            return False, 0.0
        return turn(order.image_seed(self.seed, epoch, index), self.augmentation)

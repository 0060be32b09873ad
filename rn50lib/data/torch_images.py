"""Pictures for PyTorch's loader, faster: libjpeg-turbo itself decodes, PyTorch makes small.

A validation image's pixels are Pillow's to within a rounding; training decodes quickly (see
`images.quick`), and its crops of what was decoded smaller begin and end at a pixel. Both are faster
than in Pillow, which keeps a fourth byte for every pixel, and does not make small in the
processor's vector unit. Rows below the crop are not decoded: the decoder is told that the image
ends there, so damage further down goes unseen (`python -m data_prep.verify` reads all). What is no
plain JPEG goes through Pillow, and so does all where simplejpeg, which brings libjpeg-turbo, is not
installed.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from rn50lib.config import TrainConfig
from rn50lib.data.decode import MAX_PIXELS, Pictures, quick
from rn50lib.recipe import Box
from rn50lib.data.imageinfo import find_frame
from rn50lib.data.source import Source

try:
    import simplejpeg
except ImportError:  # it has no wheel for some machines
    simplejpeg = None

RATIOS = (8, 4, 2, 1)
"""libjpeg decodes at 1 / ratio of the size for little more than the reading: the largest is taken
with which the crop still has as many pixels as are needed (see `images.SPARE`)."""


SHAPE = struct.Struct(">HHB")  # in a frame: height, width, number of components

REST = "extraneous bytes before marker 0xd9"
"""libjpeg's warning that the image has more rows than its header says. It tells its first warning
alone, so nothing was wrong with the rows before; and an image whose file is cut off has no end
marker, 0xd9, and gives another one."""


class TorchPictures(Pictures):
    """See `Pictures`."""

    def __init__(self, source: Source, train: bool, experiment: TrainConfig) -> None:
        super().__init__(source, train, experiment)
        self.quick = quick(experiment, train)
        self.memory = bytearray()  # holds what was decoded, also where a warning ends the call

    def part(self, data: bytes, epoch: int, index: int) -> np.ndarray:
        frame = find_frame(data) if simplejpeg else None
        if frame is None:
            return super().part(data, epoch, index)
        height, width, components = SHAPE.unpack_from(data, frame + 5)
        if not 0 < height * width <= MAX_PIXELS or components not in (1, 3):
            return super().part(data, epoch, index)
        box, mirror = self.choose(epoch, index, width, height)
        ratio = decoding_ratio(box, self.spare * self.size)
        try:
            pixels = self.decode(data, frame, box[1] + box[3], ratio)
        except ValueError:  # damaged: Pillow says how, or shows what it can
            return super().part(data, epoch, index)
        return self.shrink(pixels, box, ratio, mirror)

    def decode(self, data: bytes, frame: int, bottom: int, ratio: int) -> np.ndarray:
        """The rows above `bottom` at least of a JPEG whose frame is at `frame`, at 1 / `ratio` of
        its size, uint8 HWC; valid until the next call. Raises ValueError where they are damaged."""
        height, width, _ = SHAPE.unpack_from(data, frame + 5)
        smaller = {
            "min_width": -(-width // ratio),
            "min_factor": ratio,
            "fastdct": self.quick,
            "fastupsample": self.quick,
        }
        if len(self.memory) < height * width * 3:
            self.memory = bytearray(height * width * 3)
        rows = bottom + 2 * ratio  # the colour of a row is made from the next row's, too
        # other JPEGs than baseline ones (0xc0) do not hold their rows one after the other
        if rows < height and data[frame + 1] == 0xC0:
            less = bytearray(data)
            struct.pack_into(">H", less, frame + 5, rows)
            made = (-(-rows // ratio), smaller["min_width"], 3)
            try:
                return simplejpeg.decode_jpeg(
                    less, min_height=made[0], buffer=self.memory, **smaller
                )
            except ValueError as warning:
                if REST in str(warning):
                    return np.frombuffer(self.memory, np.uint8, math.prod(made)).reshape(made)
        made_height = -(-height // ratio)
        return simplejpeg.decode_jpeg(data, min_height=made_height, buffer=self.memory, **smaller)

    def shrink(self, pixels_HWC: np.ndarray, box: Box, ratio: int, mirror: bool) -> np.ndarray:
        """The `box` of an image that was decoded at 1 / `ratio` of its size, as uint8 (size, size,
        3), antialiased; a mirror image if `mirror`."""
        left, top, width, height = box
        if ratio > 1:  # the box begins and ends within pixels
            right, bottom = (left + width) / ratio, (top + height) / ratio
            if not self.quick:  # PyTorch cannot do that
                x, y = left // ratio, top // ratio
                part = Image.fromarray(pixels_HWC[y : math.ceil(bottom), x : math.ceil(right)])
                exact = (left / ratio - x, top / ratio - y, right - x, bottom - y)
                made = part.resize((self.size, self.size), Image.Resampling.BILINEAR, box=exact)
                return np.asarray(made)[:, ::-1] if mirror else np.asarray(made)
            left, top = round(left / ratio), round(top / ratio)  # a shift that no crop minds
            width, height = round(right) - left, round(bottom) - top
        part_NHWC = torch.from_numpy(pixels_HWC[None, top : top + height, left : left + width])
        # the fast kernel is that for channels_last without gaps, and what it makes is so, too:
        # copying the crop costs less than it saves when the result is put into the batch
        part_NCHW = part_NHWC.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        small = F.interpolate(part_NCHW, (self.size, self.size), mode="bilinear", antialias=True)
        if mirror:
            small = small.flip(3)
        return small[0].permute(1, 2, 0).numpy()


def decoding_ratio(box: Box, size: int) -> int:
    """By how much smaller a picture is decoded whose `box` needs `size` pixels a side."""
    return next(r for r in RATIOS if r == 1 or min(box[2:]) >= r * size)

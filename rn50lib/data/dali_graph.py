"""Two DALI graphs for images: one for training, one for validation.

    read → decode and crop → resize → mirror → uint8 pixels

The same two run on a CPU and on a GPU. Each takes `read`, a function that adds a reader of files,
RecordIO or TFRecord, and an `ImageSpec` with the recipe's numbers, none of which are DALI's
defaults. Normalising is left to the step, which does it on the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from nvidia import dali
from nvidia.dali import fn, math, pipeline_def, types

from rn50lib.data.decode import find_orientation
from rn50lib.errors import UserError
from rn50lib.recipe import Augmentation

Read = Callable[[], tuple[Any, Any]]
"""Adds a reader to the graph that is being defined: (encoded image, label as a scalar)."""

JPEG_ENGINES = ((8, 0), (9, 0), (10, 0))  # of A100 and A30, H100 and H200, B200

TURNS = "adjust_orientation" in inspect.signature(fn.decoders.image).parameters
"""Whether DALI turns images upright, as their EXIF block says: DALI 2 does, DALI 1 cannot."""


@dataclass(frozen=True)
class ImageSpec:
    """The parameters of a graph.

    `pixels` is the images' side, `resize` the shorter side of a validation image before its centre
    is cut out. `gpu` decodes there. `engine` decodes whole images, for a GPU's own JPEG decoder;
    else only the part that the crop needs is decoded, which is less work.
    """

    pixels: int
    resize: int
    augmentation: Augmentation
    gpu: bool = False
    engine: bool = False


@pipeline_def
def training(read: Read, spec: ImageSpec) -> tuple[Any, ...]:
    """Define a random part of each image, as uint8 (pixels, pixels, 3), and its label."""
    encoded, label = read()
    crop = {
        "random_area": list(spec.augmentation.area),
        "random_aspect_ratio": list(spec.augmentation.aspect),
        "num_attempts": 10,
    }
    mirror = fn.random.coin_flip(probability=spec.augmentation.flip)
    if spec.engine:
        images = fn.decoders.image(encoded, **decoding(spec, train=True))
        images = fn.random_resized_crop(images, size=spec.pixels, **crop, antialias=True)
        images = fn.flip(images, horizontal=mirror)
    else:
        decode = fn.decoders.image_random_crop
        images = decode(encoded, **crop, **decoding(spec, train=True))
        # from right to left where it is mirrored: so the mirror image costs nothing
        left = fn.cast(mirror, dtype=types.FLOAT)
        images = resized(
            images, spec, fn.stack(0.0, left), fn.stack(1.0, 1.0 - left), roi_relative=True
        )
    if spec.augmentation.rotate:
        most = spec.augmentation.rotate
        angle = fn.random.uniform(range=[-most, most])
        images = fn.rotate(images, angle=angle, keep_size=True, fill_value=0)
    return delivered(images, label, encoded, spec)


@pipeline_def
def validation(read: Read, spec: ImageSpec) -> tuple[Any, ...]:
    """Define the middle of each image, as uint8 (pixels, pixels, 3), and its label.

    Cutting the middle out of the whole image and resizing that gives what the recipe's "resize,
    then crop the centre" gives, and decodes less: see `recipe.center_crop_box`, whose box it is.
    """
    encoded, label = read()
    shape = fn.peek_image_shape(encoded, dtype=types.INT32)
    height, width = shape[0], shape[1]
    side = center_side(math.min(height, width), spec)
    start = fn.stack((height - side) // 2, (width - side) // 2)
    if spec.engine:
        images = fn.decoders.image(encoded, **decoding(spec))
        first = fn.cast(start, dtype=types.FLOAT)
        images = resized(images, spec, first, first + side)
    else:
        decode = fn.decoders.image_slice
        square = fn.stack(side, side)
        cut = decode(encoded, start=start, shape=square, axes=[0, 1], **decoding(spec))
        images = resized(cut, spec)
    return delivered(images, label, encoded, spec)


def center_side(shorter: Any, spec: ImageSpec) -> Any:
    """Return round(shorter x pixels / resize), from 1 to `shorter`, as `recipe.center_crop_box`.

    A half goes to the even number, as Python's.
    """
    doubled = 2 * spec.pixels * shorter + spec.resize
    nearest = doubled // (2 * spec.resize)
    is_half = fn.cast(doubled == nearest * (2 * spec.resize), dtype=types.INT32)
    return math.clamp(nearest - is_half * (nearest & 1), 1, shorter)


def resized(images: Any, spec: ImageSpec, start: Any = None, end: Any = None, **how: Any) -> Any:
    """Return a rectangle of each image, or all of it, as (pixels, pixels, 3).

    With antialiasing, linear interpolation is Pillow's BILINEAR.
    """
    if start is not None:
        how |= {"roi_start": start, "roi_end": end}
    side = {"resize_x": spec.pixels, "resize_y": spec.pixels}
    linear = {"interp_type": types.INTERP_LINEAR, "antialias": True}
    return fn.resize(images, **side, **linear, **how)


def decoding(spec: ImageSpec, train: bool = False) -> dict[str, Any]:
    """Return how to decode: faster for training, and for validation as in all other loaders.

    DALI chooses how many images go to the JPEG engine. Nothing is allocated ahead
    (`preallocate_*`): that would take a batch of the largest image.
    """
    engine = {} if spec.engine else {"hw_decoder_load": 0.0}
    how = {"device": "mixed" if spec.gpu else "cpu", "output_type": types.RGB}
    how |= {"use_fast_idct": train, "jpeg_fancy_upsampling": not train}
    return how | engine


def delivered(images: Any, label: Any, encoded: Any, spec: ImageSpec) -> tuple[Any, ...]:
    """Return images and labels (int32) on the device where they were made.

    With DALI 1 also the encoded images, for `refuse_turned`.
    """
    label = fn.cast(label, dtype=types.INT32)
    made = (images, label.gpu() if spec.gpu else label)
    return made if TURNS else (*made, encoded)


def refuse_turned(images: Any, labels: Any, encoded: Iterable[Any] = ()) -> tuple[Any, Any]:
    """Return images and labels of a batch. Raises UserError that names the first turned image."""
    for image in encoded:
        if find_orientation(np.asarray(image).data) != 1:
            name = image.source_info().replace(" at index ", ": record at offset ")
            raise UserError(
                f"{name}: this image is turned by its EXIF block, which DALI {dali.__version__}"
                " ignores: use --loader native or DALI 2, or pack the images upright with"
                " `python -m data_prep.im2rec` without --pass-through"
            )
    return images, labels

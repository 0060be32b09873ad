"""Notebook 07: new images to ask the network about, and the memory traffic of a forward pass."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from rn50lib import resnet
from workshop.lessons import nb06

NEW_SEED = 4711  # the built-in data set is drawn from seed 0

# How often an element of a layer's output is read or written if every layer goes through memory: a
# batch norm and a ReLU read and write, an addition reads two arrays and writes one. Once they are
# fused into the convolution, only the shortcut is still read.
PASSES = {"batchnorm": 2, "relu": 2, "add": 3}
PASSES_FUSED = {"batchnorm": 0, "relu": 0, "add": 1}


def draw_signs(
    folder: Path, classes: Sequence[str], count: int = 4, seed: int = NEW_SEED
) -> list[Path]:
    """Draw JPEG files that are not in the data set, and return their paths.

    Args:
        folder: Where to write them; it is created.
        classes: The class names, in the order of the labels.
        count: How many signs to draw, each named after its class.
        seed: The seed of the drawing; the data set has a different one.

    Returns:
        The signs, then two images without a sign: ``road.jpg`` and ``noise.jpg``.
    """
    from data_prep.signs.assets import make_assets
    from data_prep.signs.compose import draw_jpeg
    from data_prep.signs.light import choose_light
    from data_prep.signs.scene import draw_scene

    folder.mkdir(parents=True, exist_ok=True)
    assets = make_assets(seed)
    files = {}
    for place in range(count):
        label = place * len(classes) // count
        files[classes[label]] = draw_jpeg(assets, seed, "val", label)
    rng = np.random.default_rng(seed)
    without_sign = {
        "road": draw_scene(rng, assets, choose_light(rng), 500, 375),
        "noise": Image.fromarray(rng.integers(0, 256, (375, 500, 3), np.uint8)),
    }
    for name, image in without_sign.items():
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=90)
        files[name] = buffer.getvalue()
    for name, content in files.items():
        (folder / f"{name}.jpg").write_bytes(content)
    return [folder / f"{name}.jpg" for name in files]


def traffic(batch: int, dtype: str = "float32", fused: bool = True) -> tuple[float, float]:
    """Return the work and the traffic of ResNet-50's forward pass at 224 pixels, per image.

    Args:
        batch: Images per batch; they share one reading of the weights.
        dtype: The precision of weights and activations, such as "float16".
        fused: Whether batch norm, ReLU and addition are part of the convolution's kernel.

    Returns:
        FLOP and bytes per image, if every layer reads its input from memory and writes its output
        there. The last layer computes in float32.
    """
    net, pixels = resnet.resnet(50), 224
    element, passes = nb06.BYTES[dtype], PASSES_FUSED if fused else PASSES
    inputs = nb06.conv_inputs(net, pixels)
    flops, moved, previous = 0.0, 0.0, 3 * pixels**2  # elements of the image
    for layer in net.layers(pixels):
        output = layer.activations
        if layer.kind == "conv":
            moved += element * (inputs[layer.name] + output + layer.parameters / batch)
        elif layer.kind == "linear":
            moved += 4 * (net.features + output + layer.parameters / batch)
        elif layer.kind in passes:
            moved += element * passes[layer.kind] * output
        else:  # pooling
            moved += element * (previous + output)
        flops += 2 * layer.macs
        previous = output
    return flops, moved

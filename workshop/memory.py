"""The device memory that a training step needs, predicted from the network.

    memory = weights + gradients + momentum + images + activations + workspace

Activations, as PyTorch keeps them for the backward pass, are nearly all of it at usual batch sizes.
A GPU's context (about half a GB) and an allocator's reserve are not counted.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from rn50lib.resnet import Layer, Network

BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}  # of an activation
FLOAT32, INT64 = 4, 8


@dataclass(frozen=True)
class Memory:
    """Bytes of a step, by part. `total` is their sum, a little more than the peak."""

    weights: int  # in float32, with the running statistics, and a 16-bit copy if one is used
    gradients: int
    momentum: int
    images: int  # the batch as bytes, and normalised
    activations: int
    workspace: int  # an allowance: gradients of activations in flight, scratch of the convolutions

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(asdict(self).values())


def predict(net: Network, image_size: int, batch: int, dtype: str = "float32") -> Memory:
    """Predict the memory of one step over `batch` square images of `image_size` pixels.

    Raises KeyError unless `dtype` is float32, tf32, bfloat16 or float16.
    """
    each = BYTES[dtype]
    layers = list(net.layers(image_size))
    arrays = sum(math.prod(shape) for shape in net.arrays().values())
    parameters = net.num_parameters
    copies = 0 if each == FLOAT32 else each * sum(x.parameters for x in layers if x.kind == "conv")
    pixels = 3 * image_size**2
    # conv1 keeps the normalised images themselves in float32, and else a copy of them in 16 bits
    images = pixels if each == FLOAT32 else pixels + FLOAT32 * pixels
    largest = each * max(layer.activations for layer in layers)
    return Memory(
        weights=FLOAT32 * arrays + copies,
        gradients=FLOAT32 * parameters,
        momentum=FLOAT32 * parameters,
        images=batch * images,
        activations=batch * (each * pixels + sum(kept(layer, each) for layer in layers))
        + sum(2 * FLOAT32 * x.channels for x in layers if x.kind == "batchnorm"),  # statistics
        workspace=batch * 2 * largest,
    )


def kept(layer: Layer, each: int) -> int:
    """Bytes per image that the backward pass needs of this layer's output, `each` per element.

    A convolution's output is the input of a batch norm, a rectifier's (made in place of what it
    reads) that of the next convolutions; the pooling also keeps which element was the largest. The
    output of a batch norm is overwritten and that of an addition too: neither is kept.
    """
    if layer.kind in ("conv", "relu"):
        return each * layer.activations
    if layer.kind == "maxpool":
        return (each + INT64) * layer.activations
    if layer.kind == "avgpool":
        return FLOAT32 * layer.activations
    if layer.kind == "linear":  # the loss keeps the logarithms of its probabilities, and the label
        return FLOAT32 * layer.activations + INT64
    return 0

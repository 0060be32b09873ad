"""Work and traffic of a forward pass, with batch norm and ReLU apart or fused."""

from __future__ import annotations

from rn50lib import memory
from rn50lib.resnet import Network
from workshop.lessons.nb06 import Work, conv_inputs

# Times that an element of a layer's output is read or written where every layer goes to memory: a
# batch norm reads and writes, a rectifier too, an addition reads two and writes one. Where they are
# fused into the convolution, what is left is to read the shortcut.
PASSES = {"batchnorm": 2, "relu": 2, "add": 3}
FUSED = {"batchnorm": 0, "relu": 0, "add": 1}


def total(net: Network, size: int, batch: int, dtype: str, fused: bool = True) -> Work:
    """Work and traffic of the whole forward pass over a batch of `size` pixels, each layer from
    memory to memory."""
    each, passes = memory.BYTES[dtype], FUSED if fused else PASSES
    inputs = conv_inputs(net, size)
    flops, moved, before = 0, 0, 3 * size**2
    for layer in net.layers(size):
        out = batch * layer.activations
        if layer.kind == "conv":
            moved += each * (batch * inputs[layer.name] + out + layer.parameters)
        elif layer.kind == "linear":  # in float32
            moved += 4 * (batch * net.features + out + layer.parameters)
        elif "pool" in layer.kind:
            moved += each * (batch * before + out)
        else:
            moved += each * passes[layer.kind] * out
        flops += 2 * batch * layer.macs
        before = layer.activations
    return Work(flops, moved)

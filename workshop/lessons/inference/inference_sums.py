"""Sums about inference: work and traffic of a forward pass, and batches as fixed and added time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rn50lib import memory
from rn50lib.network import Network
from workshop.lessons.precision.roofline import Device, Work, conv_inputs

# Times that an element of a layer's output is read or written where every layer goes to memory: a
# batch norm reads and writes, a rectifier too, an addition reads two and writes one. Where they are
# fused into the convolution, what is left is to read the shortcut.
PASSES = {"batchnorm": 2, "relu": 2, "add": 3}
FUSED = {"batchnorm": 0, "relu": 0, "add": 1}


def layers(net: Network, size: int, batch: int, dtype: str, fused: bool) -> list[Work]:
    """Work and traffic of a forward pass, layer by layer, over a batch of `size` pixels."""
    each, passes = memory.BYTES[dtype], FUSED if fused else PASSES
    inputs = conv_inputs(net, size)
    found, before = [], 3 * size**2
    for layer in net.layers(size):
        out = batch * layer.activations
        if layer.kind == "conv":
            traffic = each * (batch * inputs[layer.name] + out + layer.parameters)
        elif layer.kind == "linear":  # in float32
            traffic = 4 * (batch * net.features + out + layer.parameters)
        elif "pool" in layer.kind:
            traffic = each * (batch * before + out)
        else:
            traffic = each * passes[layer.kind] * out
        flops = 2 * batch * layer.macs
        if flops or traffic:
            found.append(Work(flops, traffic))
        before = layer.activations
    return found


def total(net: Network, size: int, batch: int, dtype: str, fused: bool = True) -> Work:
    """Work and traffic of the whole forward pass."""
    found = layers(net, size, batch, dtype, fused)
    return Work(sum(work.flops for work in found), sum(work.bytes for work in found))


def at_most(device: Device, net: Network, size: int, batch: int, dtype: str) -> float:
    """Images per second that the roofline of a device allows, each layer by itself."""
    parts = layers(net, size, batch, dtype, fused=True)
    return batch / sum(work.floor(device.peaks[dtype], device.bandwidth) for work in parts)


def line(rates: Mapping[int, float]) -> tuple[float, float]:
    """(fixed, each): seconds for a batch as `fixed + each * batch`, fitted to images per second by
    batch so that relative errors count alike. Two batches at least."""
    batches = np.array(list(rates), np.float64)
    seconds = batches / np.array(list(rates.values()))
    rows = np.stack([1 / seconds, batches / seconds], axis=1)
    fixed, each = np.linalg.lstsq(rows, np.ones(len(batches)), rcond=None)[0]
    if fixed < 0 or each < 0:  # then one of them alone
        used = 1 if fixed < 0 else 0
        alone = rows[:, used].sum() / (rows[:, used] ** 2).sum()
        fixed, each = (0.0, alone) if used else (alone, 0.0)
    return float(fixed), float(each)


def fold(
    weight: np.ndarray, norm: Mapping[str, np.ndarray], eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """(weight, bias) of a convolution (OIHW) with the batch norm behind it; `norm` holds gamma,
    beta, running_mean and running_var."""
    scale = norm["gamma"] / np.sqrt(norm["running_var"] + eps)
    return weight * scale[:, None, None, None], norm["beta"] - norm["running_mean"] * scale

"""The ResNet of `rn50lib.network` as a PyTorch module, and its arrays by canonical name.

A processor can train it in oneDNN's own layout: the channels in blocks as long as a vector register
(nChw16c), in which convolutions and batch norms run faster than in NHWC. PyTorch calls such tensors
mkldnn tensors, and most of its operators take them as any others.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rn50lib.network import Block, Conv, Network
from rn50lib.recipe import BN_EPS, BN_MOMENTUM

PARTS = {"gamma": "weight", "beta": "bias"}  # what torch calls the arrays of a batch norm


FEW = 14
"""Pixels a side up to which a 1x1 convolution trains faster on a processor as a matrix product:
its weights, large here, are then not rearranged at every step, forward and twice backward."""


MANY = 1024
"""Pixels of a batch, above which a block trains faster in the blocked layout: its weights have to
be rearranged for each convolution, and their gradients back, however few pixels they meet."""


def has_blocks(device: str, dtype: torch.dtype) -> bool:
    """Whether a batch can be trained in `dtype` in oneDNN's blocked layout here, and fast."""
    if device != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def strided(x_NCHW: Tensor) -> Tensor:
    """The same in NHWC memory, if it is in the blocked layout."""
    if not x_NCHW.is_mkldnn:
        return x_NCHW
    return x_NCHW.to_dense().contiguous(memory_format=torch.channels_last)


class Fork(torch.autograd.Function):
    """A tensor for two uses, the gradient of the second added to that of the first in place.

    For a tensor in the blocked layout, autograd itself would write the sum to new memory. The first
    use must be a convolution, whose gradient nobody else holds.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.detach(), x.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].add_(gradients[1])


class Convolution(nn.Conv2d):
    def forward(self, x_NCHW: Tensor) -> Tensor:
        if not x_NCHW.is_mkldnn:
            return super().forward(x_NCHW)
        # oneDNN rounds the weights while it rearranges them; autocast would do so beforehand
        with torch.autocast("cpu", enabled=False):
            return super().forward(x_NCHW)


class Pointwise(Convolution):
    """A 1x1 convolution with stride 1: the same matrix for the channels of every pixel."""

    def forward(self, x_NCHW: Tensor) -> Tensor:
        on_cpu = x_NCHW.device.type == "cpu" and not x_NCHW.is_mkldnn
        if not self.training or not on_cpu or x_NCHW.shape[-1] > FEW:
            return super().forward(x_NCHW)
        # by way of NHWC, so that the gradient has the strides that DDP lays its buckets out by
        matrix = self.weight.permute(0, 2, 3, 1).flatten(1)
        return F.linear(x_NCHW.permute(0, 2, 3, 1), matrix).permute(0, 3, 1, 2)


def convolution(conv: Conv) -> nn.Conv2d:
    kind = Pointwise if conv.kernel == conv.stride == 1 else Convolution
    return kind(
        conv.in_channels, conv.out_channels, conv.kernel, conv.stride, conv.padding, bias=False
    )


def batch_norm(channels: int) -> nn.BatchNorm2d:
    # torch's momentum is the share of the new value, not of the old one
    return nn.BatchNorm2d(channels, eps=BN_EPS, momentum=1 - BN_MOMENTUM)


class Residual(nn.Module):
    """A residual block: convolutions, each with batch norm, and the shortcut added last."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.blocked = False  # whether it is trained in oneDNN's layout
        self.depth = len(block.convs)
        for i, conv in enumerate(block.convs, start=1):
            self.add_module(f"conv{i}", convolution(conv))
            self.add_module(f"bn{i}", batch_norm(conv.out_channels))
        if block.downsample:
            self.downsample = convolution(block.downsample)
            self.downsample_bn = batch_norm(block.downsample.out_channels)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        if not self.blocked:
            x_NCHW = strided(x_NCHW)
        x, shortcut = Fork.apply(x_NCHW) if x_NCHW.is_mkldnn else (x_NCHW, x_NCHW)
        for i in range(1, self.depth + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x))
            if i < self.depth:
                x = F.relu(x, inplace=True)
        if hasattr(self, "downsample"):
            shortcut = self.downsample_bn(self.downsample(shortcut))
        return F.relu(x.add_(shortcut), inplace=True)


class ResNet(nn.Module):
    """Stem, stages of residual blocks, average pool, fully-connected layer; float32 logits."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.blocked: torch.dtype | None = None  # what training computes in, in that layout
        self.conv1 = convolution(net.stem)
        self.bn1 = batch_norm(net.width)
        stages: dict[str, list[Residual]] = {}
        for block in net.blocks():
            stages.setdefault(block.name.split(".")[0], []).append(Residual(block))
        self.stage_names = list(stages)
        for name, blocks in stages.items():
            self.add_module(name, nn.Sequential(*blocks))
        self.fc = nn.Linear(net.features, net.num_classes)

    def lay_out(self, net: Network, batch_size: int, image_size: int, dtype: torch.dtype) -> None:
        """Train in oneDNN's blocked layout where that is faster for such batches, else in NHWC."""
        sizes = {layer.name: layer.size for layer in net.layers(image_size)}
        for block in net.blocks():
            module = self.get_submodule(block.name)
            if batch_size * sizes[block.name + ".add"] ** 2 > MANY:
                self.blocked, module.blocked = dtype, True
                module.to(memory_format=torch.contiguous_format)  # as its gradients will come

    def forward(self, x_NCHW: Tensor) -> Tensor:
        x = x_NCHW
        if self.blocked and self.training and not torch.compiler.is_compiling():
            x = x.to_mkldnn(self.blocked)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for name in self.stage_names:
            x = getattr(self, name)(x)
        pooled_NC = strided(x).mean(dim=(2, 3), dtype=torch.float32)
        # The last layer stays in float32: its logits feed the loss, where rounding costs most.
        with torch.autocast(x.device.type, enabled=False):
            return self.fc(pooled_NC)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters and running statistics by canonical name, in the network's order."""
    named: dict[str, Tensor] = {}
    for owner, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            named[f"{owner}.weight"] = module.weight
        elif isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            for part, attribute in PARTS.items():
                named[f"{owner}.{part}"] = getattr(module, attribute)
            named[f"{owner}.running_mean"] = module.running_mean
            named[f"{owner}.running_var"] = module.running_var
        elif isinstance(module, nn.Linear):
            named[f"{owner}.weight"] = module.weight
            named[f"{owner}.bias"] = module.bias
    return named


@torch.no_grad()
def load_arrays(model: nn.Module, arrays: dict[str, np.ndarray]) -> None:
    """Copy arrays, by canonical name, into the model. Raises KeyError for one that is missing."""
    for name, tensor in tensors(model).items():
        tensor.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))

"""The network as it predicts: fewer passes over memory than in training, the same logits.

With fixed running statistics a batch norm is a scale and a shift for each channel, and both can be
put into the convolution before it. On a CPU, oneDNN then also rectifies and adds the shortcut while
it still holds the convolution's result in registers, so each layer is written once and read once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rn50lib.backends.torch.model import ResNet


@dataclass(frozen=True)
class Folded:
    """A convolution with the batch norm behind it: `weight` (O, I, H, W), `bias` (O)."""

    weight: Tensor
    bias: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]


def fold(conv: nn.Conv2d, bn: nn.BatchNorm2d, dtype: torch.dtype) -> Folded:
    """gamma (W x - mean) / std + beta = (gamma / std W) x + (beta - gamma / std mean)."""
    assert bn.running_mean is not None and bn.running_var is not None
    scale = bn.weight * torch.rsqrt(bn.running_var + bn.eps)
    weight = (conv.weight * scale.view(-1, 1, 1, 1)).to(dtype)
    bias = (bn.bias - bn.running_mean * scale).to(dtype)
    assert not isinstance(conv.padding, str)
    return Folded(
        weight.contiguous(memory_format=torch.channels_last), bias, conv.stride, conv.padding
    )


class Predictor:
    """Logits of a ResNet at its present weights, which are copied, computed in `dtype`."""

    @torch.inference_mode()
    def __init__(self, model: ResNet, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self.stem = fold(model.conv1, model.bn1, dtype)
        self.blocks = []
        for name in model.stage_names:
            for block in getattr(model, name):
                convs = [
                    fold(getattr(block, f"conv{i}"), getattr(block, f"bn{i}"), dtype)
                    for i in range(1, block.depth + 1)
                ]
                shortcut = None
                if hasattr(block, "downsample"):
                    shortcut = fold(block.downsample, block.downsample_bn, dtype)
                self.blocks.append((convs, shortcut))
        on_cpu = self.stem.weight.device.type == "cpu"
        self.convolve = one_pass if on_cpu and has_one_pass(dtype) else three_passes

    @torch.inference_mode()
    def __call__(self, x_NCHW: Tensor) -> Tensor:
        """Float32 logits (N, classes) for normalised images."""
        x = x_NCHW.to(self.dtype, memory_format=torch.channels_last)
        x = F.max_pool2d(self.convolve(x, self.stem, True), kernel_size=3, stride=2, padding=1)
        for convs, downsample in self.blocks:
            inner = x
            for conv in convs[:-1]:
                inner = self.convolve(inner, conv, True)
            shortcut = x if downsample is None else self.convolve(x, downsample, False)
            x = self.convolve(inner, convs[-1], True, shortcut)  # over the shortcut's memory
        fc = self.model.fc
        return F.linear(x.mean(dim=(2, 3), dtype=torch.float32), fc.weight, fc.bias)


def has_one_pass(dtype: torch.dtype) -> bool:
    """Whether this PyTorch and processor have oneDNN's fused convolutions for `dtype`."""
    if not torch.backends.mkldnn.is_available():
        return False
    ops = torch.ops.mkldnn
    if not hasattr(ops, "_convolution_pointwise") or not hasattr(ops, "_convolution_pointwise_"):
        return False
    if dtype == torch.bfloat16:
        return bool(ops._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def one_pass(x: Tensor, conv: Folded, relu: bool, shortcut: Tensor | None = None) -> Tensor:
    """relu(conv(x) + shortcut), each where it is asked for, by one kernel of oneDNN."""
    ops, after = torch.ops.mkldnn, "relu" if relu else "none"
    place = (conv.weight, conv.bias, conv.padding, conv.stride, (1, 1), 1)
    if shortcut is None:
        return ops._convolution_pointwise(x, *place, after, [], "")
    return ops._convolution_pointwise_.binary(shortcut, x, *place, "add", 1.0, after, [], "")


def three_passes(x: Tensor, conv: Folded, relu: bool, shortcut: Tensor | None = None) -> Tensor:
    """The same with PyTorch's public operators."""
    x = F.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding)
    if shortcut is not None:
        x = x.add_(shortcut)
    return F.relu_(x) if relu else x

"""The ResNet of `rn50lib.resnet` as a PyTorch module, and its arrays by canonical name.

He et al. 2015, arXiv:1512.03385: table 1 has the stages, figure 5 the two kinds of block. Suffixes
name a tensor's axes: N images, C channels, H and W pixels.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rn50lib.recipe import BN_EPS, BN_MOMENTUM
from rn50lib.resnet import Block, Conv, Network


def convolution(conv: Conv) -> nn.Conv2d:
    return nn.Conv2d(
        conv.in_channels, conv.out_channels, conv.kernel, conv.stride, conv.padding, bias=False
    )


def batch_norm(conv: Conv) -> nn.BatchNorm2d:
    # PyTorch's momentum is the share of the new value, not of the old one
    return nn.BatchNorm2d(conv.out_channels, eps=BN_EPS, momentum=1 - BN_MOMENTUM)


def projection(conv: Conv | None) -> tuple[nn.Module, nn.Module]:
    """Return the shortcut's layers: identities unless the block changes the shape."""
    if conv is None:
        return nn.Identity(), nn.Identity()
    return convolution(conv), batch_norm(conv)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, and a shortcut around them."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        first, second = block.convs
        self.conv1, self.bn1 = convolution(first), batch_norm(first)
        self.conv2, self.bn2 = convolution(second), batch_norm(second)
        self.downsample, self.downsample_bn = projection(block.downsample)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x_NCHW)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.downsample_bn(self.downsample(x_NCHW))
        return F.relu(y, inplace=True)


class Bottleneck(nn.Module):
    """A 1x1 convolution to fewer channels, a 3x3, a 1x1 to more, and a shortcut around them."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        reduce, spatial, expand = block.convs
        self.conv1, self.bn1 = convolution(reduce), batch_norm(reduce)
        self.conv2, self.bn2 = convolution(spatial), batch_norm(spatial)
        self.conv3, self.bn3 = convolution(expand), batch_norm(expand)
        self.downsample, self.downsample_bn = projection(block.downsample)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x_NCHW)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += self.downsample_bn(self.downsample(x_NCHW))
        return F.relu(y, inplace=True)


BLOCKS = {"basic": BasicBlock, "bottleneck": Bottleneck}


class ResNet(nn.Module):
    """Stem, stages of residual blocks, average pool, fully-connected layer; float32 logits."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(net.stem), batch_norm(net.stem)
        self.stages: list[nn.Sequential] = []
        for name, blocks in itertools.groupby(net.blocks(), lambda block: block.name.split(".")[0]):
            self.stages.append(nn.Sequential(*(BLOCKS[net.block](block) for block in blocks)))
            self.add_module(name, self.stages[-1])
        self.fc = nn.Linear(net.features, net.num_classes)

    def forward(self, images_NCHW: Tensor) -> Tensor:
        """Return the logits (N, classes) of normalised images."""
        x = F.relu(self.bn1(self.conv1(images_NCHW)), inplace=True)
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for stage in self.stages:
            x = stage(x)
        return self.head(x)

    def head(self, x_NCHW: Tensor) -> Tensor:
        """Return the logits, always computed in float32: rounding costs most here."""
        pooled_NC = x_NCHW.mean(dim=(2, 3), dtype=torch.float32)
        with torch.autocast(pooled_NC.device.type, enabled=False):
            return self.fc(pooled_NC)


PARTS = {"gamma": "weight", "beta": "bias"}  # PyTorch's names of batch-norm arrays


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and running statistics by canonical name, in the network's order."""
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
    """Copy arrays, by canonical name, into the model. Raise KeyError for a missing one."""
    for name, tensor in tensors(model).items():
        tensor.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))

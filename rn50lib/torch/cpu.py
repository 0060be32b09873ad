"""Forms of a ResNet that are faster on an x86 processor with oneDNN, PyTorch's library there.

Each form takes a model of `model.py`, shares its parameters and computes the same.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rn50lib.config import TrainConfig
from rn50lib.hardware import machine
from rn50lib.resnet import Network
from rn50lib.torch.model import ResNet

# Up to this image side a 1x1 convolution trains faster as a matrix product, which does not
# rearrange its weights; above this number of pixels per batch a block trains faster in the blocked
# layout, which does.
MATRIX_PIXELS, BLOCKED_PIXELS = 14, 1024


def has_onednn(device: str, dtype: torch.dtype) -> bool:
    """Return True if oneDNN computes in `dtype` here, and fast."""
    if device != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(machine().bfloat16))


def for_training(model: ResNet, net: Network, config: TrainConfig, dtype: torch.dtype) -> nn.Module:
    """Return the form of `model` that trains fastest on the run's batches; it shares its weights.

    Blocks with many pixels train in the blocked layout, the rest in NHWC, there with 1x1
    convolutions of small images as matrix products.
    """
    sizes = {layer.name: layer.size for layer in net.layers(config.image_shape)}
    pixels = [config.batch_size * sizes[f"{block.name}.add"] ** 2 for block in net.blocks()]
    blocked = sum(count > BLOCKED_PIXELS for count in pixels)  # the first ones: images only shrink
    if config.compile:  # torch.compile knows nothing of such tensors
        blocked = 0
    # In float32 the products are MKL's, which on an AMD EPYC with bfloat16 are slower than oneDNN's
    # convolutions; Intel's processors were not measured.
    if dtype == torch.bfloat16 or not machine().bfloat16:
        use_matrix_products(model, net, sizes, skip=blocked)
    return Blocked(model, blocked, dtype) if blocked else model


class Blocked(nn.Module):
    """A ResNet whose stem and first `count` blocks compute in oneDNN's blocked layout (nChw16c).

    PyTorch calls such tensors mkldnn tensors. For prediction, all blocks compute in it.
    """

    def __init__(self, model: ResNet, count: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype
        blocks = [block for stage in model.stages for block in stage]
        self.blocked, self.others = blocks[:count], blocks[count:]
        for module in (model.conv1, *self.blocked):
            module.to(memory_format=torch.contiguous_format)  # as its gradients will come

    def forward(self, images_NCHW: Tensor) -> Tensor:
        """Return the logits."""
        # oneDNN rounds the weights while it rearranges them; autocast would do so beforehand
        with torch.autocast("cpu", enabled=False):
            x = self.model.stem(images_NCHW.to_mkldnn(self.dtype))
            for block in self.blocked:
                x = block(x)
            x = x.to_dense().contiguous(memory_format=torch.channels_last)
        for block in self.others:
            x = block(x)
        return self.model.head(x)


class MatrixProduct(nn.Conv2d):
    """A 1x1 convolution with stride 1, which multiplies every pixel by the same matrix."""

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Return the convolution."""
        if not self.training:
            return super().forward(x_NCHW)
        # by way of NHWC, so that the gradient has the strides of DDP's buckets
        matrix = self.weight.permute(0, 2, 3, 1).flatten(1)
        return F.linear(x_NCHW.permute(0, 2, 3, 1), matrix).permute(0, 3, 1, 2)


def use_matrix_products(model: ResNet, net: Network, sizes: dict[str, int], skip: int) -> None:
    """Replace convolutions by a faster MatrixProduct, in all but the first `skip` blocks."""
    for block in list(net.blocks())[skip:]:
        for conv in (*block.convs, block.downsample):
            if conv and conv.kernel == conv.stride == 1 and sizes[conv.name] <= MATRIX_PIXELS:
                made = MatrixProduct(
                    conv.in_channels, conv.out_channels, 1, bias=False, device="meta"
                )
                made.weight = model.get_parameter(f"{conv.name}.weight")
                owner, _, name = conv.name.rpartition(".")
                setattr(model.get_submodule(owner), name, made)

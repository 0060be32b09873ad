"""Batch norm, addition and ReLU as one operation on a GPU, in Triton.

Two thirds of a half-precision step on an H100 move bytes: batch norm, ReLU and the addition of a
block each read and write whole activations. Together they need three passes over memory forward
(four with a shortcut) instead of seven, and five backward (eight with a shortcut and its gradient).

`FusedResNet` wraps the network of `model.py`, shares its parameters and running statistics, and
computes the same. Suffixes name a tensor's axes: M is all pixels of a batch, C channels.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from rn50lib.hardware import has_c_compiler
from rn50lib.torch.model import ResNet

try:
    import triton
    from triton import language as tl
except ImportError:  # PyTorch for a GPU brings it
    triton = None

ROWS, COLUMNS = 64, 64  # pixels and channels of the tile that a program has in registers
SUMMED, TOTALLED = 512, 16  # parts, and channels, in the tile of a program that adds sums
PROGRAMS = 1024  # that sum, each a part of the pixels of some channels: some 8 per multiprocessor
WARPS = 8


def check(device: str, config: TrainConfig) -> None:
    """Raise UserError if the kernels cannot run on a device, or contradict a flag."""
    why = ""
    if triton is None:
        why = "Triton is not installed"
    elif device != "cuda":
        why = "there is no GPU"
    elif torch.cuda.get_device_capability() < (7, 0):
        why = "Triton needs a GPU of compute capability 7.0 or later"
    elif not has_c_compiler():
        why = "Triton needs a C compiler"
    elif config.compile:
        why = "--compile writes such kernels itself"
    if why:
        raise UserError(f"--set fused=true: {why}; leave it out")


if triton is not None:

    @triton.jit
    def _sum_kernel(x, shift, sums, squares, pixels, channels, each,
                    ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
        """Sum x - shift and its square over a part of the pixels, by channel."""
        part, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < channels
        center = tl.load(shift + column, mask=inside, other=0.0).to(tl.float32)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        square = tl.zeros((ROWS, COLUMNS), tl.float32)
        last = tl.minimum((part + 1) * each, pixels)
        for first in range(part * each, last, ROWS):
            row = first + tl.arange(0, ROWS)
            valid = (row < last)[:, None] & inside[None, :]
            place = row.to(tl.int64)[:, None] * channels + column[None, :]
            value = tl.load(x + place, mask=valid, other=0.0).to(tl.float32) - center[None, :]
            value = tl.where(valid, value, 0.0)
            total += value
            square += value * value
        tl.store(sums + part * channels + column, tl.sum(total, 0), mask=inside)
        tl.store(squares + part * channels + column, tl.sum(square, 0), mask=inside)

    @triton.jit
    def _add_parts(first, second, parts, channels, column,
                   SUMMED: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
        """Return the totals of two sums over all parts, by channel."""
        total = tl.zeros((SUMMED, COLUMNS), tl.float32)
        other = tl.zeros((SUMMED, COLUMNS), tl.float32)
        for start in range(0, parts, SUMMED):
            part = start + tl.arange(0, SUMMED)
            valid = (part < parts)[:, None] & (column < channels)[None, :]
            place = part[:, None] * channels + column[None, :]
            total += tl.load(first + place, mask=valid, other=0.0)
            other += tl.load(second + place, mask=valid, other=0.0)
        return tl.sum(total, 0), tl.sum(other, 0)

    @triton.jit
    def _statistics_kernel(shift, sums, squares, mean, rstd, running_mean, running_var,
                           parts, pixels, channels, eps, momentum,
                           SUMMED: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
        """Turn the parts' sums into mean and 1 / deviation, and update the running statistics."""
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < channels
        total, square = _add_parts(sums, squares, parts, channels, column, SUMMED, COLUMNS)
        off = total / pixels
        center = tl.load(shift + column, mask=inside, other=0.0).to(tl.float32) + off
        variance = tl.maximum(square / pixels - off * off, 0.0)
        tl.store(mean + column, center, mask=inside)
        tl.store(rstd + column, 1.0 / tl.sqrt(variance + eps), mask=inside)
        old = tl.load(running_mean + column, mask=inside, other=0.0)
        tl.store(running_mean + column, old + momentum * (center - old), mask=inside)
        old = tl.load(running_var + column, mask=inside, other=0.0)
        unbiased = variance * (pixels / tl.maximum(pixels - 1, 1))
        tl.store(running_var + column, old + momentum * (unbiased - old), mask=inside)

    @triton.jit
    def _normalise_kernel(x, shortcut, y, mean, rstd, weight, bias, pixels, channels,
                          ADDS: tl.constexpr, RELU: tl.constexpr,
                          ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
        """Write y = relu(weight * (x - mean) * rstd + bias + shortcut) for one tile."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < channels
        scale = tl.load(rstd + column, mask=inside, other=0.0)
        scale *= tl.load(weight + column, mask=inside, other=0.0)
        center = tl.load(mean + column, mask=inside, other=0.0)
        offset = tl.load(bias + column, mask=inside, other=0.0)
        valid = (row < pixels)[:, None] & inside[None, :]
        place = row.to(tl.int64)[:, None] * channels + column[None, :]
        value = tl.load(x + place, mask=valid, other=0.0).to(tl.float32)
        value = (value - center[None, :]) * scale[None, :] + offset[None, :]
        if ADDS:
            value += tl.load(shortcut + place, mask=valid, other=0.0).to(tl.float32)
        if RELU:  # as PyTorch's: a NaN stays one
            value = tl.where(value < 0.0, 0.0, value)
        tl.store(y + place, value.to(y.dtype.element_ty), mask=valid)

    @triton.jit
    def _sum_gradients_kernel(x, y, dy, dy_shortcut, dz, mean, rstd, weight, bias, sums, products,
                              pixels, channels, each, ADDS: tl.constexpr, RELU: tl.constexpr,
                              TWO: tl.constexpr,
                              ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
        """Sum dz and dz * (x - mean) * rstd over a part of the pixels, by channel.

        dz is the gradient before ReLU. With a shortcut it is also written: it is the shortcut's
        gradient. Without one, the sign of the ReLU's input is computed again from x, which is read
        anyway.
        """
        part, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < channels
        center = tl.load(mean + column, mask=inside, other=0.0)
        scale = tl.load(rstd + column, mask=inside, other=0.0)
        gamma = tl.load(weight + column, mask=inside, other=0.0)
        offset = tl.load(bias + column, mask=inside, other=0.0)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        product = tl.zeros((ROWS, COLUMNS), tl.float32)
        last = tl.minimum((part + 1) * each, pixels)
        for first in range(part * each, last, ROWS):
            row = first + tl.arange(0, ROWS)
            valid = (row < last)[:, None] & inside[None, :]
            place = row.to(tl.int64)[:, None] * channels + column[None, :]
            gradient = tl.load(dy + place, mask=valid, other=0.0).to(tl.float32)
            if TWO:
                gradient += tl.load(dy_shortcut + place, mask=valid, other=0.0).to(tl.float32)
            normal = tl.load(x + place, mask=valid, other=0.0).to(tl.float32)
            normal = (normal - center[None, :]) * scale[None, :]
            if RELU:
                if ADDS:
                    output = tl.load(y + place, mask=valid, other=0.0).to(tl.float32)
                else:
                    output = normal * gamma[None, :] + offset[None, :]
                gradient = tl.where(output > 0.0, gradient, 0.0)
            gradient = tl.where(valid, gradient, 0.0)
            if ADDS:
                rounded = gradient.to(dz.dtype.element_ty)
                tl.store(dz + place, rounded, mask=valid)
                gradient = rounded.to(tl.float32)  # as the next kernel reads it
            total += gradient
            product += gradient * normal
        tl.store(sums + part * channels + column, tl.sum(total, 0), mask=inside)
        tl.store(products + part * channels + column, tl.sum(product, 0), mask=inside)

    @triton.jit
    def _gradient_sums_kernel(sums, products, d_weight, d_bias, parts, channels,
                              SUMMED: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
        """Add the parts' sums: the gradients of weight and bias."""
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < channels
        total, product = _add_parts(sums, products, parts, channels, column, SUMMED, COLUMNS)
        tl.store(d_bias + column, total, mask=inside)
        tl.store(d_weight + column, product, mask=inside)

    @triton.jit
    def _input_gradient_kernel(x, dz, dx, mean, rstd, weight, bias, d_weight, d_bias,
                               pixels, channels, ADDS: tl.constexpr, RELU: tl.constexpr,
                               ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
        """Write the gradient of x for one tile; `dz` is that after ReLU if nothing was added."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < channels
        center = tl.load(mean + column, mask=inside, other=0.0)
        scale = tl.load(rstd + column, mask=inside, other=0.0)
        gamma = tl.load(weight + column, mask=inside, other=0.0)
        offset = tl.load(bias + column, mask=inside, other=0.0)
        mean_dz = tl.load(d_bias + column, mask=inside, other=0.0) / pixels
        mean_product = tl.load(d_weight + column, mask=inside, other=0.0) / pixels
        valid = (row < pixels)[:, None] & inside[None, :]
        place = row.to(tl.int64)[:, None] * channels + column[None, :]
        gradient = tl.load(dz + place, mask=valid, other=0.0).to(tl.float32)
        normal = tl.load(x + place, mask=valid, other=0.0).to(tl.float32)
        normal = (normal - center[None, :]) * scale[None, :]
        if RELU and not ADDS:
            output = normal * gamma[None, :] + offset[None, :]
            gradient = tl.where(output > 0.0, gradient, 0.0)
        value = gradient - mean_dz[None, :] - normal * mean_product[None, :]
        value *= (scale * gamma)[None, :]
        tl.store(dx + place, value.to(dx.dtype.element_ty), mask=valid)


class Shape:
    """The division of a tensor of M pixels and C channels among the programs of a kernel."""

    def __init__(self, x_NCHW: Tensor) -> None:
        n, self.channels, height, width = x_NCHW.shape
        self.pixels = n * height * width
        self.tiles = (-(-self.pixels // ROWS), -(-self.channels // COLUMNS))
        tiles = -(-self.tiles[0] * self.tiles[1] // PROGRAMS)  # of a part, one after the other
        self.each = tiles * ROWS
        self.parts = -(-self.pixels // self.each)
        self.sums = (self.parts, self.tiles[1])
        self.totals = (-(-self.channels // TOTALLED),)
        self.tile: dict[str, int] = {"ROWS": ROWS, "COLUMNS": COLUMNS, "num_warps": WARPS}
        self.total: dict[str, int] = {"SUMMED": SUMMED, "COLUMNS": TOTALLED, "num_warps": WARPS}

    def partial_sums(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return room for two sums of each part, float32 (parts, C)."""
        made = torch.empty((2, self.parts, self.channels), dtype=torch.float32, device=device)
        return made[0], made[1]


class NormActivation(torch.autograd.Function):
    """relu(batch_norm(x) + shortcut), in training; see `norm_activation`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None,
        running: tuple[Tensor, Tensor], eps: float, momentum: float, relu: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return y twice: its uses get separate gradients, which backward adds as it reads them."""
        x = in_channels_last(x)
        shortcut = None if shortcut is None else in_channels_last(shortcut)
        shape = Shape(x)
        y, (sums, squares) = torch.empty_like(x), shape.partial_sums(x.device)
        mean, rstd = torch.empty((2, shape.channels), dtype=torch.float32, device=x.device)
        with on_device(x):
            # shifted by the first pixel, so that the squares cancel less
            _sum_kernel[shape.sums](
                x, x, sums, squares, shape.pixels, shape.channels, shape.each, **shape.tile
            )
            _statistics_kernel[shape.totals](
                x, sums, squares, mean, rstd, *running, shape.parts, shape.pixels,
                shape.channels, eps, momentum, **shape.total,
            )  # fmt: skip
            _normalise_kernel[shape.tiles](
                x, shortcut, y, mean, rstd, weight, bias, shape.pixels, shape.channels,
                ADDS=shortcut is not None, RELU=relu, **shape.tile,
            )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, mean, rstd, None if shortcut is None else y)
        ctx.relu, ctx.adds = relu, shortcut is not None
        ctx.set_materialize_grads(False)
        return y, y.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dy_shortcut: Tensor | None) -> tuple:
        """Return the gradients of x, weight, bias and shortcut."""
        x, weight, bias, mean, rstd, y = ctx.saved_tensors
        if dy is None:
            dy, dy_shortcut = dy_shortcut, None
        assert dy is not None
        shape = Shape(x)
        dy = in_channels_last(dy)
        if dy_shortcut is not None:
            dy_shortcut = in_channels_last(dy_shortcut)
            if not ctx.adds:  # nowhere to write the sum that the last kernel needs
                dy, dy_shortcut = dy + dy_shortcut, None
        dx, (sums, products) = torch.empty_like(x), shape.partial_sums(x.device)
        dz = torch.empty_like(x) if ctx.adds else dy
        d_weight, d_bias = torch.empty((2, shape.channels), dtype=torch.float32, device=x.device)
        how = {"ADDS": ctx.adds, "RELU": ctx.relu, **shape.tile}
        with on_device(x):
            _sum_gradients_kernel[shape.sums](
                x, y, dy, dy_shortcut, dz, mean, rstd, weight, bias, sums, products, shape.pixels,
                shape.channels, shape.each, TWO=dy_shortcut is not None, **how,
            )  # fmt: skip
            _gradient_sums_kernel[shape.totals](
                sums, products, d_weight, d_bias, shape.parts, shape.channels, **shape.total
            )
            _input_gradient_kernel[shape.tiles](
                x, dz, dx, mean, rstd, weight, bias, d_weight, d_bias, shape.pixels,
                shape.channels, **how,
            )  # fmt: skip
        return dx, d_weight, d_bias, dz if ctx.adds else None, None, None, None, None


def in_channels_last(x_NCHW: Tensor) -> Tensor:
    """Return a tensor whose memory is (N, H, W, C) without gaps: M rows of C channels."""
    return x_NCHW.contiguous(memory_format=torch.channels_last)


def on_device(x: Tensor) -> Any:
    """Return the context in which kernels run on the GPU of `x`."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def norm_activation(
    x_NCHW: Tensor, norm: nn.BatchNorm2d, shortcut_NCHW: Tensor | None = None, relu: bool = True
) -> tuple[Tensor, Tensor]:
    """Return relu(norm(x) + shortcut) twice, for the two uses of a block's output.

    In training the statistics are the batch's, computed in float32, and the running ones are
    updated as `nn.BatchNorm2d` does. In evaluation PyTorch's own operations compute it.
    """
    if not norm.training:
        y = norm(x_NCHW)
        y = y if shortcut_NCHW is None else y + shortcut_NCHW
        y = F.relu(y) if relu else y
        return y, y
    running = norm.running_mean, norm.running_var
    return NormActivation.apply(
        x_NCHW, norm.weight, norm.bias, shortcut_NCHW, running, norm.eps, norm.momentum, relu
    )


class FusedResNet(nn.Module):
    """A ResNet of `model.py` whose norms, additions and ReLUs are `norm_activation`.

    It does not count `num_batches_tracked`, and ReLU's gradient at NaN is 0.
    """

    def __init__(self, model: ResNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, images_NCHW: Tensor) -> Tensor:
        """Return the logits (N, classes) of normalised images."""
        model = self.model
        x, _ = norm_activation(model.conv1(images_NCHW), model.bn1)
        x = shortcut = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for stage in model.stages:
            for block in stage:
                x, shortcut = self.block(block, x, shortcut)
        return model.head(x)

    def block(self, block: nn.Module, x: Tensor, shortcut: Tensor) -> tuple[Tensor, Tensor]:
        """Return a block's output, twice; `shortcut` is its input for the way around."""
        convs = sum(name.startswith("conv") for name, _ in block.named_children())
        if isinstance(block.downsample, nn.Conv2d):
            projected = block.downsample(shortcut)
            shortcut, _ = norm_activation(projected, block.downsample_bn, relu=False)
        for number in range(1, convs):
            conv, norm = getattr(block, f"conv{number}"), getattr(block, f"bn{number}")
            x, _ = norm_activation(conv(x), norm)
        conv, norm = getattr(block, f"conv{convs}"), getattr(block, f"bn{convs}")
        return norm_activation(conv(x), norm, shortcut)

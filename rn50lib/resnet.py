"""ResNet as data: stages, widths and strides, from which both backends build the same model.

v1 is He et al. 2015, arXiv:1512.03385. v1.5 moves the stride of a down-sampling bottleneck from its
first 1x1 convolution to its 3x3: same parameters, a little more work.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

STAGES = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
    152: ("bottleneck", (3, 8, 36, 3)),
}
VERSIONS = ("v1", "v1.5")
EXPANSION = {"basic": 1, "bottleneck": 4}


@dataclass(frozen=True)
class Conv:
    """A convolution without bias. Padding is symmetric, kernel // 2, in every backend."""

    name: str
    in_channels: int
    out_channels: int
    kernel: int
    stride: int = 1

    @property
    def padding(self) -> int:
        """Pixels of zeros on each side."""
        return self.kernel // 2

    @property
    def norm(self) -> str:
        """Name of the batch normalisation that follows: bn1 after conv1."""
        if self.name.endswith("downsample"):
            return self.name + "_bn"
        return self.name.replace("conv", "bn")

    def out_size(self, size: int) -> int:
        """Return the output's height (= width) in pixels for an input of `size` pixels."""
        return (size + 2 * self.padding - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class Block:
    """A residual block: its convolutions in order, and its shortcut's projection if it has one."""

    name: str
    convs: tuple[Conv, ...]
    downsample: Conv | None


@dataclass(frozen=True)
class Layer:
    """One layer, to count work and memory. Sizes are in pixels, `macs` per image."""

    name: str
    kind: str  # conv | batchnorm | relu | add | maxpool | avgpool | linear
    channels: int
    size: int
    macs: int
    parameters: int

    @property
    def activations(self) -> int:
        """Elements of this layer's output per image."""
        return self.channels * self.size * self.size


@dataclass(frozen=True)
class Network:
    """A ResNet. `stages` are the blocks of each stage, `width` the channels of the stem."""

    name: str
    version: str
    num_classes: int
    block: str
    stages: tuple[int, ...]
    width: int

    @property
    def stem(self) -> Conv:
        return Conv("conv1", 3, self.width, kernel=7, stride=2)

    @property
    def features(self) -> int:
        """Channels that go into the fully-connected layer."""
        return self.width * 2 ** (len(self.stages) - 1) * EXPANSION[self.block]

    def blocks(self) -> Iterator[Block]:
        """Yield the residual blocks in order. Only this function knows where the strides are."""
        channels = self.width
        for stage, count in enumerate(self.stages):
            width = self.width * 2**stage
            out = width * EXPANSION[self.block]
            for index in range(count):
                name = f"layer{stage + 1}.{index}"
                stride = 2 if stage > 0 and index == 0 else 1
                if self.block == "bottleneck":
                    first, second = (stride, 1) if self.version == "v1" else (1, stride)
                    convs: tuple[Conv, ...] = (
                        Conv(f"{name}.conv1", channels, width, 1, first),
                        Conv(f"{name}.conv2", width, width, 3, second),
                        Conv(f"{name}.conv3", width, out, 1),
                    )
                else:  # a basic block has one place for the stride: v1 and v1.5 are the same
                    convs = (
                        Conv(f"{name}.conv1", channels, width, 3, stride),
                        Conv(f"{name}.conv2", width, out, 3),
                    )
                project = stride != 1 or channels != out
                shortcut = Conv(f"{name}.downsample", channels, out, 1, stride) if project else None
                yield Block(name, convs, shortcut)
                channels = out

    def convolutions(self) -> Iterator[Conv]:
        """Yield all convolutions in order."""
        yield self.stem
        for block in self.blocks():
            yield from block.convs
            if block.downsample:
                yield block.downsample

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array: conv OIHW, fc (out, in), batch norm (channels,)."""
        shapes: dict[str, tuple[int, ...]] = {}
        for conv in self.convolutions():
            weight = (conv.out_channels, conv.in_channels, conv.kernel, conv.kernel)
            shapes[f"{conv.name}.weight"] = weight
            for part in ("gamma", "beta", "running_mean", "running_var"):
                shapes[f"{conv.norm}.{part}"] = (conv.out_channels,)
        shapes["fc.weight"] = (self.num_classes, self.features)
        shapes["fc.bias"] = (self.num_classes,)
        return shapes

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the arrays that are trained: `arrays()` without the running statistics."""
        return {name: s for name, s in self.arrays().items() if ".running_" not in name}

    @property
    def num_parameters(self) -> int:
        """Number of trained values."""
        return sum(math.prod(shape) for shape in self.parameters().values())

    def initial_arrays(self, seed: int = 0, zero_gamma: bool = False) -> dict[str, np.ndarray]:
        """Return initial float32 arrays, the same for both backends.

        Weights are He normal over the fan-in (He et al. 2015, arXiv:1502.01852), batch norms the
        identity. With `zero_gamma` the last batch norm of each block is zero, so that the block
        starts as its shortcut (Goyal et al. 2017, section 5.1).
        """
        rng = np.random.default_rng(np.random.SeedSequence([seed, 0x1217]))
        last = {block.convs[-1].norm for block in self.blocks()}
        arrays: dict[str, np.ndarray] = {}
        for name, shape in self.arrays().items():
            owner, _, part = name.rpartition(".")
            if part == "weight":
                std = np.float32(math.sqrt(2 / math.prod(shape[1:])))
                arrays[name] = rng.standard_normal(shape, np.float32) * std
            else:
                begins_at_0 = zero_gamma and owner in last
                one = part == "running_var" or (part == "gamma" and not begins_at_0)
                arrays[name] = np.full(shape, one, np.float32)
        return arrays

    def layers(self, image_size: int) -> Iterator[Layer]:
        """Yield every layer in order for square images of `image_size` pixels."""

        def conv_norm(conv: Conv, size: int, relu: bool) -> Iterator[Layer]:
            out, n = conv.out_size(size), conv.out_channels
            weights = n * conv.in_channels * conv.kernel**2
            yield Layer(conv.name, "conv", n, out, weights * out * out, weights)
            yield Layer(conv.norm, "batchnorm", n, out, 0, 2 * n)
            if relu:
                yield Layer(conv.norm + ".relu", "relu", n, out, 0, 0)

        yield from conv_norm(self.stem, image_size, relu=True)
        size = (self.stem.out_size(image_size) + 2 - 3) // 2 + 1
        yield Layer("maxpool", "maxpool", self.width, size, 0, 0)
        for block in self.blocks():
            into = size
            for i, conv in enumerate(block.convs):
                yield from conv_norm(conv, size, relu=i < len(block.convs) - 1)
                size = conv.out_size(size)
            if block.downsample:
                yield from conv_norm(block.downsample, into, relu=False)
            out = block.convs[-1].out_channels
            yield Layer(block.name + ".add", "add", out, size, 0, 0)
            yield Layer(block.name + ".relu", "relu", out, size, 0, 0)
        yield Layer("avgpool", "avgpool", self.features, 1, 0, 0)
        fc = self.features * self.num_classes
        yield Layer("fc", "linear", self.num_classes, 1, fc, fc + self.num_classes)

    def macs(self, image_size: int) -> int:
        """Return the multiply-adds of a forward pass per image: 4.1e9 for ResNet-50 at 224."""
        return sum(layer.macs for layer in self.layers(image_size))

    def train_flops(self, image_size: int) -> int:
        """Return the FLOP to train on one image: 2 per multiply-add, backward twice forward."""
        return 6 * self.macs(image_size)

    def to_json(self) -> str:
        """Return the content of `<prefix>-symbol.json`."""
        fields = dict(vars(self))
        head = {"format": "rn50-symbol-1", "model": fields.pop("name")}
        return json.dumps(head | fields, indent=4) + "\n"

    @classmethod
    def from_symbol(cls, symbol: dict) -> Network:
        """Return the network of such a file. Raise ValueError for other content."""
        found = symbol.get("format") if isinstance(symbol, dict) else None
        if found != "rn50-symbol-1":
            raise ValueError(f"format is {found!r}, not 'rn50-symbol-1'")
        try:
            stages, width = tuple(map(int, symbol["stages"])), int(symbol["width"])
            classes, version = int(symbol["num_classes"]), symbol["version"]
            net = cls(symbol["model"], version, classes, symbol["block"], stages, width)
            known = [tiny(classes, version), *(resnet(n, classes, version) for n in STAGES)]
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(str(error)) from error
        if net not in known or classes < 1:
            raise ValueError(f"it is none of rn50's networks, but {net}")
        return net


def resnet(depth: int = 50, num_classes: int = 1000, version: str = "v1.5") -> Network:
    """Return ResNet-18, 34, 50, 101 or 152. Raise KeyError or ValueError for anything else."""
    if version not in VERSIONS:
        raise ValueError(f"version is {version!r}; it must be one of {', '.join(VERSIONS)}")
    block, stages = STAGES[depth]
    return Network(f"resnet{depth}", version, num_classes, block, stages, width=64)


def tiny(num_classes: int = 12, version: str = "v1.5") -> Network:
    """Return a network with one bottleneck per stage and 16 channels, for tests and quick runs."""
    return Network("resnet-tiny", version, num_classes, "bottleneck", (1, 1, 1, 1), width=16)

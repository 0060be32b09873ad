"""ResNet-50 as others write it, and how to import torchvision. Never imports rn50lib."""

from __future__ import annotations

import contextlib

from torch import Tensor, nn
from torch import library as operators
from torch.nn import functional as F


@contextlib.contextmanager
def missing_operators_allowed():
    """Let torchvision register shapes of operators that are not there.

    Its wheel on the package index is a CUDA build. Beside a CPU build of PyTorch its compiled
    operators do not load, but its models and transforms are pure Python and need none of them.
    """
    register = operators.register_fake

    def tolerant(op, *args, **kwargs):
        if isinstance(op, str) and op.startswith("torchvision::"):
            return lambda function: function
        return register(op, *args, **kwargs)

    operators.register_fake = tolerant
    try:
        yield
    finally:
        operators.register_fake = register


class Bottleneck(nn.Module):
    """A block of ResNet-50 v1.5, by torchvision's names."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block for (N, C, H, W)."""
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet50(nn.Module):
    """ResNet-50 v1.5 for 1,000 classes; its state dict is torchvision's and timm's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for number, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
            stage = []
            for i in range(blocks):
                stage.append(Bottleneck(inputs, width, 2 if i == 0 and number > 1 else 1))
                inputs = 4 * width
            setattr(self, f"layer{number}", nn.Sequential(*stage))
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, 1000) of images (N, 3, H, W)."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

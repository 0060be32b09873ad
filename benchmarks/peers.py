"""Other people's ResNet-50, as their users run it. Never imports rn50lib.

timm needs torchvision, whose wheel on the package index is a CUDA build. Beside a CPU build of
PyTorch its compiled operators do not load, but its models are pure Python and need none of them.
"""

from __future__ import annotations

import contextlib

import torch
from torch import library as operators


@contextlib.contextmanager
def missing_operators_allowed():
    """Let torchvision register shapes of operators that are not there."""
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


def timm_resnet50(num_classes: int = 1000) -> torch.nn.Module:
    """timm's `resnet50`, which is v1.5, with random weights."""
    with missing_operators_allowed():
        import timm
    return timm.create_model("resnet50", num_classes=num_classes)

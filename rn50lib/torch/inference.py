"""A network as it predicts: fewer passes over memory than in training, the same logits.

With fixed running statistics a batch norm is a scale and a shift for each channel, and both can be
put into the convolution before it.
"""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rn50lib.torch import cpu as onednn
from rn50lib.torch.model import ResNet


def fold_batch_norms(model: ResNet, dtype: torch.dtype) -> ResNet:
    """A copy of the model for predicting: every batch norm is a part of the convolution before it.

    gamma (W x - mean) / std + beta = (gamma / std W) x + (beta - gamma / std mean)

    The convolutions compute in `dtype`, the last layer in float32.
    """
    folded = copy.deepcopy(model).eval()
    for module in list(folded.modules()):
        for (conv_name, conv), (bn_name, bn) in pairwise(list(module.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(bn, nn.BatchNorm2d):
                fused = fuse_conv_bn_eval(conv, bn)
                setattr(module, conv_name, fused.to(dtype, memory_format=torch.channels_last))
                setattr(module, bn_name, nn.Identity())
    return folded


class Predictor:
    """Logits of a ResNet at its present weights, which are copied, computed in `dtype`."""

    @torch.inference_mode()
    def __init__(self, model: ResNet, dtype: torch.dtype) -> None:
        folded = fold_batch_norms(model, dtype)
        one_pass = onednn.has_one_pass(folded.conv1.weight.device.type, dtype)
        self.model = onednn.OnePass(folded) if one_pass else folded
        self.dtype = dtype

    @torch.inference_mode()
    def __call__(self, images_NCHW: Tensor) -> Tensor:
        """Float32 logits (N, classes) of normalised images."""
        return self.model(images_NCHW.to(self.dtype, memory_format=torch.channels_last))

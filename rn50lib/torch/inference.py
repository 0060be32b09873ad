"""Prediction: the network with folded batch norms, and engines for it (the field `engine`).

Each engine gets the trained model and a precision, and returns what computes the float32 logits (N,
classes) of normalised images (N, 3, size, size), as `Predictor` does. `--override
predictor=FILE:FUNCTION` plugs in any other, such as ONNX Runtime or TensorRT.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rn50lib.errors import UserError
from rn50lib.recipe import MEAN, STD
from rn50lib.torch.model import ResNet

NEEDS = ("onnx", "onnxscript", "openvino")  # the first two write its ONNX file

Compute = Callable[[Tensor], Tensor]


def fold_batch_norms(model: ResNet, dtype: torch.dtype) -> ResNet:
    """Return a copy of the model whose batch norms are part of the convolutions before them.

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
    """A ResNet with a copy of the present weights that computes logits in `dtype`."""

    @torch.inference_mode()
    def __init__(self, model: ResNet, dtype: torch.dtype) -> None:
        self.model, self.dtype = fold_batch_norms(model, dtype), dtype

    @torch.inference_mode()
    def __call__(self, images_NCHW: Tensor) -> Tensor:
        """Return float32 logits (N, classes) of normalised images."""
        return self.model(images_NCHW.to(self.dtype, memory_format=torch.channels_last))


def compiled(model: ResNet, dtype: torch.dtype) -> Compute:
    """Return the network with folded batch norms, compiled by PyTorch for each shape.

    Compiling takes seconds to a minute; PyTorch keeps the kernels in its own cache.
    """
    predictor = Predictor(model, dtype)
    predictor.model.compile(dynamic=False)
    return predictor


def openvino(model: ResNet, dtype: torch.dtype) -> Compute:
    """Return the network in OpenVINO, loaded from one ONNX file for each image size.

    Raises UserError if its packages are missing, or it cannot run on this device or in `dtype`.
    PyTorch is held to one thread: its waiting threads would take time from OpenVINO's.
    """
    if missing := [package for package in NEEDS if find_spec(package) is None]:
        raise UserError(f"--engine openvino: `pip install {' '.join(missing)}` first")
    if next(model.parameters()).is_cuda:
        raise UserError("--engine openvino runs on the processor: set CUDA_VISIBLE_DEVICES=")
    if dtype == torch.float16:
        raise UserError(
            "--engine openvino computes in float32 or bfloat16, not float16: use --engine torch, or"
            " --dtype float32"
        )
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == torch.bfloat16 else "f32",
    }
    torch.set_num_threads(1)

    @cache
    def network(size: int) -> Any:
        core = openvino_core()
        return core.compile_model(core.read_model(onnx_of(model, size)), "CPU", settings)

    def compute(images_NCHW: Tensor) -> Tensor:
        images_NHWC = images_NCHW.permute(0, 2, 3, 1).contiguous().numpy()  # no copy: channels_last
        return torch.from_numpy(network(images_NHWC.shape[1])(images_NHWC)[0])

    return compute


@cache
def openvino_core() -> Any:
    """Return OpenVINO's core, which lives as long as the process.

    Its plug-in gives the thread that loads it a stack for signal handlers. If the last reference is
    dropped in another thread, that stack is freed but stays in use: the next signal that Python
    handles, such as the SIGCHLD of a `DataLoader`, kills the process.
    """
    import openvino as ov

    return ov.Core()


class FromMemoryOrder(nn.Module):
    """A network that takes images (N, size, size, 3): normalised ones, or decoded ones, uint8 RGB.

    For decoded ones, the first convolution divides by the standard deviations, and the mean is
    subtracted from whole planes: two passes less over the pixels, and faster ones.
    """

    def __init__(self, model: ResNet, decoded: bool) -> None:
        super().__init__()
        self.model, self.decoded = fold_batch_norms(model, torch.float32), decoded
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))
        if decoded:
            with torch.no_grad():
                self.model.conv1.weight /= torch.tensor(STD).view(3, 1, 1)

    def forward(self, images_NHWC: Tensor) -> Tensor:
        images_NCHW = images_NHWC.permute(0, 3, 1, 2)
        return self.model(images_NCHW.float() - self.mean if self.decoded else images_NCHW)


def onnx_of(model: ResNet, size: int, decoded: bool = False) -> bytes:
    """Return an ONNX file's content, from any number of images to `logits`: `FromMemoryOrder`."""
    images = torch.zeros(2, size, size, 3, dtype=torch.uint8 if decoded else torch.float32)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports that torchvision is absent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about PyTorch's own calls
        program = torch.onnx.export(
            FromMemoryOrder(model, decoded).eval(), (images,), dynamo=True,
            dynamic_shapes=({0: "N"},), verbose=False, input_names=["images"],
            output_names=["logits"],
        )  # fmt: skip
    assert program is not None
    return program.model_proto.SerializeToString()


BUILDERS = {"compile": compiled, "openvino": openvino}

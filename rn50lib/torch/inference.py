"""Prediction: the network with folded batch norms, and engines for it (the field `engine`).

Each engine gets the trained model and a precision, and returns what computes the float32 logits (N,
classes) of normalised images (N, 3, size, size), as `Predictor` does. Those outside of PyTorch take
the weights from one ONNX file. `--override predictor=FILE:FUNCTION` plugs in any other, such as
TensorRT.
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

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rn50lib.errors import UserError
from rn50lib.recipe import MEAN, STD
from rn50lib.torch.model import ResNet

NEEDS = ("onnx", "onnxscript")  # to write the ONNX file

Compute = Callable[[Tensor], Tensor]
Run = Callable[[np.ndarray], np.ndarray]  # images (N, size, size, 3) to logits
Load = Callable[[bytes], Run]  # an ONNX file's content


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


# --- engines outside of PyTorch -------------------------------------------------------------------


def onnxruntime(model: ResNet, dtype: torch.dtype) -> Compute:
    """Return the network in ONNX Runtime, in float32. Raises UserError."""
    threads = torch.get_num_threads()

    def load(file: bytes) -> Run:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return lambda images_NHWC: session.run(["logits"], {"images": images_NHWC})[0]

    return from_onnx("onnxruntime", model, dtype, [torch.float32], load)


def openvino(model: ResNet, dtype: torch.dtype) -> Compute:
    """Return the network in OpenVINO, in float32 or bfloat16. Raises UserError."""
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == torch.bfloat16 else "f32",
    }

    def load(file: bytes) -> Run:
        core = openvino_core()
        network = core.compile_model(core.read_model(file), "CPU", settings)
        return lambda images_NHWC: network(images_NHWC)[0]

    return from_onnx("openvino", model, dtype, [torch.float32, torch.bfloat16], load)


@cache
def openvino_core() -> Any:
    """Return OpenVINO's core, which lives as long as the process.

    Its plug-in gives the thread that loads it a stack for signal handlers. If the last reference is
    dropped in another thread, that stack is freed but stays in use: the next signal that Python
    handles, such as the SIGCHLD of a `DataLoader`, kills the process.
    """
    import openvino as ov

    return ov.Core()


def from_onnx(
    name: str, model: ResNet, dtype: torch.dtype, known: list[torch.dtype], load: Load
) -> Compute:
    """Return an engine that loads one ONNX file for each image size.

    Raises UserError if its package is missing, or it cannot run on this device or in `dtype`.
    PyTorch is held to one thread: its waiting threads would take time from the engine's.
    """
    missing = [package for package in (*NEEDS, name) if find_spec(package) is None]
    if missing:
        raise UserError(f"--engine {name}: `pip install {' '.join(missing)}` first")
    if next(model.parameters()).is_cuda:
        raise UserError(f"--engine {name} runs on the processor: set CUDA_VISIBLE_DEVICES=")
    if dtype not in known:
        names = " or ".join(map(str, known)).replace("torch.", "")
        found = str(dtype).removeprefix("torch.")
        raise UserError(
            f"--engine {name} computes in {names}, not {found}: use --engine torch, or --dtype"
            f" {names.split()[0]}"
        )
    network = cache(lambda size: load(onnx_of(model, size)))

    def compute(images_NCHW: Tensor) -> Tensor:
        images_NHWC = images_NCHW.permute(0, 2, 3, 1).contiguous().numpy()  # no copy: channels_last
        return torch.from_numpy(network(images_NHWC.shape[1])(images_NHWC))

    torch.set_num_threads(1)
    return compute


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


BUILDERS = {"compile": compiled, "onnxruntime": onnxruntime, "openvino": openvino}

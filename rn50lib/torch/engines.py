"""Engines for inference: the field `engine`.

Each gets the trained model and a precision, and returns what computes the float32 logits (N,
classes) of normalised images (N, 3, size, size), as `inference.Predictor` does. All take the
weights from one ONNX file with batch norms folded. `--override predictor=FILE:FUNCTION` plugs in
any other, such as TensorRT.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rn50lib.errors import UserError
from rn50lib.recipe import MEAN, STD
from rn50lib.resnet import Network
from rn50lib.torch.inference import Predictor, fold_batch_norms
from rn50lib.torch.model import ResNet, load_arrays

NEEDS = ("onnx", "onnxscript")  # to write the ONNX file
CALLS = 8  # by which "auto" times an engine

Compute = Callable[[Tensor], Tensor]


def onnxruntime(model: ResNet, dtype: torch.dtype) -> Compute:
    """Return the network in ONNX Runtime, in float32. Raises UserError."""
    check("onnxruntime", model, dtype, (torch.float32,))
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()

    @cache
    def session(size: int) -> ort.InferenceSession:
        file = onnx_of(model, size)
        return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def compute(images_NCHW: Tensor) -> Tensor:
        images = {"images": in_memory_order(images_NCHW)}
        return torch.from_numpy(session(images_NCHW.shape[-1]).run(["logits"], images)[0])

    return alone(compute)


def openvino(model: ResNet, dtype: torch.dtype) -> Compute:
    """Return the network in OpenVINO, in float32 or bfloat16. Raises UserError."""
    check("openvino", model, dtype, (torch.float32, torch.bfloat16))
    import openvino as ov

    core = openvino_core()
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == torch.bfloat16 else "f32",
    }

    @cache
    def network(size: int) -> ov.CompiledModel:
        return core.compile_model(core.read_model(onnx_of(model, size)), "CPU", settings)

    def compute(images_NCHW: Tensor) -> Tensor:
        return torch.from_numpy(network(images_NCHW.shape[-1])(in_memory_order(images_NCHW))[0])

    return alone(compute)


@cache
def openvino_core() -> Any:
    """Return OpenVINO's core, which lives as long as the process.

    Its plug-in gives the thread that loads it a stack for signal handlers. If the last reference is
    dropped in another thread, that stack is freed but stays in use: the next signal that Python
    handles, such as the SIGCHLD of a `DataLoader`, kills the process.
    """
    import openvino as ov

    return ov.Core()


def compiled(model: ResNet, dtype: torch.dtype) -> Compute:
    """Return the network with folded batch norms, compiled by PyTorch for each shape.

    Compiling takes seconds to a minute; PyTorch keeps the kernels in its own cache.
    """
    model = torch.compile(fold_batch_norms(model, dtype), dynamic=False)

    @torch.inference_mode()
    def compute(images_NCHW: Tensor) -> Tensor:
        return model(images_NCHW.to(dtype, memory_format=torch.channels_last))

    return compute


def alone(compute: Compute) -> Compute:
    """Hold PyTorch to one thread: its waiting threads would take time from an engine's."""
    torch.set_num_threads(1)
    return compute


def auto(model: ResNet, dtype: torch.dtype) -> Compute:
    """Return the fastest installed engine, as timed on the first batch."""
    chosen: list[Compute] = []

    def compute(images_NCHW: Tensor) -> Tensor:
        if not chosen:
            chosen.append(fastest(model, dtype, images_NCHW))
        return chosen[0](images_NCHW)

    return compute


def fastest(model: ResNet, dtype: torch.dtype, images_NCHW: Tensor) -> Compute:
    """Return the fastest engine for batches like this one, and print all times."""
    builders: dict[str, Callable[[ResNet, torch.dtype], Compute]]
    builders = {"torch": Predictor, "onnxruntime": onnxruntime, "openvino": openvino}
    if images_NCHW.is_cuda:
        builders = {"torch": Predictor, "compile": compiled}
    built, ms, threads = {}, {}, torch.get_num_threads()
    for name, build in builders.items():
        with contextlib.suppress(UserError):  # not installed, or not for this precision
            built[name] = build(model, dtype)
            ms[name] = best_ms(built[name], images_NCHW)
            torch.set_num_threads(threads)
    best = min(ms, key=ms.__getitem__)
    times = ", ".join(f"{name} {value:.1f} ms" for name, value in ms.items())
    print(f"engine {best}: a batch of {len(images_NCHW)} takes {times}", file=sys.stderr)
    return alone(built[best]) if best in ("onnxruntime", "openvino") else built[best]


BUILDERS = {"compile": compiled, "onnxruntime": onnxruntime, "openvino": openvino, "auto": auto}


def best_ms(compute: Compute, images_NCHW: Tensor) -> float:
    """Return the milliseconds of the fastest of several calls for a batch.

    The threads of another engine, which wait for a while after its last call, slow the first ones.
    """
    seconds = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        compute(images_NCHW)
        if images_NCHW.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return 1000 * min(seconds)


def check(name: str, model: ResNet, dtype: torch.dtype, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise UserError if an engine is not installed, or not for this device or precision."""
    missing = [package for package in (*NEEDS, name) if find_spec(package) is None]
    if missing:
        raise UserError(f"--engine {name}: `pip install {' '.join(missing)}` first")
    if next(model.parameters()).is_cuda:
        raise UserError(f"--engine {name} runs on the processor: set CUDA_VISIBLE_DEVICES=")
    if dtype not in dtypes:
        names = " or ".join(str(known).removeprefix("torch.") for known in dtypes)
        found = str(dtype).removeprefix("torch.")
        raise UserError(f"--engine {name} computes in {names}, not {found}: use --engine torch")


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


def serving(net: Network, arrays: dict[str, np.ndarray], size: int) -> bytes:
    """Return an ONNX file's content, from decoded images to logits."""
    model = ResNet(net)
    load_arrays(model, arrays)
    images = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    return to_onnx(FromMemoryOrder(model, decoded=True), images)


def onnx_of(model: ResNet, size: int) -> bytes:
    """Return an ONNX file's content, from normalised images (N, size, size, 3) to logits."""
    return to_onnx(FromMemoryOrder(model, decoded=False), torch.zeros(2, size, size, 3))


def in_memory_order(images_NCHW: Tensor) -> np.ndarray:
    """Return images as (N, size, size, 3), as the training step has them in memory: no copy."""
    return images_NCHW.permute(0, 2, 3, 1).contiguous().numpy()


def to_onnx(model: nn.Module, images: Tensor) -> bytes:
    """Return an ONNX file's content: from `images` like these, of any number, to `logits`."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports that torchvision is absent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about PyTorch's own calls
        program = torch.onnx.export(
            model.eval(), (images,), dynamo=True, dynamic_shapes=({0: "N"},), verbose=False,
            input_names=["images"], output_names=["logits"],
        )  # fmt: skip
    assert program is not None
    return program.model_proto.SerializeToString()

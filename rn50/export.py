"""`rn50 export`: a checkpoint for other programs.

    rn50 export PREFIX EPOCH -o model.onnx  # for ONNX Runtime, TensorRT, ...
    rn50 export PREFIX EPOCH -o model.pth   # for torchvision and timm; or model.safetensors

The ONNX model takes images as validation prepares them, uint8 (N, size, size, 3) RGB, under the
name `images`, normalises them, and returns float32 `logits` (N, classes). A state dict holds the
weights under the names of torchvision and timm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib import checkpoint
from rn50lib.errors import UserError
from rn50lib.files import check_writable, write_file
from rn50lib.recipe import BN_EPS, MEAN, STD
from rn50lib.resnet import Conv, Network

WEIGHTS = (".pth", ".pt", ".safetensors")
ONNX_OPSET = 17
ONNX_IR = 8  # the file format that went with that opset: older readers refuse a newer one


@dataclass(frozen=True)
class Exported:
    """A network with batch norm folded: `convs` maps a convolution to (weight OIHW, bias)."""

    net: Network
    size: int
    convs: Mapping[str, tuple[np.ndarray, np.ndarray]]
    fc: tuple[np.ndarray, np.ndarray]


def folded(net: Network, arrays: Mapping[str, np.ndarray], size: int) -> Exported:
    """Fold batch norm: gamma (W x - mean) / std + beta is W' x + b' with W' = gamma / std W."""
    convs = {}
    for conv in net.convolutions():
        gamma, beta, mean, var = (
            arrays[f"{conv.norm}.{part}"].astype(np.float64)
            for part in ("gamma", "beta", "running_mean", "running_var")
        )
        scale = gamma / np.sqrt(var + BN_EPS)
        weight = arrays[f"{conv.name}.weight"] * scale[:, None, None, None]
        bias = beta - mean * scale
        convs[conv.name] = (weight.astype(np.float32), bias.astype(np.float32))
    return Exported(net, size, convs, (arrays["fc.weight"], arrays["fc.bias"]))


def to_onnx(model: Exported) -> bytes:
    """Return an ONNX file's content. Raises UserError if onnx is not installed."""
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise UserError("an ONNX file needs the package onnx: `pip install onnx`") from error
    nodes: list[Any] = []
    weights: list[Any] = []

    def constant(name: str, array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def convolve(conv: Conv, x: str) -> str:
        weight, bias = model.convs[conv.name]
        named = [constant(f"{conv.name}.weight", weight), constant(f"{conv.name}.bias", bias)]
        window = {"kernel_shape": [conv.kernel] * 2, "strides": [conv.stride] * 2}
        return add("Conv", [x, *named], conv.name, pads=[conv.padding] * 4, **window)

    x = add("Cast", ["images"], "pixels", to=TensorProto.FLOAT)
    x = add("Sub", [x, constant("mean", np.array(MEAN, np.float32))], "centred")
    x = add("Div", [x, constant("std", np.array(STD, np.float32))], "normalised")
    x = add("Transpose", [x], "NCHW", perm=[0, 3, 1, 2])
    x = add("Relu", [convolve(model.net.stem, x)], "stem.relu")
    x = add("MaxPool", [x], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block in model.net.blocks():
        inner = x
        for conv in block.convs[:-1]:
            inner = add("Relu", [convolve(conv, inner)], f"{conv.name}.relu")
        inner = convolve(block.convs[-1], inner)
        shortcut = convolve(block.downsample, x) if block.downsample else x
        x = add("Relu", [add("Add", [inner, shortcut], f"{block.name}.add")], f"{block.name}.relu")
    x = add("Flatten", [add("GlobalAveragePool", [x], "avgpool")], "features")
    weight, bias = model.fc
    add("Gemm", [x, constant("fc.weight", weight), constant("fc.bias", bias)], "logits", transB=1)
    images: list[str | int | None] = ["N", model.size, model.size, 3]
    graph = helper.make_graph(
        nodes,
        model.net.name,
        [helper.make_tensor_value_info("images", TensorProto.UINT8, images)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", len(bias)])],
        weights,
    )
    opset = [helper.make_opsetid("", ONNX_OPSET)]
    made = helper.make_model(graph, opset_imports=opset, producer_name="rn50lib")
    made.ir_version = ONNX_IR
    onnx.checker.check_model(made)
    return made.SerializeToString()


def to_state_dict(net: Network, arrays: Mapping[str, np.ndarray], suffix: str) -> bytes:
    """Return a file's content for torchvision and timm, which have ResNets of v1.5.

    Raises UserError for a network that they don't have.
    """
    if net.name == "resnet-tiny" or (net.version == "v1" and net.block == "bottleneck"):
        raise UserError(
            f"torchvision has no {net.name} {net.version}: its ResNets are v1.5, of 18 to 152"
            " layers; an output that ends in .onnx takes any"
        )
    from rn50.state_dict import serialise

    return serialise({name: arrays[name] for name in net.arrays()}, suffix)


def export(prefix: str | Path, epoch: int, output: Path) -> None:
    """Write a checkpoint in the format of the output's suffix. Raises UserError."""
    from rn50.predict import trained_as

    if output.suffix not in (".onnx", *WEIGHTS):
        raise UserError(f"--output {output}: name a file that ends in .onnx, {', '.join(WEIGHTS)}")
    done = trained_as(prefix, epoch)
    net, source = done.to_network(), checkpoint.path(prefix, epoch)
    arrays = checkpoint.load(prefix, epoch).arrays
    checkpoint.check_shapes(arrays, net, source)
    check_writable(output, "--output")
    if output.exists() and output.samefile(source):
        raise UserError(f"--output {output} is the checkpoint itself: name another file")
    if output.suffix == ".onnx":
        content = to_onnx(folded(net, arrays, done.image_shape))
    else:
        content = to_state_dict(net, arrays, output.suffix)
    write_file(output, content)


def main(argv: list[str]) -> int:
    """Run `rn50 export`; return the exit status."""
    from rn50.parser import Parser

    parser = Parser(prog="rn50 export", description="A checkpoint for other programs.")
    parser.add_argument("prefix", help="the --model-prefix of the training run")
    parser.add_argument("epoch", type=int, nargs="?", help="the epoch (default: the last)")
    parser.add_argument(
        "-o", "--output", type=Path, required=True,
        help="FILE.onnx; or FILE.pth or FILE.safetensors, weights for torchvision and timm",
    )  # fmt: skip
    args = parser.parse_args(argv)
    epoch = args.epoch if args.epoch is not None else max(checkpoint.epochs(args.prefix), default=0)
    export(args.prefix, epoch, args.output)
    print(args.output)
    return 0

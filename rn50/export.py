"""`rn50 export`: a checkpoint for other programs.

    rn50 export PREFIX -o model.onnx         # for ONNX Runtime, OpenVINO, TensorRT, ...
    rn50 export PREFIX EPOCH -o model.pth    # for torchvision and timm; or model.safetensors

The ONNX model takes images as validation prepares them, uint8 (N, size, size, 3) RGB, under the
name `images`, normalises them, and returns float32 `logits` (N, classes); its metadata has the
classes' names as JSON, under `classes`, and the sizes to which validation resizes and crops, under
`resize` (the shorter side) and `crop`. A state dict holds the weights under the names of
torchvision and timm; a .safetensors file has the classes in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from data_prep.command_line import Parser
from rn50.common import Output, contains, find_checkpoint
from rn50.installed import has
from rn50lib import checkpoint
from rn50lib.config import TrainConfig
from rn50lib.data.classes import Classes
from rn50lib.errors import UserError
from rn50lib.resnet import Network

MARK = "rn50 export"  # in each file that `export` wrote
WEIGHTS = (".pth", ".pt", ".safetensors")


def signed(content: bytes, classes: Classes, config: TrainConfig) -> bytes:
    """Return an ONNX file's content with classes and sizes in its metadata, and our mark."""
    import onnx

    model = onnx.load_from_string(content)
    sizes = {"resize": str(config.val_resize), "crop": str(config.image_shape)}
    onnx.helper.set_model_props(model, {"classes": json.dumps(classes.to_dict()), **sizes})
    model.producer_name = MARK
    return model.SerializeToString()


def to_state_dict(
    net: Network, arrays: Mapping[str, np.ndarray], suffix: str, classes: Classes
) -> bytes:
    """Return a file's content for torchvision and timm, which have ResNets of v1.5.

    Raises UserError for a network that they don't have.
    """
    if net.name == "resnet-tiny" or (net.version == "v1" and net.block == "bottleneck"):
        raise UserError(
            f"torchvision has no {net.name} {net.version}: its ResNets are v1.5, of 18 to 152"
            " layers; an output that ends in .onnx takes any"
        )
    from rn50.state_dict import serialise

    arrays = {name: arrays[name] for name in net.arrays()}
    return serialise(arrays, suffix, MARK, classes)


def export(prefix: str | Path, epoch: int, output: Path) -> None:
    """Write a checkpoint in the format of the output's suffix. Raises UserError."""
    from rn50.predict import trained_as

    if output.suffix not in (".onnx", *WEIGHTS):
        raise UserError(f"--output {output}: name a file that ends in .onnx, {', '.join(WEIGHTS)}")
    if output.suffix == ".onnx":  # before the weights are read
        if missing := [package for package in ("onnx", "onnxscript") if not has(package)]:
            raise UserError(f"an ONNX file needs packages: `pip install {' '.join(missing)}`")
    to = Output("--output", output, "a file of rn50 export", contains(MARK.encode()))
    config = trained_as(prefix, epoch)
    net, source = config.to_network(), checkpoint.path(prefix, epoch)
    found = checkpoint.load(prefix, epoch)
    arrays, classes = found.arrays, found.classes
    assert classes is not None  # `load` states at least their number
    checkpoint.check_shapes(arrays, net, source)
    if output.suffix == ".onnx":
        from rn50lib.torch.inference import onnx_of
        from rn50lib.torch.model import ResNet, load_arrays

        model = ResNet(net)
        load_arrays(model, arrays)
        content = signed(onnx_of(model, config.image_shape, decoded=True), classes, config)
    else:
        content = to_state_dict(net, arrays, output.suffix, classes)
    to.write(content)


def main(argv: list[str]) -> int:
    parser = Parser(prog="rn50 export", description="Write a checkpoint for other programs.")
    add = parser.add_argument
    add("prefix", help="the --model-prefix of the training run, or a checkpoint's file")
    add("epoch", type=int, nargs="?", help="the epoch (default: the last)")
    formats = "FILE.onnx; or FILE.pth or FILE.safetensors, weights for torchvision and timm"
    add("-o", "--output", type=Path, required=True, help=formats)
    args = parser.parse_intermixed_args(argv)
    export(*find_checkpoint(args.prefix, args.epoch), args.output)
    print(args.output)
    return 0

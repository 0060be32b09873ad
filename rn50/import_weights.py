"""`rn50 import`: weights of torchvision or timm as a checkpoint to score, export or start from.

    rn50 import resnet50-0676ba61.pth -o r50    # r50-symbol.json, r50-0000.safetensors
    rn50 score r50 0 --data-root imagenet                   # imagenet/val/n01440764/*.JPEG, ...
    rn50 run --init-from r50 --data-root photos             # transfer learning
    rn50 export r50 -o back.pth                             # the way back

Both libraries use the same names for ResNet-18, 34, 50, 101 and 152, and normalise images like
`rn50lib.recipe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.command_line import Parser, converter, filled, whole
from rn50.autoconfig import IMAGENET_ROOT
from rn50lib import checkpoint
from rn50lib.checkpoint import Checkpoint
from rn50lib.errors import UserError, first_names
from rn50lib.files import make_folder
from rn50lib.recipe import REFERENCE, val_resize
from rn50lib.resnet import STAGES, Network, resnet

if TYPE_CHECKING:
    from rn50.state_dict import Weights

IMAGENET_CLASSES = 1000


def network_of(weights: Weights, file: Path, classes: int | None) -> Network:
    """Return the ResNet of these arrays, by their names, with `classes` or the file's.

    Raises UserError for anything else, and if the file has no classifier and `classes` is None.
    """
    arrays = weights.arrays
    blocks = [{n.split(".")[1] for n in arrays if n.startswith(f"layer{s}.")} for s in range(1, 5)]
    kind = "bottleneck" if "layer1.0.conv3.weight" in arrays else "basic"
    found = (kind, tuple(len(names) for names in blocks))
    depth = next((depth for depth, known in STAGES.items() if known == found), None)
    if depth is None:
        counts = "-".join(map(str, found[1]))
        raise UserError(
            f"{file} is not a ResNet-18, 34, 50, 101 or 152: it has stages of {counts} {kind}"
            f" blocks and, among {len(arrays)} arrays, {first_names(sorted(arrays))}"
        )
    head = {name: array.shape for name, array in arrays.items() if name.startswith("fc.")}
    if classes is None and len(head.get("fc.weight", ())) != 2:
        shapes = first_names([f"{name} {shape}" for name, shape in sorted(head.items())])
        raise UserError(
            f"{file} has no classifier as its last layer fc: found {shapes}, expected"
            " fc.weight (classes, features) and fc.bias; pass --num-classes N for an untrained last"
            " layer, and train it with `rn50 run --init-from`"
        )
    return resnet(depth, classes or len(arrays["fc.weight"]))


def renamed(arrays: Mapping[str, np.ndarray], net: Network, file: Path) -> dict[str, np.ndarray]:
    """Return the arrays under our names. Raises one UserError for all that do not match."""
    from rn50.state_dict import name_there

    shapes = {name_there(name): shape for name, shape in net.arrays().items()}
    problems = {
        "missing": [name for name in shapes if name not in arrays],
        "not part of it": [name for name in arrays if name not in shapes],
        "other shapes": [
            f"{name} {arrays[name].shape} instead of {shape}"
            for name, shape in shapes.items()
            if name in arrays and arrays[name].shape != shape
        ],
    }
    text = "; ".join(f"{what}: {first_names(names)}" for what, names in problems.items() if names)
    if text:
        raise UserError(f"{file} is not torchvision's or timm's {net.name}: {text}")
    return {name: arrays[name_there(name)] for name in net.arrays()}


def import_weights(
    file: Path, prefix: str, scored: Mapping[str, Any], classes: int | None = None
) -> Network:
    """Write the checkpoint of epoch 0 under `prefix`; `scored` has the settings of its validation.

    With `classes` the last layer is replaced by an untrained one. Prints what was taken and what
    was left out. Raises UserError for any other file, and if there are checkpoints already.
    """
    from rn50.state_dict import read, read_classes

    output = checkpoint.path(prefix, 0)
    if checkpoint.positions(prefix) or checkpoint.symbol_path(prefix).exists():
        raise UserError(f"--output {prefix}: checkpoints are there already; give another prefix")
    weights = read(file)
    net = network_of(weights, file, classes)
    arrays = weights.arrays
    if classes is not None:
        arrays = {name: array for name, array in arrays.items() if not name.startswith("fc.")}
        arrays |= {n: a for n, a in net.initial_arrays().items() if n.startswith("fc.")}
    arrays = renamed(arrays, net, file)
    make_folder(output.absolute().parent, f"--output {prefix}")
    identity = {"model": f"{net.name} {net.version}", "num_classes": net.num_classes}
    # in float32, as both libraries evaluate; with ImageNet's classes, on its images
    scored = {"dtype": "float32", "recipe": REFERENCE.name, **scored}
    if net.num_classes == IMAGENET_CLASSES:
        scored["data_root"] = IMAGENET_ROOT
    named_classes = None if classes else read_classes(file)
    checkpoint.save(
        prefix, Checkpoint(0, arrays, identity, dict(scored), metrics={}, classes=named_classes)
    )
    checkpoint.write_symbol(prefix, net)
    if weights.prefix:
        print(f"Imported {weights.prefix.removesuffix('.')}.")
    if weights.left_out:
        print(f"Left out {len(weights.left_out)} arrays: {first_names(weights.left_out)}.")
    if classes is not None:
        print("The last layer is untrained: train it with `rn50 run --init-from`.")
    return net


def main(argv: list[str]) -> int:
    from rn50lib.config import check_no_folder, image_shape

    parser = Parser(
        prog="rn50 import", description="Turn torchvision or timm weights into a checkpoint."
    )
    add = parser.add_argument
    add("file", type=Path, help="a state dict: .pth, .pt or .safetensors")
    add("-o", "--output", required=True,
        type=converter(lambda text: check_no_folder(filled(text))),
        help="the prefix of the checkpoint")  # fmt: skip
    add("--image-shape", type=converter(image_shape), default=REFERENCE.image_shape,
        help="size at which `rn50 score` and `predict` feed it images (default: 224)")  # fmt: skip
    add("--val-resize", type=whole(),
        help="shorter side of an image before the crop (default: size x 256 / 224; torchvision's"
        " IMAGENET1K_V2 weights: 232)")  # fmt: skip
    add("--num-classes", type=whole(),
        help="replace the last layer with an untrained one for this number of classes")  # fmt: skip
    args = parser.parse_args(argv)
    resize = args.val_resize or val_resize(args.image_shape)
    if resize < args.image_shape:
        parser.error(f"--val-resize {resize} is smaller than --image-shape {args.image_shape}")
    scored = {"image_shape": args.image_shape, "val_resize": resize}
    net = import_weights(args.file, args.output, scored, args.num_classes)
    print(f"{net.name} {net.version}, {net.num_classes} classes: {checkpoint.path(args.output, 0)}")
    return 0

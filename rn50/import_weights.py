"""`rn50 import`: weights of torchvision or timm as a checkpoint to score, export or start from.

    rn50 import torchvision resnet50-0676ba61.pth -o r50    # r50-symbol.json, r50-0000.safetensors
    rn50 score r50 0 --data-root imagenet                   # imagenet/val/n01440764/*.JPEG, ...
    rn50 run --init-from r50 --data-root photos             # transfer learning
    rn50 export r50 -o back.pth                             # the way back

Both libraries use the same names for ResNet-18, 34, 50, 101 and 152, and normalise images like
`rn50lib.recipe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rn50.autoconfig import IMAGENET_ROOT
from rn50lib import checkpoint
from rn50lib.checkpoint import Checkpoint
from rn50lib.errors import UserError
from rn50lib.files import make_folder
from rn50lib.recipe import REFERENCE, val_resize
from rn50lib.resnet import STAGES, Network, resnet

IMAGENET_CLASSES = 1000


def network_of(arrays: Mapping[str, np.ndarray], file: Path) -> Network:
    """Return the ResNet of these arrays, by their names. Raises UserError for anything else."""
    blocks = [{n.split(".")[1] for n in arrays if n.startswith(f"layer{s}.")} for s in range(1, 5)]
    kind = "bottleneck" if "layer1.0.conv3.weight" in arrays else "basic"
    found = (kind, tuple(len(names) for names in blocks))
    for depth, known in STAGES.items():
        if known == found and arrays.get("fc.weight", np.empty(0)).ndim == 2:
            return resnet(depth, len(arrays["fc.weight"]))
    counts = "-".join(map(str, found[1]))
    raise UserError(
        f"{file} is not a ResNet-18, 34, 50, 101 or 152 with its last layer fc: it has stages of"
        f" {counts} {kind} blocks and, among {len(arrays)} arrays, {shortened(sorted(arrays))}"
    )


def shortened(names: list[str]) -> str:
    """Return the first three of these names, and the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (", ".join(names[:3]) or "none") + more


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
            if arrays.get(name, np.empty(shape)).shape != shape
        ],
    }
    if any(problems.values()):
        text = "; ".join(f"{what}: {shortened(names)}" for what, names in problems.items() if names)
        raise UserError(f"{file} is not torchvision's or timm's {net.name}: {text}")
    return {name: arrays[name_there(name)] for name in net.arrays()}


def import_weights(file: Path, prefix: str, scored: Mapping[str, Any]) -> Network:
    """Write the checkpoint of epoch 0 under `prefix`; `scored` has the settings of its validation.

    Raises UserError for any other file, and if there are checkpoints already.
    """
    from rn50.state_dict import read

    output = checkpoint.path(prefix, 0)
    if checkpoint.positions(prefix) or checkpoint.symbol_path(prefix).exists():
        raise UserError(f"--output {prefix}: checkpoints are there already; give another prefix")
    arrays = read(file)
    net = network_of(arrays, file)
    arrays = renamed(arrays, net, file)
    make_folder(output.absolute().parent, f"--output {prefix}")
    identity = {"model": f"{net.name} {net.version}", "num_classes": net.num_classes}
    # in float32, as both libraries evaluate; with ImageNet's classes, on its images
    scored = {"dtype": "float32", "recipe": REFERENCE.name, **scored}
    if net.num_classes == IMAGENET_CLASSES:
        scored["data_root"] = IMAGENET_ROOT
    checkpoint.save(prefix, Checkpoint(0, arrays, identity, dict(scored), metrics={}))
    checkpoint.write_symbol(prefix, net)
    return net


def main(argv: list[str]) -> int:
    """Run `rn50 import`; return the exit status."""
    from rn50.parser import Parser, converter, image_shape, positive

    parser = Parser(prog="rn50 import", description="Weights of another library as a checkpoint.")
    parser.add_argument("library", choices=("torchvision", "timm"), help="which has saved them")
    parser.add_argument("file", type=Path, help="a state dict: .pth, .pt or .safetensors")
    parser.add_argument("-o", "--output", required=True, help="the prefix of the checkpoint")
    parser.add_argument(
        "--image-shape", type=converter(image_shape), default=REFERENCE.image_size,
        help="size at which `rn50 score` and `predict` feed it images (default: 224)",
    )  # fmt: skip
    parser.add_argument(
        "--val-resize", type=converter(positive),
        help="shorter side of an image before the crop (default: size x 256 / 224; torchvision's"
        " IMAGENET1K_V2 weights: 232)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    resize = args.val_resize or val_resize(args.image_shape)
    if resize < args.image_shape:
        parser.error(f"--val-resize {resize} is smaller than --image-shape {args.image_shape}")
    scored = {"image_shape": args.image_shape, "val_resize": resize}
    net = import_weights(args.file, args.output, scored)
    print(f"{net.name} {net.version}, {net.num_classes} classes: {checkpoint.path(args.output, 0)}")
    return 0

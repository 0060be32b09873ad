"""Files of ResNet weights as torchvision and timm save them, under the names that both use."""

from __future__ import annotations

import argparse
import io
import pickle
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from rn50lib.errors import UserError
from rn50lib.torch.model import PARTS

WRAPPERS = ("state_dict", "model", "model_state_dict")  # where a training's file has the weights
PREFIXES = ("module.", "_orig_mod.")  # of a model in DDP, of a compiled one
COUNTER = "num_batches_tracked"  # of a batch norm: nothing depends on it


def name_there(name: str) -> str:
    """Return torchvision's name of an array, such as layer1.0.downsample.1.weight."""
    owner, _, part = name.rpartition(".")
    if owner.endswith("downsample"):
        owner += ".0"
    return f"{owner.replace('downsample_bn', 'downsample.1')}.{PARTS.get(part, part)}"


def read(file: Path) -> dict[str, np.ndarray]:
    """Return the float32 arrays of a file by torchvision's names. Raises UserError."""
    try:
        if file.suffix == ".safetensors":
            found: object = load_file(file)
        else:  # training scripts save their arguments with the weights; this runs no code
            torch.serialization.add_safe_globals([argparse.Namespace])
            found = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{file} holds more than weights, and loading it could run any code; use a file of"
            " `torch.save(model.state_dict(), FILE)`"
        ) from error
    except Exception as error:  # zip, pickle and safetensors each have their own errors
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UserError(f"{file} is damaged, or holds no weights: {why}") from error
    found = unwrapped(found)
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise UserError(f"{file} holds no state dict: names, and a tensor for each")
    return {
        name: tensor.detach().float().contiguous().numpy()
        for name, tensor in found.items()
        if not name.endswith(COUNTER)
    }


def unwrapped(found: object) -> object:
    """Return the state dict in a training script's file, without prefixes of DDP and compile."""
    while isinstance(found, dict):
        inner = next((found[w] for w in WRAPPERS if isinstance(found.get(w), dict)), None)
        prefix = next((p for p in PREFIXES if all(str(k).startswith(p) for k in found)), "")
        if inner is not None:
            found = inner
        elif prefix and found:
            found = {str(name).removeprefix(prefix): tensor for name, tensor in found.items()}
        else:
            break
    return found


def serialise(arrays: dict[str, np.ndarray], suffix: str) -> bytes:
    """Return the content of a file of these arrays that torchvision and timm load strictly."""
    named = {}
    for name, array in arrays.items():
        named[name_there(name)] = torch.from_numpy(np.ascontiguousarray(array))
        if name.endswith(".running_var"):
            named[f"{name_there(name).rpartition('.')[0]}.{COUNTER}"] = torch.tensor(0)
    if suffix == ".safetensors":
        return save(named, {"format": "pt"})
    content = io.BytesIO()
    torch.save(named, content)
    return content.getvalue()

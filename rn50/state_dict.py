"""Files of ResNet weights as torchvision and timm save them, under the names that both use."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from rn50lib.data.classes import Classes
from rn50lib.errors import UserError, first_names
from rn50lib.torch.model import PARTS

# the parts of keys that wrappers add, which may be in any place
WITHIN = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
FIRST = "layer1.0.conv1.weight"  # each of these ResNets has it
COUNTER = "num_batches_tracked"  # of a batch norm: nothing depends on it


def name_there(name: str) -> str:
    """Return torchvision's name of an array, such as layer1.0.downsample.1.weight."""
    owner, _, part = name.rpartition(".")
    if owner.endswith("downsample"):
        owner += ".0"
    return f"{owner.replace('downsample_bn', 'downsample.1')}.{PARTS.get(part, part)}"


@dataclass(frozen=True)
class Weights:
    """A network's arrays, their key prefix, and the file's other keys."""

    arrays: dict[str, np.ndarray]
    prefix: str
    left_out: tuple[str, ...]


def read(file: Path) -> Weights:
    """Return the float32 arrays of the network in a file by torchvision's names.

    Nested dictionaries and key prefixes of every kind are removed. Raises UserError.
    """
    try:
        if file.suffix == ".safetensors":
            found: object = load_file(file)
        else:  # training scripts save their arguments with the weights; this runs no code
            torch.serialization.add_safe_globals([argparse.Namespace])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the error says it, too
                found = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        with file.open("rb") as opened:
            start = opened.read(30)
        if not start.startswith((b"PK", b"\x80")):  # a zip archive, or an older file's pickle
            raise UserError(
                f"{file} is not a file of torch.save: it starts with {start!r}"
            ) from error
        raise UserError(
            f"{file} holds more than weights, and loading it could run any code; use a file of"
            " `torch.save(model.state_dict(), FILE)`"
        ) from error
    except Exception as error:  # zip, pickle and safetensors each have their own errors
        why = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
        raise UserError(f"{file} is damaged, or holds no weights: {why}") from error
    tensors = {
        WITHIN.sub("", name): tensor for name, tensor in leaves(found) if isinstance(tensor, Tensor)
    }
    if odd := [name for name, t in tensors.items() if t.is_quantized or t.layout != torch.strided]:
        raise UserError(
            f"{file} holds quantized or sparse arrays, such as {first_names(odd)}: import the"
            " weights that the network had before"
        )
    prefixes = [name.removesuffix(FIRST) for name in tensors if f".{name}".endswith(f".{FIRST}")]
    if not prefixes:
        raise UserError(
            f"{file} holds no ResNet of torchvision or timm: found the keys"
            f" {first_names(sorted(tensors))}, expected conv1.weight, {FIRST} and so on, with or"
            " without a prefix"
        )
    if len(prefixes) > 1:  # such as averaged weights next to the others
        names = ", ".join(prefix.removesuffix(".") or "without a prefix" for prefix in prefixes)
        raise UserError(
            f"{file} holds several networks: {names}; save the state dict of one of them with"
            " `torch.save(state_dict, FILE)`"
        )
    (prefix,) = prefixes
    arrays = {
        name.removeprefix(prefix): tensor.detach().float().contiguous().numpy()
        for name, tensor in tensors.items()
        if name.startswith(prefix) and not name.endswith(COUNTER)
    }
    left_out = tuple(name for name in tensors if not name.startswith(prefix))
    return Weights(arrays, prefix, left_out)


def leaves(found: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested dictionaries, by their keys joined with dots."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, found


def read_classes(file: Path) -> Classes | None:
    """Return the classes in the metadata of a .safetensors file of `serialise`; None if unknown."""
    if file.suffix != ".safetensors":
        return None
    with safe_open(file, framework="numpy") as opened:
        text = (opened.metadata() or {}).get("classes")
    try:
        return Classes.from_dict(json.loads(text)) if text else None
    except (ValueError, KeyError, TypeError):  # the metadata of another program
        return None


def serialise(
    arrays: Mapping[str, np.ndarray], suffix: str, producer: str, classes: Classes
) -> bytes:
    """Return the content of a file of these arrays that torchvision and timm load strictly.

    It names its `producer`; a .pth file does where PyTorch has the versions of modules.
    """
    named: OrderedDict[str, Tensor] = OrderedDict()
    for name, array in arrays.items():
        named[name_there(name)] = torch.from_numpy(np.ascontiguousarray(array))
        if name.endswith(".running_var"):
            named[f"{name_there(name).rpartition('.')[0]}.{COUNTER}"] = torch.tensor(0)
    if suffix == ".safetensors":
        metadata = {"format": "pt", "producer": producer}
        return save(named, {**metadata, "classes": json.dumps(classes.to_dict())})
    named._metadata = {"": {"producer": producer}}  # type: ignore[attr-defined]
    content = io.BytesIO()
    torch.save(named, content)
    return content.getvalue()

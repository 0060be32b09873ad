"""Python values as JSON and plain buffers, for the line between a check and a learner's process.

Nothing that comes from the learner's side is unpickled. What is no plain data (a dataset, a module,
a function) stays where it is and travels as the number of an object over there. Towards the
learner's process objects may be pickled: it has nothing to fear from the check.
"""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import PurePath
from typing import Any

import numpy as np

MAX_DEPTH = 60
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
KINDS = "biufc?SUmM"  # NumPy's kinds of data without Python objects in them


class Malformed(Exception):
    """Bytes from the other side that are no value."""


class Encoder:
    """Values to JSON, and buffers beside it. The channel keeps what stays here."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.buffers: list[bytes] = []

    def buffer(self, data: bytes) -> int:
        self.buffers.append(data)
        return len(self.buffers) - 1

    def encode(self, value: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"a value is nested more than {MAX_DEPTH} deep")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and not isinstance(value, np.generic):
            small = -(2**62) < value < 2**62
            return int(value) if small else ["int", hex(value)]
        if isinstance(value, float) and not isinstance(value, np.generic):
            return float(value)
        if type(value) is str:
            return value
        return self.encode_other(value, depth)

    def encode_other(self, value: Any, depth: int) -> Any:
        number = self.channel.number_there(value)
        if number is not None:
            return ["home", number]
        if value is ...:
            return ["dots"]
        if isinstance(value, bytes | bytearray | memoryview):
            kind = "bytearray" if isinstance(value, bytearray) else "bytes"
            return [kind, self.buffer(bytes(value))]
        if isinstance(value, complex) and not isinstance(value, np.generic):
            return ["complex", value.real, value.imag]
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            if array.dtype.kind in KINDS and array.dtype.names is None:
                kind = "array" if isinstance(value, np.ndarray) else "scalar"
                data = self.buffer(np.ascontiguousarray(array).tobytes())
                return [kind, array.dtype.str, list(array.shape), data]
        if (tensor := self.tensor(value)) is not None:
            return tensor
        if self.channel.trusted and (pickled := self.pickled(value)) is not None:
            return pickled
        if isinstance(value, str):
            return str(value)
        if isinstance(value, range | slice):
            parts = [value.start, value.stop, value.step]
            return [type(value).__name__, [self.encode(part, depth + 1) for part in parts]]
        for each in (list, tuple, set, frozenset):
            if isinstance(value, each):
                return [each.__name__, [self.encode(item, depth + 1) for item in value]]
        if isinstance(value, dict):
            pairs = [
                [self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in value.items()
            ]
            return ["dict", pairs]
        if isinstance(value, PurePath):
            return str(value)
        return self.reference(value)

    def tensor(self, value: Any) -> Any:
        """A tensor of PyTorch, by its data."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return None
        plain = value.detach().to("cpu").contiguous()
        if plain.dtype == torch.bfloat16:
            plain = plain.view(torch.int16)
        kind = str(value.dtype).removeprefix("torch.")
        data = self.buffer(plain.numpy().tobytes())
        return ["tensor", kind, list(value.shape), data]

    def pickled(self, value: Any) -> Any:
        """Objects on their way to the learner's process; containers go by parts, functions stay."""
        stays = (list, tuple, set, frozenset, dict, str, types.ModuleType, *FUNCTIONS)
        if type(value) in stays or isinstance(value, FUNCTIONS):
            return None
        try:
            return ["pickle", self.buffer(pickle.dumps(value))]
        except Exception:
            return None

    def reference(self, value: Any) -> Any:
        name = str(getattr(value, "__name__", ""))
        about = {"name": name[:80], "type": type(value).__name__[:80]}
        return ["object", self.channel.keep(value), callable(value), about]


class Decoder:
    """JSON and its buffers to values."""

    def __init__(self, channel: Any, buffers: list[bytes]) -> None:
        self.channel, self.buffers = channel, buffers

    def decode(self, code: Any) -> Any:
        """Raises Malformed for anything that an Encoder does not write."""
        try:
            return self._decode(code)
        except Malformed:
            raise
        except Exception as problem:
            raise Malformed(f"{type(problem).__name__}: {problem}") from None

    def _decode(self, code: Any) -> Any:
        if not isinstance(code, list):
            if isinstance(code, dict):
                raise Malformed("a value is an object of JSON")
            return code
        kind, *rest = code
        if kind in ("list", "tuple", "set", "frozenset"):
            made = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind]
            return made(self._decode(item) for item in rest[0])
        if kind == "dict":
            return {self._decode(key): self._decode(value) for key, value in rest[0]}
        if kind in ("bytes", "bytearray"):
            data = self.buffers[rest[0]]
            return data if kind == "bytes" else bytearray(data)
        if kind in ("array", "scalar"):
            return self.array(kind, *rest)
        if kind == "tensor":
            return self.tensor(*rest)
        if kind == "object":
            number, is_callable, about = rest
            about = {key: str(about[key]) for key in about}
            return self.channel.object(int(number), bool(is_callable), about)
        if kind == "home":
            return self.channel.here(int(rest[0]))
        if kind in ("range", "slice"):
            parts = [self._decode(part) for part in rest[0]]
            return range(*parts) if kind == "range" else slice(*parts)
        if kind == "int":
            return int(rest[0], 16)
        if kind == "complex":
            return complex(rest[0], rest[1])
        if kind == "dots":
            return ...
        if kind == "pickle" and not self.channel.trusted:
            return pickle.loads(self.buffers[rest[0]])
        raise Malformed(f"{str(kind)[:20]!r} is no kind of value")

    def array(self, kind: str, dtype: str, shape: list[int], number: int) -> Any:
        made = np.dtype(str(dtype))
        if made.kind not in KINDS or made.names is not None:
            raise Malformed(f"an array of {made}")
        array = np.frombuffer(self.buffers[number], made).reshape([int(n) for n in shape])
        return array.copy() if kind == "array" else array[()]

    def tensor(self, dtype: str, shape: list[int], number: int) -> Any:
        torch = sys.modules.get("torch")
        kind = getattr(torch, dtype, None)
        if torch is None or not isinstance(kind, torch.dtype):
            raise Malformed(f"a tensor of {dtype}")
        if not self.buffers[number]:
            return torch.empty([int(n) for n in shape], dtype=kind)
        flat = torch.frombuffer(bytearray(self.buffers[number]), dtype=kind)
        return flat.reshape([int(n) for n in shape])

"""An object that lives in the other process: what one may do with it, and how it is done there."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from workshop.checks import compare

MAX_ITEMS = 1_000_000
OWN = ("_channel", "_number", "_about")
MARKED = compare.beside(lambda answer: None).__code__


class Remote:
    """Stands for an object of the other process. Each use of it is a question over the line."""

    _channel: Any
    _number: int
    _about: dict[str, str]

    @staticmethod
    def of(channel: Any, number: int, is_callable: bool, about: Mapping[str, str]) -> Remote:
        base = RemoteFunction if is_callable else Remote
        made: Remote = object.__new__(type(about.get("type") or base.__name__, (base,), {}))
        made._channel, made._number, made._about = channel, number, dict(about)
        return made

    def _ask(self, operation: str, *values: Any) -> Any:
        return self._channel.ask(operation, self, *values)

    def __getattr__(self, name: str) -> Any:
        if name == "__name__" and self._about.get("name"):
            return self._about["name"]
        if name.startswith("__") or name in OWN:
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __iter__(self) -> Iterator[Any]:
        return RemoteIterator(self._ask("iterator"))

    def __len__(self) -> int:
        return int(self._ask("length"))

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __float__(self) -> float:
        return float(self._ask("float"))

    def __int__(self) -> int:
        return int(self._ask("int"))

    def __bool__(self) -> bool:
        return bool(self._ask("truth"))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        return np.asarray(self._ask("array"), dtype)

    def __repr__(self) -> str:
        return f"<{self._about.get('type', 'object')} of the answer>"


class RemoteFunction(Remote):
    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._ask("call", list(values), named)

    def beside(self, part: str, values: Any, named: Any) -> Any:
        """What `compare.beside` calls: run a part of a check over there."""
        return self._ask("beside", part, list(values), dict(named))


class RemoteIterator:
    """Not endless, because a check may well ask for everything."""

    def __init__(self, remote: Any) -> None:
        self.remote, self.count = remote, 0

    def __iter__(self) -> RemoteIterator:
        return self

    def __next__(self) -> Any:
        self.count += 1
        if self.count > MAX_ITEMS:
            raise ValueError(f"an iterator gives more than {MAX_ITEMS:,} items")
        found = self.remote._ask("next")
        if not found:
            raise StopIteration
        return found[0]


PARTS: dict[str, Callable[..., Any]] = {}  # of checks, by module:name; noted before a box is closed


def note_parts(modules: Iterable[types.ModuleType]) -> None:
    """Note the parts of checks that `compare.beside` marks, as they are before any answer runs."""
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, types.FunctionType) and value.__code__ is MARKED:
                PARTS[f"{value.__module__}:{name}"] = value.__wrapped__  # type: ignore[attr-defined]


def _next(target: Any) -> tuple[Any, ...]:
    """What comes next, in a tuple; an empty one at the end."""
    try:
        return (next(target),)
    except StopIteration:
        return ()


def _array(target: Any) -> Any:
    import numpy as np

    return np.asarray(target)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, values, named: target(*values, **named),
    "beside": lambda target, part, values, named: PARTS[part](target, *values, **named),
    "attribute": lambda target, name: getattr(target, str(name)),
    "item": lambda target, key: target[key],
    "iterator": iter, "next": _next, "length": len,
    "array": _array, "float": float, "int": int, "truth": bool,
}  # fmt: skip
FOR_LEARNERS = frozenset(("call", "attribute", "iterator", "next", "length", "item"))


def operate(operation: str, target: Any, values: list[Any], guarded: bool) -> Any:
    """Do it to an object of this process. `guarded`: for code that is not to be trusted, only
    calls, items and public attributes of the library's own objects."""
    if guarded and operation not in FOR_LEARNERS:
        raise TypeError("only a call is possible here")
    if guarded and operation == "attribute":
        _refuse_inner(target, str(values[0]))
    result = OPERATIONS[operation](target, *values)
    if guarded and isinstance(result, type | types.ModuleType | types.FrameType | types.CodeType):
        raise TypeError("this is not handed over")
    return result


def _refuse_inner(target: Any, name: str) -> None:
    module = type(target).__module__
    functions = types.FunctionType | types.MethodType | types.BuiltinFunctionType
    ours = module.startswith(("rn50lib.", "workshop."))
    if name.startswith("_") or not ours or isinstance(target, functions):
        raise AttributeError(f"{type(target).__name__!r} object has no attribute {name!r}")

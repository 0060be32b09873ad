"""The functions that a learner may replace with `--override NAME=FILE:FUNCTION`.

A replacement runs in the real loop, on every rank and in every loader worker.
"""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rn50lib.errors import TERMINATED, UserError

REPLACEABLE = {  # the defaults, whose parameters a replacement has
    "schedule": "rn50lib.recipe:learning_rate",
    "shard": "rn50lib.data.sampler:shard",
    "augment": "rn50lib.recipe:augment",
    "predictor": "rn50lib.torch.inference:Predictor",
}

_overrides: dict[str, Callable[..., Any]] = {}


def get(name: str) -> Callable[..., Any]:
    """Return the learner's function if one is installed, else the default."""
    return _overrides.get(name) or default(name)


def is_replaced(name: str) -> bool:
    """Return True if a learner's function is installed."""
    return name in _overrides


def default(name: str) -> Callable[..., Any]:
    """Return the function that is used without an override."""
    return pkgutil.resolve_name(REPLACEABLE[name])


def install(overrides: tuple[str, ...]) -> None:
    """Use `NAME=FILE:FUNCTION` functions in place of any earlier ones. Raise UserError."""
    _overrides.clear()
    check_files(overrides)
    for text in overrides:
        replaced, file, name = parse(text)
        function = function_in(Path(file), name, f"--override {text}")
        try:
            given = tuple(inspect.signature(function).parameters)
        except ValueError:  # a class of Python's own
            raise UserError(f"--override {text}: {name} is not a function of the file") from None
        wanted = tuple(inspect.signature(default(replaced)).parameters)
        if len(given) != len(wanted):
            raise UserError(
                f"--override {text}: {name}({', '.join(given)}) must take ({', '.join(wanted)})"
            )
        _overrides[replaced] = function


def check_files(overrides: tuple[str, ...]) -> None:
    """Raise UserError if an override's name or file is wrong. No code of a file runs."""
    for text in overrides:
        _, file, _ = parse(text)
        if not Path(file).is_file():
            raise UserError(f"--override {text}: no file {file!r}; name an existing one")


def parse(text: str) -> tuple[str, str, str]:
    """Return what `NAME=FILE:FUNCTION` replaces, the file and its function. Raise UserError."""
    replaced, _, target = text.partition("=")
    file, _, name = target.rpartition(":")
    if replaced not in REPLACEABLE:
        names = ", ".join(REPLACEABLE)
        raise UserError(f"--override {text}: no function {replaced!r}; there are {names}")
    if not file:
        raise UserError(f"--override {text}: the form is NAME=FILE:FUNCTION")
    return replaced, file, name


def function_in(file: Path, name: str, flag: str) -> Callable[..., Any]:
    """Return a function of a Python file. Raise UserError, which begins with `flag`."""
    spec = importlib.util.spec_from_file_location(f"rn50_{file.stem}_{name}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{flag}: {file} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if getattr(error, "code", None) == TERMINATED:  # SIGTERM came meanwhile
            raise
        raise UserError(f"{flag}: {file} does not import: {error!r}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{flag}: {file} has no function {name!r}")
    return function

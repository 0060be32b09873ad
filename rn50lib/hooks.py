"""The functions that a learner may replace: a closed table with their signatures.

`rn50 run --override schedule=mine.py:schedule` puts a function of one's own into the real loop, on
every rank and in every loader worker; `python -m data_prep.im2rec --override record_framing=…` puts
one into the writer of record files.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError

RUN, PACK = "rn50 run", "python -m data_prep.im2rec"


@dataclass(frozen=True)
class Replaceable:
    """A replaceable function: its parameters, what it returns, where the default stands, and the
    program that calls it."""

    parameters: tuple[str, ...]
    returns: str
    default: str
    program: str = RUN


REPLACEABLE = {
    "schedule": Replaceable(
        ("progress", "global_batch", "recipe"),
        "the learning rate after `progress` epochs",
        "rn50lib.recipe:learning_rate",
    ),
    "shard": Replaceable(
        ("order", "rank", "size", "batch"),
        "the image indexes of one rank, an array (steps, batch)",
        "rn50lib.data.sampler:shard",
    ),
    "decay_groups": Replaceable(
        ("names",),
        "two lists of parameter names: with and without weight decay",
        "rn50lib.optim:decay_groups",
    ),
    "augment": Replaceable(
        ("seed", "width", "height", "augmentation"),
        "(left, top, width, height) of the crop, and whether to mirror it",
        "rn50lib.recipe:augment",
    ),
    "exchange_gradients": Replaceable(
        ("gradients", "comm"),
        "the gradients averaged over all ranks, a list of arrays",
        "rn50lib.distributed:average",
    ),
    "broadcast_start": Replaceable(
        ("arrays", "comm"),
        "rank 0's arrays, by name, on every rank",
        "rn50lib.distributed:broadcast_start",
    ),
    "metric_sums": Replaceable(
        ("sums", "comm"),
        "loss, top1 and top5 over all ranks, by name",
        "rn50lib.metrics:metric_sums",
    ),
    "loss_scale_update": Replaceable(
        ("scale", "good_steps", "finite", "growth_steps"),
        "the next loss scale, and the good steps in a row with it",
        "rn50lib.optim:loss_scale_update",
    ),
    "record_framing": Replaceable(
        ("payload",),
        "the bytes of one RecordIO record that holds the payload",
        "data_prep.encoding:frame",
        PACK,
    ),
}

_overrides: dict[str, Callable[..., Any]] = {}


def get(name: str) -> Callable[..., Any]:
    """The function in force here: the learner's if one was installed, else the default."""
    if name in _overrides:
        return _overrides[name]
    module, _, function = REPLACEABLE[name].default.partition(":")
    return getattr(importlib.import_module(module), function)


def install(overrides: tuple[str, ...], program: str = RUN) -> None:
    """Put `NAME=FILE:FUNCTION` functions in force in this process, in place of any earlier ones.

    Raises UserError for an unknown name, one that another program calls, a file that does not
    import, a name that it lacks, or parameters other than the default's.
    """
    _overrides.clear()
    for text in overrides:
        replaced, _, target = text.partition("=")
        file, _, name = target.rpartition(":")
        if replaced not in REPLACEABLE:
            names = ", ".join(REPLACEABLE)
            raise UserError(f"--override {text}: no function {replaced!r}; there are {names}")
        other = REPLACEABLE[replaced].program
        if other != program:
            raise UserError(f"--override {text}: {replaced} is called by `{other}`: give it there")
        if not file or not Path(file).is_file():
            raise UserError(f"--override {text}: no file {file!r}; the form is NAME=FILE:FUNCTION")
        function = function_in(Path(file), name, f"--override {text}")
        parameters = tuple(inspect.signature(function).parameters)
        if len(parameters) != len(REPLACEABLE[replaced].parameters):
            raise UserError(
                f"--override {text}: {name}({', '.join(parameters)}) must take"
                f" ({', '.join(REPLACEABLE[replaced].parameters)})"
            )
        _overrides[replaced] = function


def function_in(file: Path, name: str, flag: str) -> Callable[..., Any]:
    """The function of this name in a Python file. Raises UserError, which begins with `flag`."""
    spec = importlib.util.spec_from_file_location(f"rn50_{file.stem}_{name}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{flag}: {file} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(f"{flag}: {file} does not import: {error!r}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{flag}: {file} has no function {name!r}")
    return function

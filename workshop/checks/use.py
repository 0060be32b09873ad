"""`workshop.use(shard=shard)`: a learner's own function in the real training loop.

The cell that defines it is written to `answers/ex03.py`, because the ranks are processes that
import their code; then a small run starts with `--override`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50lib.errors import UserError
from rn50lib.files import write_file
from rn50lib.hooks import REPLACEABLE
from rn50lib.lifetime import PARENT
from rn50lib.report import write_json
from workshop import programs, session
from workshop.checks import alone, ask, engine, records
from workshop.errors import show_user_errors_plainly

SMALL: dict[str, Any] = {
    "n": 1, "network": "tiny", "image_shape": 32, "dtype": "float32", "batch_size": 16,
    "threads": 1, "data_nthreads": 0, "num_epochs": 2, "num_examples": 640, "disp_batches": 10,
}  # fmt: skip


def use(**given: Any) -> Path | None:
    """Run the real loop with your function in it, and return the folder of the run.

    One keyword is named like a seam (schedule, shard, …), all others are fields of the run:
    `use(shard=shard, num_epochs=3)`. Raises UserError if the function cannot be used, RunFailed if
    the run fails with it. With RN50_CHECK=record an unfinished function is skipped.
    """
    show_user_errors_plainly()
    names = [name for name in given if name in REPLACEABLE]
    if len(names) != 1:
        raise UserError(f"pass a function for one of {', '.join(REPLACEABLE)}")
    name, function = names[0], given.pop(names[0])
    if not callable(function):
        raise UserError(f"use({name}=…) needs the function itself, not {function!r}")
    if left := engine.unanswered(function):
        if ask.recording():
            print(f"Not run: {left}")
            return None
        raise UserError(f"use({name}=…): {left} Pass its check first.")
    here = session.need()
    file = write(here.number, function)
    if "data_root" not in given:
        session.ensure_data(here.data_root, here.profile)
    place = f"{file}:{function.__name__}"
    if name == "shard":
        given = {"n": 2} | given
    folder = train(f"{here.number}-{name}", override=[f"{name}={place}"], **given)
    ranks = given.get("n", 1)
    print(f"This run used your {name} from {file.name} on {ranks} rank{'s' * (ranks > 1)}.")
    return folder


def train(name: str, **given: Any) -> Path:
    """Run `rn50 run` with some fields, on the session's data by default; return its folder.

    Raises RunFailed if it fails.
    """
    here = session.need()
    fields = SMALL | {"profile": here.profile}
    if "data_root" not in given:
        fields |= {"data_root": str(here.data_root), "recipe": "roadsigns"}
    folder = launch.new_run(name)
    write_json(folder / "config.json", fields | given)
    words = ["run", "--run-dir", str(folder), "--config", str(folder / "config.json")]
    parent = {PARENT: str(os.getpid())}  # the run ends with this kernel
    programs.run(["-m", "rn50", *words], env=parent)
    return folder


def write(number: str, function: Callable[..., Any]) -> Path:
    """Write the cell that defines a function to `answers/ex03.py`; returns its path.

    Raises UserError if it uses a name that it does not define, or the file cannot be written.
    """
    cell = alone.script_of(function).strip() + "\n"
    path = records.answers_home() / f"{number}.py"
    write_file(path, cell, "set RN50_RUNS to a folder that is yours")
    return path

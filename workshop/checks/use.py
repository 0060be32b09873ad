"""`workshop.use(shard=shard)`: a learner's own functions in the real training loop.

The cells that define them are written to `answers/ex03.py`, because the ranks are processes
of their own and import what they run; then a small run starts with `--override`.
"""

from __future__ import annotations

import ast
import linecache
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rn50lib import launch
from rn50lib.errors import UserError
from rn50lib.overrides import REPLACEABLE, RUN
from workshop import runs, session
from workshop.checks import ask, engine, framed, records
from workshop.errors import show_user_errors_plainly

SMALL: dict[str, Any] = {
    "network": "tiny", "image_shape": 32, "dtype": "float32", "batch_size": 16, "threads": 1,
    "data_nthreads": 0, "num_epochs": 2, "num_examples": 640, "disp_batches": 10,
}  # fmt: skip
TWO_RANKS = ("shard", "broadcast_start", "metric_sums", "exchange_gradients")
IMPORT_S = 60.0

FRAMING = "record_framing"  # no part of a run, so a small data set is packed with it


def use(**given: Any) -> runs.Run | None:
    """Run the real loop with your functions in it, and return the run.

    Keywords named like a seam (schedule, shard, …) are functions, all others fields of the
    experiment: `use(shard=shard, num_epochs=3)`. `use(record_framing=frame)` packs and reads a
    small data set instead of a run, and returns None. Raises UserError when a function cannot be
    used, RunFailed when the run fails with it. With RN50_CHECK=record a function that is not
    written yet is passed over.
    """
    show_user_errors_plainly()
    functions = {name: value for name, value in given.items() if name in REPLACEABLE}
    if not functions:
        raise UserError(f"use() needs a function for one of {', '.join(REPLACEABLE)}")
    if FRAMING in functions and len(functions) > 1:
        others = ", ".join(name for name in REPLACEABLE if REPLACEABLE[name].program == RUN)
        raise UserError(f"use({FRAMING}=…) packs records: give {others} in a use() of their own")
    for name, function in functions.items():
        if not callable(function):
            raise UserError(f"use({name}=…) needs the function itself, not {function!r}")
        if left := engine.unanswered(function):
            if ask.recording():
                print(f"Not run: {left}")
                return None
            raise UserError(f"use({name}=…): {left} Pass its check first.")
    here = session.current()
    if here is None:
        raise UserError("use() needs to know the notebook: run the cell with workshop.start first")
    file = write(here.number, list(functions.values()))
    check_alone(file, [function.__name__ for function in functions.values()])
    root = data_root(here, given)
    if FRAMING in functions:
        framed.pack(f"{file}:{functions[FRAMING].__name__}", root)
        return None
    override = tuple(f"{name}={file}:{f.__name__}" for name, f in functions.items())
    fields = SMALL | {"n": 2 if set(functions) & set(TWO_RANKS) else 1}
    fields |= {name: value for name, value in given.items() if name not in REPLACEABLE}
    run = runs.train(name=f"{here.number}-{'-'.join(functions)}", override=override, **fields)
    run.wait()
    names = " and ".join(functions)
    print(f"This run used your {names} from {file.name} on {fields['n']} rank(s).")
    return run


def data_root(here: session.Session, given: Mapping[str, Any]) -> Path:
    """The data set that was given, else the session's, which is drawn where it is not there yet."""
    if "data_root" in given:
        return Path(given["data_root"])
    session.ensure_data(here.data_root, here.profile)
    return here.data_root


def write(number: str, functions: list[Callable[..., Any]]) -> Path:
    """Write the cells that define the functions to `answers/ex03.py`; returns its path."""
    cells = list(dict.fromkeys(defining_cell(function) for function in functions))
    path = records.answers_home() / f"{number}.py"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(cells) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): set RN50_RUNS to a folder that you may"
            " write to, and start the kernel again"
        ) from None
    return path


def defining_cell(function: Callable[..., Any]) -> str:
    """The source of the whole cell that defines a function, without what it only shows or calls."""
    source = "".join(linecache.getlines(function.__code__.co_filename))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        tree = ast.Module([], [])
    if function.__name__ not in {getattr(node, "name", None) for node in tree.body}:
        raise UserError(
            f"the cell that defines {function.__name__} was not found, or holds a line that is not"
            " Python: define it with `def` in a cell of its own"
        )
    lines = source.splitlines()
    for node in tree.body:
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            lines[first:last] = [""] * (last - first)
    return "\n".join(lines).strip()


def check_alone(file: Path, names: list[str]) -> None:
    """Import the file in a process of its own. Raises UserError with what it lacks there."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "workshop.checks.alone", str(file), *names],
            env=launch.with_library(dict(os.environ)),
            text=True, capture_output=True, timeout=IMPORT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError(f"{file.name} takes more than {IMPORT_S:g} s to import") from None
    if done.returncode:
        raise UserError((done.stdout.strip() or done.stderr.strip()).splitlines()[-1])

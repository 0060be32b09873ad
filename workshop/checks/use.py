"""`workshop.use(shard=shard)`: a learner's own functions in the real training loop.

The cells that define them are written to `answers/ex03.py`, because the ranks are processes that
import their code; then a small run starts with `--override`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50lib.data.source import open_source
from rn50lib.errors import UserError
from rn50lib.files import write_file
from rn50lib.hooks import REPLACEABLE
from workshop import runs, session
from workshop.checks import alone, ask, engine, records
from workshop.errors import show_user_errors_plainly
from workshop.programs import program

SMALL: dict[str, Any] = {
    "network": "tiny", "image_shape": 32, "dtype": "float32", "batch_size": 16, "threads": 1,
    "data_nthreads": 0, "num_epochs": 2, "num_examples": 640, "disp_batches": 10,
}  # fmt: skip
FRAMING = "record_framing"  # not used in a run, so a small data set is packed with it
SEAMS = (*REPLACEABLE, FRAMING)


def use(**given: Any) -> runs.Run | None:
    """Run the real loop with your functions in it, and return the run.

    Keywords named like a seam (schedule, shard, …) are functions, all others fields of the run:
    `use(shard=shard, num_epochs=3)`. `use(record_framing=frame)` packs and reads a small data set
    instead, and returns None. Raises UserError if a function cannot be used, RunFailed if the run
    fails with it. With RN50_CHECK=record an unfinished function is skipped.
    """
    show_user_errors_plainly()
    functions = {name: value for name, value in given.items() if name in SEAMS}
    if not functions or (FRAMING in functions and len(functions) > 1):
        raise UserError(f"pass a function for one of {', '.join(REPLACEABLE)}, or {FRAMING} alone")
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
        raise UserError("use() does not know the notebook: run the cell with workshop.start first")
    file = write(here.number, list(functions.values()))
    if "data_root" not in given:
        session.ensure_data(here.data_root, here.profile)
    override = tuple(f"{name}={file}:{f.__name__}" for name, f in functions.items())
    if FRAMING in functions:
        pack(override[0].partition("=")[2], Path(given.get("data_root", here.data_root)))
        return None
    fields = SMALL | {"n": 2 if "shard" in functions else 1}
    fields |= {name: value for name, value in given.items() if name not in REPLACEABLE}
    run = runs.train(name=f"{here.number}-{'-'.join(functions)}", override=override, **fields)
    run.wait()
    names = " and ".join(functions)
    print(f"This run used your {names} from {file.name} on {fields['n']} rank(s).")
    return run


def write(number: str, functions: list[Callable[..., Any]]) -> Path:
    """Write the cells that define the functions to `answers/ex03.py`; returns its path.

    Raises UserError if a cell uses a name that it does not define, or the file cannot be written.
    """
    cells = list(dict.fromkeys(alone.cell_of(function).strip() for function in functions))
    if problem := alone.undefined("\n\n".join(cells)):
        raise UserError(
            f"{problem}: write everything it needs into the same cell, as imports, definitions and"
            " constants"
        )
    path = records.answers_home() / f"{number}.py"
    write_file(path, "\n\n".join(cells) + "\n", "set RN50_RUNS to a folder that is yours")
    return path


# --- use(record_framing=frame): images packed by im2rec with the learner's function, and read back


def pack(function: str, data_root: Path) -> None:
    """Pack an image of each class with `function`, FILE:NAME, and read the records.

    Raises RunFailed if im2rec fails with it, UserError if the library's reader finds different
    records than were packed.
    """
    root = launch.new_run("ex01-frame")
    source = open_source(data_root, "train", "files")
    for label, name in enumerate(source.classes):
        (root / "train" / name).mkdir(parents=True)
        first = source.read(int((source.labels < label).sum()))
        (root / "train" / name / "first.jpg").write_bytes(first)
    program("data_prep.im2rec", "--list", "--recursive", "records/train", "train", folder=root)
    own = ("--framing", function)
    program("data_prep.im2rec", "--pass-through", *own, "records/train", "train", folder=root)
    files, records = (open_source(root, "train", form) for form in ("files", "recordio"))
    packed = {int(label): records.read(i) for i, label in enumerate(records.labels)}
    if wrong := [name for i, name in enumerate(files.classes) if packed.get(i) != files.read(i)]:
        raise UserError(
            f"{records.path}: what was packed for {', '.join(wrong)} is not what is read back:"
            ' pass workshop.check("ex01.frame", frame) first'
        )
    count = len(packed)
    print(f"{count} records that you framed, read by the library's reader: every byte is the same.")

"""What several verbs share: lists of numbers, text tables, output files, a run's checkpoint."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.command_line import positive
from rn50lib import checkpoint
from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from rn50lib.files import Content, check_output, read_json, write_file


def counts(text: str) -> list[int]:
    """Return the distinct numbers of '1,4,8' in order. Raise ValueError for anything else."""
    return list(dict.fromkeys(positive(part) for part in text.split(",")))


def makes_a_model(config: TrainConfig) -> bool:
    """Return True if a run leaves weights that you would want to keep or to resume from."""
    if config.max_restarts or config.checkpoint_steps:
        return True
    timed = config.benchmark_iters or config.no_metrics or config.loader == "synthetic"
    return config.trains and not timed


def find_checkpoint(name: str, epoch: int | None) -> tuple[str, int]:
    """Return prefix and epoch of the checkpoint that a command names: PREFIX [EPOCH], or its file.

    By default it is the last epoch's, which a line on stderr names. Raises UserError if there is
    none.
    """
    with contextlib.suppress(ValueError):
        prefix, of_file, images = checkpoint.parts(name)
        if epoch not in (None, of_file):
            raise UserError(f"{name} has epoch {of_file}, not {epoch}: leave the epoch out")
        if not images:
            return prefix, of_file
    if epoch is not None:
        return name, epoch
    there = checkpoint.epochs(name)
    if not there:
        problem = f"{name}: there is no checkpoint of a whole epoch, {name}-NNNN.safetensors"
        raise UserError(problem, ("weights",))
    print(f"{name}: epoch {there[-1]}, the last", file=sys.stderr)
    return name, there[-1]


def named(files: Sequence[str], labels: Sequence[str] | None) -> dict[str, Path]:
    """Return each report by its label or its name, with its folder's name if two are the same.

    For a run's folder it is the report in there. Raises UserError if two names are the same.
    """
    paths = [Path(file).absolute() for file in files]
    own = [path.name if path.is_dir() else path.stem for path in paths]
    names = labels or own
    if not labels and len(set(names)) < len(names):
        names = [f"{path.parent.name}/{name}" for path, name in zip(paths, own, strict=True)]
    if len(set(names)) < len(files) or len(names) > len(files):
        shown = ", ".join(names)
        raise UserError(f"{shown}: pass --labels with {len(files)} names, all different")
    reports = [Path(file, "report.json") if Path(file).is_dir() else Path(file) for file in files]
    return dict(zip(names, reports, strict=True))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line per row, with right-aligned columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(t.rjust(w) for t, w in zip(row, widths, strict=True)) for row in rows]


@dataclass(frozen=True)
class Output:
    """The file that a flag names for the result of a command, checked before the work begins.

    Creating it raises UserError as `check_output` does; `write` checks again, because other files
    may have appeared meanwhile.
    """

    flag: str
    path: str | Path
    kind: str
    is_kind: Callable[[Path], bool]

    def __post_init__(self) -> None:
        check_output(self.path, self.flag, self.kind, self.is_kind)

    def write(self, content: Content) -> None:
        """Write the file, whole or not at all. Raise UserError if that is impossible."""
        self.__post_init__()
        write_file(self.path, content)


def contains(mark: bytes) -> Callable[[Path], bool]:
    """Return a test for `check_output`: does a file contain the mark of our outputs?"""
    return lambda file: mark in file.read_bytes()


def has_key(key: str) -> Callable[[Path], bool]:
    """Return a test for `check_output`: is a file a JSON object with this key?"""

    def test(path: Path) -> bool:
        content = read_json(path)
        return isinstance(content, dict) and key in content

    return test

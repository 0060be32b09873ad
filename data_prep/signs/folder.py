"""The folder of a drawn data set: one process makes it at a time, and it appears when it is whole.

Pictures are drawn into a work folder on the same disk, `.NAME.making` beside OUT (inside OUT where
OUT is a mount point or its parent cannot be written), and moved by a few renames that a later run
finishes if this one is killed between them. `OUT/.complete` is moved last.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from data_prep.signs.classes import IDS, class_list
from rn50lib.errors import UserError
from rn50lib.files import write_file

COMPLETE = ".complete"
SPLITS = ("train", "val")
PARTS = (*SPLITS, "classes.txt")  # what a set consists of; everything else in OUT was made from it


@dataclass(frozen=True)
class Parameters:
    """What a set follows from: pictures per split, seed, version of the drawing."""

    train: int
    val: int
    seed: int
    version: int

    @property
    def key(self) -> str:
        return f"{self.train}-{self.val}-{self.seed}-{self.version}"

    def __str__(self) -> str:
        return f"--train {self.train} --val {self.val} --seed {self.seed} (drawing {self.version})"


def picture_path(split: str, index: int) -> str:
    """The path of a picture inside the set: its class follows from its number."""
    id_ = IDS[index % len(IDS)]
    return f"{split}/{id_}/{id_}_{index:06}.jpg"


def read_complete(out: Path) -> Parameters | None:
    """The parameters of the complete set in `out`, None if there is none.

    Raises UserError if the mark cannot be read, or if what it stands for is gone.
    """
    try:
        found = Parameters(**json.loads((out / COMPLETE).read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{out / COMPLETE}: this is not the mark of a road-sign set; choose another folder"
        ) from error
    missing = [part for part in PARTS if not (out / part).exists()]
    if missing:
        raise UserError(
            f"{out}: marked complete, but {' and '.join(missing)} is gone; "
            "draw the set again with --overwrite"
        )
    return found


class Workplace:
    """Where a set is drawn before it is moved to `out`. Use it only while holding `locked(out)`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.root = _beside(out, "making")
        self.old = self.root / "old"
        self._state = self.root / "state.json"

    def new(self, parameters: Parameters) -> Path:
        """The folder that becomes the set. Its name holds the parameters, so that a worker left
        over from a killed run cannot write into a set of other parameters."""
        return self.root / parameters.key

    def spool(self, parameters: Parameters) -> Path:
        """Where files are written before they are renamed into `new`."""
        return self.root / f"{parameters.key}.unfinished"

    def prepare(self, parameters: Parameters) -> None:
        """Makes the folders; what was drawn for other parameters is thrown away."""
        state = self._read()
        if state is None or state[1] != parameters:
            self.remove()
        for folder in (self.spool(parameters), self.old):
            folder.mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            for id_ in IDS:
                (self.new(parameters) / split / id_).mkdir(parents=True, exist_ok=True)
        self._write("drawing", parameters)

    def missing(self, parameters: Parameters) -> list[tuple[str, int]]:
        """The pictures that are still to be drawn, as (split, index)."""
        new, done = self.new(parameters), set()
        for split in SPLITS:
            for id_ in IDS:
                with os.scandir(new / split / id_) as entries:
                    done |= {f"{split}/{id_}/{e.name}" for e in entries if e.stat().st_size}
        counts = zip(SPLITS, (parameters.train, parameters.val), strict=True)
        wanted = ((split, index) for split, count in counts for index in range(count))
        return [(s, i) for s, i in wanted if picture_path(s, i) not in done]

    def install(self, parameters: Parameters) -> None:
        """Moves the finished set to `out`; what was there, records of the old set too, goes."""
        new = self.new(parameters)
        (new / "classes.txt").write_text(class_list(), encoding="utf-8")
        with open(new / COMPLETE, "w") as file:
            json.dump(asdict(parameters), file)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        replaces = (self.out / COMPLETE).exists()
        self._write("replacing" if replaces else "installing", parameters)
        self.finish()

    def finish(self) -> None:
        """Ends the move that this process, or a killed one before it, has begun, if any."""
        state = self._read()
        if state is None or state[0] == "drawing":
            return
        step, parameters = state
        self.out.mkdir(parents=True, exist_ok=True)
        if step == "replacing":
            own = (self.root.name, _beside(self.out, "lock").name)
            names = sorted(name for name in os.listdir(self.out) if name not in own)
            for name in names:  # .complete sorts first, so half a set is never marked whole
                os.replace(self.out / name, self.old / name)
            self._write("installing", parameters)
        new = self.new(parameters)
        for name in (*PARTS, COMPLETE):
            with contextlib.suppress(FileNotFoundError):
                os.replace(new / name, self.out / name)
        self.remove()

    def remove(self) -> None:
        """Throws away everything that was drawn. The state goes last: without it, all is waste."""
        if self.root.exists():
            for entry in os.scandir(self.root):
                if entry.is_dir():
                    shutil.rmtree(entry.path)
            shutil.rmtree(self.root)

    def _read(self) -> tuple[str, Parameters] | None:
        try:
            state = json.loads(self._state.read_text())
            return state["step"], Parameters(**state["parameters"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _write(self, step: str, parameters: Parameters) -> None:
        write_file(self._state, json.dumps({"step": step, "parameters": asdict(parameters)}))


def _beside(out: Path, what: str) -> Path:
    """A hidden path for `out` on the same disk: beside it if that is possible, else inside."""
    inside = out.is_dir() and (os.path.ismount(out) or not os.access(out.parent, os.W_OK))
    return (out if inside else out.parent) / f".{out.name}.{what}"


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Holds the lock of `out`, after waiting for another process that makes the same set."""
    if not out.is_dir():
        out.parent.mkdir(parents=True, exist_ok=True)
    path = _beside(out, "lock")
    while True:
        file = open(path, "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            print(
                f"{out}: another process (pid {owner}) is drawing this set; waiting until it ends",
                file=sys.stderr,
                flush=True,
            )
            fcntl.flock(file, fcntl.LOCK_EX)
        # The owner removes the file when it ends: a lock on a removed file holds nobody off.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                break
        file.close()
    try:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        file.close()

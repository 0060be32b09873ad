"""Draws the built-in data set: JPEG pictures of twelve classes of road signs, in ImageNet's layout.

    python -m data_prep.roadsigns data/roadsigns --train 2400 --val 1200 --seed 0
    python -m data_prep.roadsigns data/roadsigns --records --tfrecord

It writes OUT/train/CLASS/*.jpg, OUT/val/CLASS/*.jpg and OUT/classes.txt, one line per class in
label order with tabs between its columns index, id and words (0, bicycle, bicycle lane), like a
list of ImageNet's classes. Picture i of a split follows from (seed, split, i) alone: any number of
processes draws the same bytes (on one machine, with the same Pillow and NumPy), and a larger set
contains the smaller one. Its class is i modulo 12, so that classes are balanced.

The set appears when it is whole, marked OUT/.complete. A run that was killed goes on where it was;
a second run finds the set and does nothing. `--records` and `--tfrecord` also pack the pictures,
where that is not done yet; several processes may ask for all this at once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from data_prep import processes
from data_prep.common import Progress, check_room, format_bytes, run_program
from data_prep.output import COMPLETE, OutputFolder, finish_swap
from data_prep.signs import drawing
from data_prep.signs.classes import IDS, class_list
from data_prep.signs.drawing import picture_path
from data_prep.signs.knobs import VERSION
from rn50lib.argparser import Parser
from rn50lib.errors import UserError
from rn50lib.hardware import usable_cores

TRAIN, VAL, SEED = 2400, 1200, 0
FILE_BYTES = 104_000  # mean size of a picture on disk, rounded up to blocks
BATCH = 8  # pictures that a worker is given at a time
SPLITS = ("train", "val")


@dataclass(frozen=True)
class Parameters:
    """What a set follows from: pictures per split, seed, version of the drawing."""

    train: int
    val: int
    seed: int
    version: int = VERSION

    def __str__(self) -> str:
        return f"--train {self.train} --val {self.val} --seed {self.seed} (drawing {self.version})"


def ensure(
    root: str | os.PathLike,
    train: int | None = None,
    val: int | None = None,
    seed: int | None = None,
    jobs: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Path:
    """The data set in `root`, drawn only if it is missing.

    A number that is None takes what a complete set in `root` has, or the default. `jobs` is the
    number of processes, all usable cores unless given; `quiet` shows no progress.

    Raises UserError if `root` holds a set of other numbers (without `overwrite`) or something else,
    cannot be written, or has too little room.
    """
    out = Path(os.path.realpath(root))
    _check(train, val, seed, jobs)
    try:
        if overwrite or not _is_there(out, train, val, seed):
            wanted = Parameters(
                TRAIN if train is None else train,
                VAL if val is None else val,
                SEED if seed is None else seed,
            )
            _make(out, wanted, jobs or usable_cores(), overwrite, quiet)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise UserError(f"{out}: cannot be written ({where}{error.strerror})") from error
    return Path(root)


def _check(train: int | None, val: int | None, seed: int | None, jobs: int | None) -> None:
    for flag, value, least, why in (
        ("--train", train, len(IDS), "one picture of each class"),
        ("--val", val, len(IDS), "one picture of each class"),
        ("--seed", seed, 0, "seeds are not negative"),
        ("--jobs", jobs, 1, "the number of processes that draw"),
    ):
        if value is not None and value < least:
            raise UserError(f"{flag} {value}: at least {least} is needed ({why})")


def read_complete(out: Path) -> Parameters | None:
    """The parameters of the complete set in `out`, None if there is none.

    Raises UserError if the mark cannot be read, or if what it stands for is gone.
    """
    finish_swap(out)
    try:
        found = Parameters(**json.loads((out / COMPLETE).read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{out / COMPLETE}: this is not the mark of a road-sign set; choose another folder"
        ) from error
    missing = [part for part in (*SPLITS, "classes.txt") if not (out / part).exists()]
    if missing:
        raise UserError(
            f"{out}: marked complete, but {' and '.join(missing)} is gone; "
            "draw the set again with --overwrite"
        )
    return found


def _is_there(out: Path, train: int | None, val: int | None, seed: int | None) -> bool:
    """Whether the set asked for is complete. Raises UserError if another one is."""
    found = read_complete(out)
    if found is None:
        return False
    wanted = Parameters(
        found.train if train is None else train,
        found.val if val is None else val,
        found.seed if seed is None else seed,
    )
    if found != wanted:
        raise UserError(
            f"{out}: holds a set drawn with {found}, not {wanted}; "
            "choose another folder, or replace it with --overwrite"
        )
    return True


def _make(out: Path, wanted: Parameters, jobs: int, overwrite: bool, quiet: bool) -> None:
    _refuse_others(out, overwrite)
    with OutputFolder(out, asdict(wanted), wait=not overwrite) as folder:
        if folder.finished:
            return
        # A worker left over from a killed run must not write into a set of other numbers.
        drafts = folder.part / "-".join(map(str, asdict(wanted).values()))
        drafts.mkdir(exist_ok=True)
        for split in SPLITS:
            for id_ in IDS:
                (folder.part / split / id_).mkdir(parents=True, exist_ok=True)
        missing = _missing(folder.part, wanted)
        _check_room(folder, len(missing), wanted.train + wanted.val, quiet)
        start = time.monotonic()
        settings = folder.part, drafts, wanted.seed
        written = _draw(out, settings, missing, jobs, quiet)
        seconds = time.monotonic() - start
        shutil.rmtree(drafts)
        (folder.part / "classes.txt").write_text(class_list(), encoding="utf-8")
    if not quiet:
        mean = f", mean {written / len(missing) / 1000:.0f} KB" if missing else ""
        print(
            f"{out}: {wanted.train:,} train and {wanted.val:,} val pictures of {len(IDS)} classes"
            f"{mean}; drew {len(missing):,} in {seconds:.1f} s, "
            f"{len(missing) / max(seconds, 1e-9):.0f} images/s with {jobs} "
            f"process{'es' if jobs > 1 else ''}",
            file=sys.stderr,
        )


def _refuse_others(out: Path, overwrite: bool) -> None:
    """Raises UserError if `out` holds something that is not a complete set of this program."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; name a folder to draw the set into")
    if not out.exists() or (out / COMPLETE).exists() and overwrite:
        return
    if entry := min(out.iterdir(), default=None):
        raise UserError(
            f"{entry}: is there already and was not drawn by this program (no .complete beside "
            "it); choose another folder, or move it away"
        )


def _missing(folder: Path, wanted: Parameters) -> list[tuple[str, int]]:
    """The pictures that are still to be drawn, as (split, index)."""
    counts = zip(SPLITS, (wanted.train, wanted.val), strict=True)
    there = {
        f"{split}/{id_}/{entry.name}"
        for split in SPLITS
        for id_ in IDS
        for entry in os.scandir(folder / split / id_)
        if entry.stat().st_size
    }
    return [(s, i) for s, count in counts for i in range(count) if picture_path(s, i) not in there]


def _check_room(folder: OutputFolder, count: int, total: int, quiet: bool) -> None:
    """Say what the disk must hold, or raise UserError if it cannot."""
    needed = count * FILE_BYTES
    check_room(folder.part, needed, f"drawing {count:,} pictures")
    if quiet or not count:
        return
    status = os.statvfs(folder.part)
    goes_on = f" ({total - count:,} are there from an interrupted run)" if count < total else ""
    print(
        f"{folder.path}: drawing {count:,} pictures{goes_on}; needs about {format_bytes(needed)}, "
        f"{format_bytes(status.f_bavail * status.f_frsize)} are free",
        file=sys.stderr,
        flush=True,
    )


def _draw(
    out: Path,
    settings: tuple[Path, Path, int],
    missing: list[tuple[str, int]],
    jobs: int,
    quiet: bool,
) -> int:
    """Draw what is missing; returns the bytes written. Raises UserError if a process fails."""
    again = "run the same command again to go on from here"
    batches, written = _batched(missing), 0
    with Progress(len(missing), "drawing road signs", quiet=quiet) as progress:
        try:
            for number, answer in processes.run(drawing.prepare, settings, batches, jobs):
                if isinstance(answer, processes.Died):
                    raise UserError(f"{out}: a drawing process was {answer.reason}; {again}")
                written += answer
                progress.add(len(batches[number][1]))
        except processes.Failed as error:
            raise UserError(f"{out}: {error}; put that right, then {again}") from error
    return written


def _batched(todo: list[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    batches: list[tuple[str, list[int]]] = []
    for split, index in todo:
        if not batches or batches[-1][0] != split or len(batches[-1][1]) == BATCH:
            batches.append((split, []))
        batches[-1][1].append(index)
    return batches


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = Parser(
        prog="python -m data_prep.roadsigns",
        description="Draw the built-in data set: JPEG pictures of road signs in ImageNet's layout."
        " A number that is left out is that of the set in OUT, if there is one.",
    )
    add = parser.add_argument
    add("out", metavar="OUT", help="the folder of the data set")
    add("--train", type=int, metavar="N", help=f"training pictures ({TRAIN})")
    add("--val", type=int, metavar="N", help=f"validation pictures ({VAL})")
    add("--seed", type=int, metavar="S", help=f"what all is drawn from ({SEED})")
    add("--jobs", type=int, metavar="J", help="drawing processes (all usable cores)")
    add(
        "--overwrite",
        action="store_true",
        help="replace a set of other numbers in OUT, with the records made from it",
    )
    add("--records", action="store_true", help="also pack record files, in OUT/records")
    add("--tfrecord", action="store_true", help="also write TFRecord shards, in OUT/tfrecord")
    flags = parser.parse_args(argv)
    _check(flags.train, flags.val, flags.seed, flags.jobs)
    return flags


def main(argv: list[str] | None = None) -> int:
    """The program; returns the exit status."""
    flags = parse(argv)
    try:
        _prepare(flags)
    except KeyboardInterrupt:
        print("error: interrupted; run the same command again to go on from here", file=sys.stderr)
        return 130
    return 0


def _prepare(flags: argparse.Namespace) -> None:
    """Draw the set, and pack it as asked for, each unless that is done."""
    out, numbers = Path(os.path.realpath(flags.out)), (flags.train, flags.val, flags.seed)
    if not flags.overwrite and _is_there(out, *numbers):
        print(f"{flags.out}: already complete ({read_complete(out)})")
    else:
        ensure(flags.out, *numbers, jobs=flags.jobs, overwrite=flags.overwrite)
    if flags.records:
        from data_prep.im2rec import ensure_records

        print(f"{ensure_records(flags.out, flags.jobs)}: complete")
    if flags.tfrecord:
        from data_prep.tfrecord import ensure_tfrecord

        print(f"{ensure_tfrecord(flags.out)}: complete")


if __name__ == "__main__":
    run_program(main)

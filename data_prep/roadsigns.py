"""Draw the built-in data set: JPEG images of twelve classes of road signs, in ImageNet's layout.

    python -m data_prep.roadsigns data/roadsigns --train 2400 --val 1200 --seed 0
    python -m data_prep.roadsigns data/roadsigns --records --tfrecord

It writes OUT/train/CLASS/*.jpg, OUT/val/CLASS/*.jpg and OUT/classes.txt, which has one line per
class in label order with tabs between its columns index, id and words (0, bicycle, bicycle lane),
like ImageNet's lists. Image i of a split depends only on (seed, split, i): any number of processes
draws the same bytes (on one machine, with the same Pillow and NumPy), and a larger set contains the
smaller one. Its class is i modulo 12, so the classes are balanced.

The set appears when it is complete, marked by OUT/.complete. A killed run can be continued; a
second run finds the set and does nothing. `--records` and `--tfrecord` also pack the images, unless
that is done; several processes may do all this at the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from data_prep import processes
from data_prep.command_line import Parser, whole
from data_prep.common import Progress, check_room, refuse_denied, run_program
from data_prep.output import COMPLETE, OutputFolder, finish_swap, refuse_others
from data_prep.remedies import program
from data_prep.signs.classes import IDS, class_list, picture_path
from data_prep.signs.knobs import VERSION
from rn50lib.errors import UserError

TRAIN, VAL, SEED = 2400, 1200, 0
FILE_BYTES = 104_000  # mean size of an image on disk, rounded up to blocks
BATCH = 8  # images in one task of a worker
SPLITS = ("train", "val")
OURS = (*SPLITS, "classes.txt", COMPLETE, "records", "tfrecord", "tfrecord.part", ".DS_Store")


@dataclass(frozen=True)
class Parameters:
    """The parameters of a set: images per split, seed, version of the drawing."""

    train: int = TRAIN
    val: int = VAL
    seed: int = SEED
    version: int = VERSION

    def __str__(self) -> str:
        return f"--train {self.train} --val {self.val} --seed {self.seed} (drawing {self.version})"

    def changed(self, **numbers: int | None) -> Parameters:
        """Return these parameters with the numbers that are not None."""
        return replace(self, **{name: n for name, n in numbers.items() if n is not None})


def ensure(
    root: str | os.PathLike, train: int | None = None, val: int | None = None,
    seed: int | None = None, jobs: int | None = None, overwrite: bool = False, quiet: bool = False,
) -> Path:  # fmt: skip
    """Draw the data set in ``root`` unless it is there; return its path.

    A number that is None is that of a complete set in ``root``, or the default. ``jobs`` is the
    number of processes, by default all usable cores; ``quiet`` shows no progress.

    Raises UserError if ``root`` holds a set of other numbers (without ``overwrite``) or other
    files, cannot be written, or has too little room.
    """
    out = Path(os.path.realpath(root))
    try:
        if overwrite or not find_complete(out, train, val, seed):
            wanted = Parameters().changed(train=train, val=val, seed=seed)
            _make(out, wanted, jobs, overwrite, quiet)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise UserError(f"{out}: cannot be written ({where}{error.strerror})") from error
    return Path(root)


def ensure_packed(root: str | os.PathLike, tfrecord: bool = False) -> None:
    """Draw the data set and pack its records, and its shards if `tfrecord`, unless that is done.

    `rn50 run` and the notebooks call it: everything is printed on stderr. Raises UserError as
    `ensure` does.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr), refuse_denied():
            ensure(root)
            _pack(root, records=True, tfrecord=tfrecord)
    except UserError as error:
        raise UserError(
            f"the road signs are not complete in {root}: {error}; or set RN50_DATA to a folder that"
            " you may write to"
        ) from error


def _pack(
    root: str | os.PathLike, records: bool, tfrecord: bool, jobs: int | None = None
) -> list[Path]:
    """Pack the images in these forms, each unless that is done; return the folders."""
    from data_prep.im2rec import ensure_records
    from data_prep.tfrecord import ensure_tfrecord

    folders = [ensure_records(root, jobs)] if records else []
    return folders + ([ensure_tfrecord(root)] if tfrecord else [])


def find_complete(
    out: Path, train: int | None = None, val: int | None = None, seed: int | None = None
) -> Parameters | None:
    """Return the parameters of the complete set in ``out``, None if there is none.

    Raises UserError if it has other numbers than these, if its mark cannot be read, or if a part of
    the set is missing.
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
    if missing := [part for part in (*SPLITS, "classes.txt") if not (out / part).exists()]:
        raise UserError(
            f"{out}: marked complete, but {' and '.join(missing)} is gone; draw the set again:"
            f" {program('roadsigns', out, '--overwrite')}"
        )
    wanted = found.changed(train=train, val=val, seed=seed)
    if found != wanted:
        raise UserError(
            f"{out}: holds a set drawn with {found}, not {wanted}; "
            "choose another folder, or replace it with --overwrite"
        )
    return found


def _make(out: Path, wanted: Parameters, jobs: int | None, overwrite: bool, quiet: bool) -> None:
    from data_prep.signs.compose import prepare  # with Pillow and NumPy

    refuse_others(out, OURS.__contains__ if overwrite else lambda name: False)
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
        check_room(folder.part, len(missing) * FILE_BYTES, f"drawing {len(missing):,} images")
        if folder.resumed and not quiet:
            print(f"{out}: continuing an interrupted run", file=sys.stderr)
        batches = [missing[i : i + BATCH] for i in range(0, len(missing), BATCH)]
        settings = folder.part, drafts, wanted.seed
        with Progress(len(missing), "drawing road signs", quiet=quiet) as progress:
            for number, _ in processes.run(prepare, settings, batches, jobs):
                progress.update(len(batches[number]))
            seconds = progress.seconds
        shutil.rmtree(drafts)
        (folder.part / "classes.txt").write_text(class_list(), encoding="utf-8")
    if not quiet:
        print(
            f"{out}: {wanted.train:,} train and {wanted.val:,} val images of {len(IDS)} classes; "
            f"drew {len(missing):,} in {seconds:.1f} s, {len(missing) / seconds:.0f} images/s",
            file=sys.stderr,
        )


def _missing(folder: Path, wanted: Parameters) -> list[tuple[str, int]]:
    """Return the images still to be drawn, as (split, index)."""
    images = [("train", i) for i in range(wanted.train)] + [("val", i) for i in range(wanted.val)]
    there = {path for path in folder.glob("*/*/*.jpg") if path.stat().st_size}
    return [image for image in images if folder / picture_path(*image) not in there]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m data_prep.roadsigns",
        description="Draw the built-in data set: JPEG images of road signs in ImageNet's layout."
        " A number that you omit is that of the set in OUT, if there is one.",
    )
    add = parser.add_argument
    add("out", metavar="OUT", help="the folder of the data set")
    least = whole(len(IDS))  # an image of each class
    add("--train", type=least, metavar="N", help=f"training images ({TRAIN})")
    add("--val", type=least, metavar="N", help=f"validation images ({VAL})")
    add("--seed", type=int, metavar="S", help=f"seed of the drawing ({SEED})")
    add("--jobs", type=whole(), metavar="J", help="drawing processes (all usable cores)")
    add("--overwrite", action="store_true", help="replace a set of other numbers, and its records")
    add("--records", action="store_true", help="also pack record files, in OUT/records")
    add("--tfrecord", action="store_true", help="also write TFRecord shards, in OUT/tfrecord")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Draw the set and pack it, each unless that is done; return the exit status."""
    flags = parse(argv)
    out, numbers = Path(os.path.realpath(flags.out)), (flags.train, flags.val, flags.seed)
    if not flags.overwrite and (found := find_complete(out, *numbers)):
        print(f"{flags.out}: already complete ({found})")
    else:
        ensure(flags.out, *numbers, jobs=flags.jobs, overwrite=flags.overwrite)
    for folder in _pack(flags.out, flags.records, flags.tfrecord, flags.jobs):
        print(f"{folder}: complete")
    return 0


if __name__ == "__main__":
    run_program(main)

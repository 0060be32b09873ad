"""What a checkpoint says about pictures: class probabilities, prepared as validation prepares them.

python -m rn50.predict PREFIX EPOCH a.jpg b.jpg            # three best classes of each
python -m rn50.predict PREFIX EPOCH --split val -o out.npz # a whole split, as arrays
python -m rn50.predict PREFIX EPOCH --split val -o out.csv # the same as text
"""

from __future__ import annotations

import csv
import io
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from rn50.autoconfig import resolve
from rn50lib import checkpoint
from rn50lib.config import Experiment
from rn50lib.data.decode import SPARE, crop, open_image
from rn50lib.errors import UserError
from rn50lib.files import check_output, replacing
from rn50lib.recipe import center_crop_box

SHOWN = 3  # classes that a line names


class Pictures(Protocol):
    """Encoded images by number: an opened data set (`records.source`), or `Files`."""

    def __len__(self) -> int: ...

    def read(self, i: int) -> bytes: ...

    def name(self, i: int) -> str: ...


@dataclass(frozen=True)
class Files:
    """Image files as pictures."""

    paths: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, i: int) -> bytes:
        """Return the bytes of file i. Raises UserError if it cannot be read."""
        path = self.paths[i]
        try:
            return path.read_bytes()
        except OSError as error:
            hint = f"; give {path}/*.jpg" if path.is_dir() else ""
            raise UserError(f"{path} cannot be read: {error.strerror}{hint}") from error

    def name(self, i: int) -> str:
        return str(self.paths[i])


def trained_as(prefix: str | Path, epoch: int) -> Experiment:
    """The resolved experiment that scores a checkpoint: its network, size, precision and batch.

    Raises UserError when the checkpoint is missing or is not one.
    """
    from rn50.prepare import with_checkpoint
    from rn50lib.hardware import machine

    asked = Experiment(model_prefix=str(prefix), load_epoch=epoch, only_inference=True)
    asked = with_checkpoint(asked)
    return resolve(asked, machine(), asked.num_classes).experiment


def prepare(pictures: Pictures, i: int, done: Experiment) -> np.ndarray:
    """Picture i as the network sees it in validation: uint8 (size, size, 3), resized and centred.

    Raises UserError for one that does not decode.
    """
    name, size = pictures.name(i), done.image_shape
    opened = open_image(pictures.read(i), name)
    return crop(opened, center_crop_box(*opened.size, size, done.val_resize), size, name, SPARE)


def predict(
    prefix: str | Path,
    epoch: int,
    pictures: Pictures,
    report: Callable[[int], None] = lambda finished: None,
    on_error: Callable[[int, UserError], None] | None = None,
) -> np.ndarray:
    """Return the class probabilities of all pictures, float32 (pictures, classes).

    Args:
        prefix: The --model-prefix of the checkpoint.
        epoch: Its epoch.
        pictures: The images.
        report: Called after every batch with the number of pictures done.
        on_error: Called with the number of a picture that cannot be read or decoded, and the error.
            The row of that picture is NaN. Without it, the error is raised.

    Raises:
        UserError: The checkpoint is missing or damaged, or a picture is bad and there is no
            ``on_error``.
    """
    from rn50lib import distributed as comm
    from rn50lib.train_step import build_step

    done = trained_as(prefix, epoch)
    net = done.to_network()
    found = checkpoint.load(prefix, epoch)
    checkpoint.check_shapes(found.arrays, net, checkpoint.path(prefix, epoch))
    step = build_step(done, net, comm.connect())
    step.load({name: found.arrays[name] for name in net.arrays()})  # the velocity is not needed
    probabilities = np.empty((len(pictures), net.num_classes), np.float32)
    # every batch has the full size, as in validation: a kernel that rounds by size rounds alike
    batch = np.zeros((done.batch_size, done.image_shape, done.image_shape, 3), np.uint8)
    for start in range(0, len(pictures), done.batch_size):
        rows = min(done.batch_size, len(pictures) - start)
        bad = []
        for row in range(rows):
            try:
                batch[row] = prepare(pictures, start + row, done)
            except UserError as error:
                if on_error is None:
                    raise
                on_error(start + row, error)
                bad.append(start + row)
        probabilities[start : start + rows] = step.predict(batch)[:rows]
        probabilities[bad] = np.nan
        report(start + rows)
    return probabilities


def best(probabilities: np.ndarray, classes: Sequence[str], count: int = SHOWN) -> str:
    """The `count` likeliest classes of one picture: "stop 97.1 %, yield 1.2 %"."""
    likeliest = np.argsort(-probabilities, kind="stable")[:count]
    return ", ".join(f"{classes[i]} {100 * probabilities[i]:.1f} %" for i in likeliest)


def class_names(data_root: str | Path | None, count: int) -> tuple[str, ...]:
    """The names of a data set's classes; their numbers where it is gone or has other classes."""
    from rn50lib.data.source import classes_of

    try:
        names = classes_of(data_root) if data_root else ()
    except UserError:
        names = ()
    return names if len(names) == count else tuple(str(i) for i in range(count))


def main(argv: list[str]) -> int:
    """The program; returns the exit status. Raises UserError for bad input."""
    from rn50.parser import Parser

    parser = Parser(prog="rn50 predict", description="Class probabilities from a checkpoint.")
    parser.add_argument("prefix", help="the --model-prefix of the training run")
    parser.add_argument("epoch", type=int, help="the epoch of the checkpoint")
    parser.add_argument("images", nargs="*", type=Path, help="image files")
    parser.add_argument("--split", choices=("train", "val"), help="a whole split of the data set")
    parser.add_argument("--data-root", help="the data set (default: the one it was trained on)")
    parser.add_argument(
        "-o", "--output", type=Path, help="write all probabilities to FILE.npz or FILE.csv"
    )
    args = parser.parse_args(argv)
    if bool(args.images) == bool(args.split):
        parser.error("give image files, or --split val: one of the two")
    done = trained_as(args.prefix, args.epoch)
    if args.output:
        check_output(args.output, "--output", "a file of rn50 predict", is_predictions)
        if args.output.suffix not in (".csv", ".npz"):
            raise UserError(f"--output {args.output}: name a file that ends in .csv or .npz")
    root = args.data_root or done.data_root
    pictures: Pictures = Files(tuple(args.images))
    if args.split:
        from rn50lib.data.source import open_source

        pictures = open_source(root, args.split)

    def report(finished: int) -> None:
        print(f"{finished} of {len(pictures)} pictures", file=sys.stderr, flush=True)

    bad: set[int] = set()

    def on_error(i: int, error: UserError) -> None:
        bad.add(i)
        print(f"error: {error}", file=sys.stderr, flush=True)

    probabilities = predict(args.prefix, args.epoch, pictures, report, on_error)
    classes = class_names(root, probabilities.shape[1])
    good = [i for i in range(len(pictures)) if i not in bad]
    if not args.output:
        for i in good:
            print(f"{pictures.name(i)}: {best(probabilities[i], classes)}")
    elif good:
        write(args.output, probabilities, pictures, classes, good)
        print(args.output)
    return 2 if bad else 0


def is_predictions(file: Path) -> bool:
    """Return True if `write` wrote the file."""
    try:
        if file.suffix == ".csv":
            with open(file, newline="", encoding="utf-8") as stream:
                header = next(csv.reader(stream), [])
            return header[:2] == ["name", "label"] and len(header) > 2
        with np.load(file) as arrays:
            return "probabilities" in arrays
    except (OSError, ValueError, AttributeError, TypeError, csv.Error, zipfile.BadZipFile):
        return False


def write(
    file: Path,
    probabilities: np.ndarray,
    pictures: Pictures,
    classes: Sequence[str],
    rows: Sequence[int],
) -> None:
    """Write these rows as .npz (arrays probabilities, labels, classes, names) or as .csv.

    A line of the .csv is name, label and a probability for each class. Without a data set the
    labels are -1.
    """
    labels = getattr(pictures, "labels", np.full(len(pictures), -1, np.int32))[list(rows)]
    names, probabilities = [pictures.name(i) for i in rows], probabilities[list(rows)]
    try:
        with replacing(file) as new, open(new, "wb") as stream:
            if file.suffix == ".csv":
                text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
                table = csv.writer(text)
                table.writerow(["name", "label", *classes])
                for name, label, row in zip(names, labels, probabilities, strict=True):
                    table.writerow([name, label, *row])
                text.detach()  # flushes, and leaves the file to `with`
            else:
                np.savez(
                    stream, probabilities=probabilities, labels=labels, classes=classes, names=names
                )
    except OSError as error:
        raise UserError(f"--output {file} cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    from rn50lib.preemption import die_with_parent

    die_with_parent()
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)

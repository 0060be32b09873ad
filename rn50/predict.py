"""`rn50 predict`: class probabilities of images, prepared as validation prepares them.

rn50 predict PREFIX a.jpg folder                 # the three most likely classes of each image
rn50 predict PREFIX EPOCH --split val -o out.npz # a whole split, as arrays
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np

from data_prep.command_line import Parser, whole
from rn50.autoconfig import best_engine, resolve, stored_values
from rn50.common import Output, contains, find_checkpoint
from rn50lib import checkpoint
from rn50lib.config import FLAGS, TrainConfig
from rn50lib.data.classes import Classes
from rn50lib.data.decode import ImageDecoder
from rn50lib.data.scan import LeftOut, list_folder
from rn50lib.errors import UserError
from rn50lib.files import is_stream
from rn50lib.progress import QUIET_S

SHOWN = 3  # classes that a line names
MEMBER = b"probabilities.npy"  # in the .npz, whose names are not compressed


@dataclass(frozen=True)
class Files:
    """Image files, to be predicted like a data set."""

    paths: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, i: int) -> bytes:
        """Return the bytes of file i. Raises UserError if it cannot be read."""
        path = self.paths[i]
        try:
            return path.read_bytes()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error

    def name(self, i: int) -> str:
        return str(self.paths[i])


def find_files(paths: Iterable[Path]) -> Files:
    """Return image files, and those in folders and below. Raises UserError for one without."""
    found: list[Path] = []
    for path in paths:
        inside, left_out = [] if path.is_dir() else [path], LeftOut()
        folders = [path] if path.is_dir() else []
        seen = {folder.resolve() for folder in folders}
        for folder in folders:  # grows
            listing = list_folder(folder)
            inside += [folder / name for name in listing.images]
            for child in (folder / name for name in listing.folders):
                if (real := child.resolve()) not in seen:  # links may lead in a circle
                    seen.add(real)
                    folders.append(child)
            for name, reason in listing.left_out:
                left_out.add(reason, name)
        if not inside:
            raise UserError(f"{path}: no image is in this folder{left_out.note}")
        if left_out:
            print(f"{path}: {len(inside):,} images{left_out.note}", file=sys.stderr)
        found += inside
    return Files(tuple(found))


def trained_as(prefix: str | Path, epoch: int, **values: Any) -> TrainConfig:
    """Return the configuration that scores a checkpoint, with `values` of your own.

    Raises UserError if there is no such checkpoint.
    """
    from rn50lib.hardware import machine

    given = {"model_prefix": str(prefix), "load_epoch": epoch, "only_inference": True, "n": 1}
    stored = stored_values(given)
    return resolve({**given, **stored, **values}, machine(), stored["num_classes"]).config


def prepare(
    images: Any, config: TrainConfig, batch_size: int
) -> Iterator[list[np.ndarray | UserError]]:
    """Yield batches of images as validation sees them, uint8 (size, size, 3), or their errors.

    While the caller computes, threads decode the next batch.
    """
    decoder, reading = ImageDecoder(images, False, config), Lock()

    def prepare_one(i: int) -> np.ndarray | UserError:
        try:
            with reading:  # a data set opens its files at the first read
                data = images.read(i)
            return decoder.decode_crop(data, 0, i)
        except UserError as error:
            return error

    with ThreadPoolExecutor(config.data_nthreads or 1) as pool:

        def submit(start: int) -> Iterator[np.ndarray | UserError]:
            return pool.map(prepare_one, range(start, min(start + batch_size, len(images))))

        waiting = submit(0)
        for start in range(0, len(images), batch_size):
            batch, waiting = list(waiting), submit(start + batch_size)
            yield batch


def predict(
    prefix: str | Path, epoch: int, images: Any, **values: Any
) -> tuple[np.ndarray, list[int]]:
    """Return the class probabilities of `Files` or a data set, float32 (images, classes).

    Also return the numbers of the images that could not be decoded: each is reported on stderr, and
    its row is NaN. `values` are those of `trained_as`. Raises UserError for a bad checkpoint.
    """
    from rn50lib import distributed as comm
    from rn50lib import hooks
    from rn50lib.run_setup import build_step

    config = trained_as(prefix, epoch, **values)
    if "engine" not in values:
        engine, why = best_engine(config, len(images))
        config = replace(config, engine=engine)
        if engine != "torch":
            print(f"engine {engine}: {why}", file=sys.stderr)
    hooks.install(config.override)
    net = config.to_network()
    found = checkpoint.load(prefix, epoch)
    checkpoint.check_shapes(found.arrays, net, checkpoint.path(prefix, epoch))
    step = build_step(config, net, comm.connect())
    step.load({name: found.arrays[name] for name in net.arrays()})  # the velocity is not needed
    probabilities, bad = np.empty((len(images), net.num_classes), np.float32), []
    # the last batch has the same size: what was compiled or captured for it fits
    size, done, shown = min(config.batch_size, len(images)), 0, monotonic()
    batch = np.zeros((size, config.image_shape, config.image_shape, 3), np.uint8)
    for made in prepare(images, config, size):
        for row, image in enumerate(made):
            if isinstance(image, UserError):
                # `verify`, its remedy, is for data sets
                problem = image.args[0] if isinstance(images, Files) else image
                print(f"error: {problem}", file=sys.stderr, flush=True)
                bad.append(done + row)
            else:
                batch[row] = image
        probabilities[done : done + len(made)] = step.predict(batch)[: len(made)]
        done += len(made)
        if done == len(images) or monotonic() > shown + QUIET_S:
            failed, shown = f", {len(bad)} not read" if bad else "", monotonic()
            print(f"{done} of {len(images)} images{failed}", file=sys.stderr, flush=True)
    probabilities[bad] = np.nan
    return probabilities, bad


def best(probabilities: np.ndarray, classes: Classes) -> str:
    """Return the most likely classes of one image: "stop 97.1%, yield 1.2%"."""
    likeliest = np.argsort(-probabilities, kind="stable")[:SHOWN]
    return ", ".join(f"{classes[i]} {100 * probabilities[i]:.1f}%" for i in likeliest)


def read_trained_classes(file: Path, data: Classes | None) -> Classes:
    """Return the classes of a checkpoint, after comparing them with those of a data set, if any.

    A line on stderr says if names are unknown. Raises UserError if the classes differ.
    """
    classes, root = checkpoint.read_classes(file)
    remark = None
    if data is not None:
        classes, remark = checkpoint.check_trained_classes(classes, data, file, root)
    elif not classes.known:
        remark = f"{file} has no class names, so these are numbers: pass --data-root to name them"
    if remark:
        print(remark, file=sys.stderr)
    return classes


def classes_there(root: str) -> Classes:
    """Return the classes of a data set that may lack one of its splits."""
    from rn50lib.data.source import open_source

    try:
        return open_source(root, "train").classes
    except UserError:
        return open_source(root, "val").classes


def write(to: Output, rows: Sequence[tuple[str, int, np.ndarray]], classes: Sequence[str]) -> None:
    """Write (name, label, probabilities) of each image as .npz.

    It has the arrays names, labels, probabilities and classes. Without a data set the labels are
    -1.
    """
    names, labels, probabilities = zip(*rows, strict=True)

    def write_arrays(draft: Path) -> None:
        with open(draft, "wb") as file:  # NumPy would add .npz to the name of a device
            np.savez(
                file, names=names, labels=np.array(labels, np.int32), classes=classes,
                probabilities=np.stack(probabilities),
            )  # fmt: skip

    to.write(write_arrays)


def main(argv: list[str]) -> int:
    parser = Parser(
        prog="rn50 predict", description="Predict class probabilities with a checkpoint."
    )
    add = parser.add_argument
    add("prefix", help="the --model-prefix of the training run, or a checkpoint's file")
    add("images", nargs="*", help="image files, or folders of them; before them, a number is the"
        " epoch (default: the last)")  # fmt: skip
    add("--split", choices=("train", "val"), help="a whole split of the data set")
    add("--data-root", help="the data set (default: that of the training)")
    add("-o", "--output", type=Path, help="write all probabilities to FILE.npz")
    add("-b", "--batch-size", type=whole(), metavar="N",
        help="images per batch (default: as in training)")  # fmt: skip
    add("--engine", choices=FLAGS["engine"].choices, help=FLAGS["engine"].help)
    add("--dtype", choices=FLAGS["dtype"].choices,
        help="precision (default: that of the training, if this machine has it)")  # fmt: skip
    args = parser.parse_intermixed_args(argv)
    words = args.images
    number = int(words.pop(0)) if words and words[0].isdecimal() else None
    if bool(words) == bool(args.split):
        parser.error("name image files or folders, or use --split val: one of the two")
    output = None
    if args.output:
        if args.output.suffix != ".npz" and not is_stream(args.output):
            raise UserError(f"--output {args.output}: name a file that ends in .npz")
        output = Output("--output", args.output, "a file of rn50 predict", contains(MEMBER))
    prefix, epoch = find_checkpoint(args.prefix, number)
    images: Any = find_files(map(Path, words))
    data = None
    if args.split:
        from rn50lib.data.source import open_source
        from rn50lib.run_setup import print_sources

        images = open_source(args.data_root or trained_as(prefix, epoch).data_root, args.split)
        print_sources({args.split: images}, every=False)
        data = images.classes
    elif args.data_root:
        data = classes_there(args.data_root)
    classes = read_trained_classes(checkpoint.path(prefix, epoch), data)
    names = ("engine", "dtype", "batch_size")
    values = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    probabilities, bad = predict(prefix, epoch, images, **values)
    labels = getattr(images, "labels", np.full(len(images), -1))
    good = sorted({*range(len(images))} - {*bad})
    rows = [(images.name(i), int(labels[i]), probabilities[i]) for i in good]
    if output is None:
        for name, _, row in rows:
            print(f"{name if name.isprintable() else repr(name)}: {best(row, classes)}")
    elif rows:
        write(output, rows, [classes[i] for i in range(probabilities.shape[1])])
        if not is_stream(args.output):
            print(args.output)
    return 2 if bad else 0

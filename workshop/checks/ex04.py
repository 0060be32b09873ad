"""Checks of ex04: a hurried script, the order of the stages, a tf.data pipeline, recipe 2."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.errors import UserError
from workshop import paths
from workshop.checks import compare, recipes
from workshop.checks.compare import wrong

# --- ex04.hunt ------------------------------------------------------------------------------------

MISTAKES = {  # a text that stands in one line of the script only: what is wrong with it
    "gpus[hvd.rank()]": "on a second machine rank 8 has no GPU 8: take hvd.local_rank()",
    "Softmax()": "the loss expects logits (from_logits=True), and does its own softmax",
    "LR * hvd.size()": "the full rate from the first step on: there is no warm-up",
    "from_seed(SEED)": "the same seed on every rank: all draw the same flips",
    "np.random.uniform": "drawn once, when the graph is built: one angle for all pictures",
    "// BATCH": "every rank takes all the steps of one process: divide by hvd.size() too",
    "chosen = order[": "no shard: every rank reads the same pictures",
    "checkpoint.save": "all ranks write the same file at once: only rank 0 should",
}
RIGHT = {  # lines that look suspicious and are right
    "default_rng([SEED, epoch])": "all ranks need the same order, to take different parts of it",
    "hvd.broadcast": "all ranks call it, and all get rank 0's weights",
    "hvd.allreduce": "the average over all ranks is what the larger batch's gradient is",
    "if hvd.rank() == 0": "one rank that prints is enough",
    "set_memory_growth": "it keeps TensorFlow from taking all GPU memory at once",
    "from_logits=True": "that is what gives stable numbers; look at what it is given",
    "optimizer.build": "it makes the optimizer's variables, so that they can be broadcast",
}


def script() -> Path:
    """The script with the mistakes. Raises UserError where it is missing."""
    root = paths.checkout()
    path = (root or Path()) / "exercises" / "hunt" / "train_parallel.py"
    if not path.exists():
        raise UserError(f"{path} is missing: ex04.hunt needs the checkout with its exercises")
    return path


def listing() -> str:
    """The script with the number of each line."""
    lines = script().read_text(encoding="utf-8").splitlines()
    return "\n".join(f"{number:3}  {line}".rstrip() for number, line in enumerate(lines, 1))


def line_of(text: str) -> int:
    """The number of the only line of the script that holds `text`."""
    lines = script().read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if text in line]
    return found


def hunt(answer: Iterable[int]) -> str:
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        wrong(f"the answer is of type {type(answer).__name__}.", "Write a set: {3, 14, 15}.")
    named = {compare.whole(number, "one of the line numbers") for number in answer}
    mistakes = {line_of(text): what for text, what in MISTAKES.items()}
    fine = {line_of(text): why for text, why in RIGHT.items()}
    count = len(listing().splitlines())
    if len(named) > 20:
        wrong(f"{len(named)} lines are named.", "There are eight mistakes, each in one line.")
    found, vain = named & set(mistakes), named - set(mistakes)
    share = max(0, len(found) - len(vain)) / len(mistakes)  # so that guessing earns nothing
    for number in sorted(vain):
        if not 1 <= number <= count:
            wrong(f"there is no line {number}.", f"The script has {count} lines.", share)
        reason = f": {fine[number]}" if number in fine else ""
        wrong(f"line {number} is right{reason}.", f"{len(found)} of your lines are mistakes.",
              share)  # fmt: skip
    if left := sorted(set(mistakes) - named):
        third = ("first", "middle", "last")[min(2, 3 * left[0] // count)]
        wrong(
            f"{len(found)} of {len(mistakes)} mistakes are found, and no line is named in vain.",
            f"One that is missing stands in the {third} third of the script.",
            share,
        )
    return " ".join(f"Line {n}: {what}." for n, what in sorted(mistakes.items()))


# --- ex04.order -----------------------------------------------------------------------------------

STAGES = ("list files", "shard", "interleave", "shuffle", "map", "batch", "prefetch")
PAIRS = (  # the first must come before the second, because otherwise …
    ("list files", "shard", "there is nothing to share out before the files are listed.",
     "List them first, in the same order on every rank."),
    ("list files", "interleave", "files are opened before they are listed.", "List them first."),
    ("shard", "interleave", "every rank opens all files and throws most of what it reads away.",
     "Share out the names of the files, before any of them is opened."),
    ("shard", "shuffle", "what each rank shuffled in its own way is shared out afterwards: some "
     "pictures are read twice, others never.", "Shard before you shuffle."),
    ("interleave", "shuffle", "only the names of the files are shuffled, and the records of a file "
     "stay together.", "Shuffle the records, behind interleave."),
    ("interleave", "map", "map would decode the names of files.", "Open the files first."),
    ("shuffle", "map", "the shuffle buffer holds decoded pictures: 1,000 of them at 224 pixels are "
     "150 MB and more, and JPEGs a tenth of that.", "Shuffle the records before they are decoded."),
    ("map", "batch", "JPEGs of different lengths cannot be put into one array.",
     "Decode and crop each picture first."),
    ("shuffle", "batch", "whole batches are shuffled: the pictures of a batch stay together for "
     "ever.", "Shuffle before you batch."),
    ("batch", "prefetch", "single pictures are read ahead, and the batch is put together while the "
     "step waits for it.", "Read ahead what the step takes: batches."),
)  # fmt: skip


def order(answer: Iterable[str]) -> str:
    if not isinstance(answer, list | tuple | np.ndarray):
        wrong(f"the answer is of type {type(answer).__name__}, which has no order.",
              "Write a list of seven names.")  # fmt: skip
    given = [str(stage) for stage in answer]
    unknown = [stage for stage in given if stage not in STAGES]
    if unknown:
        wrong(f"{unknown[0]!r} is no stage of the list.", "Write the names as they stand there.")
    for stage in STAGES:
        if given.count(stage) != 1:
            how = "missing" if stage not in given else "there twice"
            wrong(f"{stage!r} is {how}.", "Use each of the seven stages once.")
    for before, after, why, remedy in PAIRS:
        if given.index(before) > given.index(after):
            wrong(why, remedy)
    return "shared out before anything is opened, decoded late, read ahead in whole batches."


# --- ex04.feed ------------------------------------------------------------------------------------

Feed = Callable[[np.ndarray, np.ndarray, int, int, int, int], Any]
Batch = tuple[np.ndarray, np.ndarray]
SHAPE = HEIGHT, WIDTH, _ = 4, 6, 3  # of a picture


def pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (count, *SHAPE) whose pixels say which one it is, and labels int32."""
    numbers = np.arange(count)
    images = np.broadcast_to(numbers[:, None, None, None], (count, *SHAPE)).astype(np.uint8)
    return images.copy(), (numbers * 7 % 5).astype(np.int32)


def feed(answer: Feed) -> str:
    for count, size, batch in ((240, 2, 4), (11, 2, 3), (9, 1, 2)):
        images, labels = pictures(count)
        made = [compare.call(answer, images, labels, rank, size, batch, 5) for rank in range(size)]
        steps = count // (size * batch)
        epochs = _two_epochs(made, 2 * count)
        for epoch in epochs:
            _right_batches(epoch, count, size, batch, steps, labels)
        if count == 240:
            _shuffled(epochs)
    return "two epochs on 1 and 2 ranks: equal steps, nothing twice, labels with their pictures."


def _two_epochs(made: list[Any], most: int) -> list[list[list[Batch]]]:
    """What two passes over the ranks' datasets give: [epoch][rank][batch]."""
    if not hasattr(made[0], "as_numpy_iterator"):
        wrong(f"the answer returns a {type(made[0]).__name__}.", "Return a tf.data.Dataset.")
    epochs = [[_read(dataset, most) for dataset in made] for _ in range(2)]
    _read_ahead(made[0])
    return epochs


def _read(dataset: Any, most: int) -> list[Batch]:
    batches = list(itertools.islice(dataset.as_numpy_iterator(), most + 1))
    if len(batches) > most:
        wrong("the dataset never ends.", "One pass over it is one epoch: no repeat().")
    if batches and (not isinstance(batches[0], tuple) or len(batches[0]) != 2):
        wrong("an element is no pair.", "Give (images, labels).")
    return batches


def _which(batch: Batch) -> np.ndarray:
    """The numbers of the pictures of a batch."""
    return np.rint(255 * batch[0][:, 0, 0, 0]).astype(int)


def _right_batches(
    epoch: list[list[Batch]], count: int, size: int, batch: int, steps: int, labels: np.ndarray
) -> None:
    case = f"{count} pictures, {size} ranks, batch {batch}"
    if not epoch[0]:
        wrong(f"the dataset is empty ({case}).", f"It should give {steps} batches.")
    remedy = "The network takes float32 from 0 to 1: map with tf.cast(image, tf.float32) / 255."
    every = [batch for part in epoch for batch in part]
    for pixels, given in every:
        if pixels.shape == (batch, WIDTH, HEIGHT, 3):
            wrong(
                f"pictures of {HEIGHT} rows and {WIDTH} columns come as {pixels.shape[1:]}: height"
                " and width are exchanged.",
                "The pixels of a row follow each other: (height, width, 3).",
            )
        if pixels.shape != (batch, *SHAPE):
            wrong(
                f"a batch of pictures is {pixels.shape} ({case}).",
                f"It should be {(batch, *SHAPE)}: batch(batch, drop_remainder=True).",
            )
        if np.shape(given) != (batch,):
            wrong(f"the labels of a batch are {np.shape(given)}.", "One number each: (batch,).")
        if pixels.dtype != np.float32 or pixels.max() > 1:
            wrong(f"the pictures are {pixels.dtype}, up to {pixels.max():g}.", remedy)
        levels = 255 * compare.numbers(pixels, "the pictures")
        if (
            np.abs(levels - np.rint(levels)).max() > 0.01
            or levels.min() < 0
            or levels.max() >= count
        ):
            wrong("the pictures are not their bytes divided by 255.", remedy)
    if any(not np.array_equal(labels[_which(batch)], batch[1]) for batch in every):
        if any(np.array_equal(labels[_which(every[0])], every[0][1] + off) for off in (-1, 1)):
            wrong("the labels are off by one.",
                  "The records count classes from 0, and so does the loss.")  # fmt: skip
        wrong("pictures and labels are out of step.", "Shuffle the pairs, not each by itself.")
    together = np.concatenate([_which(batch) for batch in every])
    if len(np.unique(together)) < len(together):
        wrong(
            f"a picture is read twice in an epoch ({case}).",
            "Share them out with shard(size, rank), before you shuffle.",
        )
    if len({len(part) for part in epoch}) > 1:
        numbers = ", ".join(str(len(part)) for part in epoch)
        wrong(
            f"the ranks take {numbers} steps ({case}): the first waits for ever.",
            "Take count // (size · batch) batches on every rank.",
        )
    if len(epoch[0]) != steps:
        wrong(f"a rank takes {len(epoch[0])} steps ({case}).", f"It should take {steps}.")


def _shuffled(epochs: list[list[list[Batch]]]) -> None:
    """Wrong unless the pictures come in a new order in each epoch, and from all over the files."""
    for parts in zip(*epochs, strict=True):  # of one rank
        first, second = ([_which(batch).tolist() for batch in part] for part in parts)
        order = [number for batch in first for number in batch]
        if order == sorted(order):
            wrong("the pictures come in the order of the files.", "Shuffle them, with the seed.")
        if first == second:
            wrong(
                "both epochs have the same order.",
                "shuffle() draws a new one each time, unless reshuffle_each_iteration is False.",
            )
        if set(map(frozenset, first)) == set(map(frozenset, second)):
            wrong(
                "the same pictures make up a batch in both epochs: whole batches are shuffled.",
                "Shuffle pictures: shuffle stands before batch.",
            )
        # of a buffer of k none comes k places early
        place = {number: i for i, number in enumerate(sorted(order))}
        buffer = 1 + max(place[number] - i for i, number in enumerate(order))
        if buffer < len(order) / 2:
            wrong(
                f"no picture comes more than {buffer - 1} places before its turn: shuffle chooses"
                f" among {buffer} of {len(order)}.",
                "Files are sorted by class. Where there is room, the buffer holds all of them.",
            )


def _read_ahead(dataset: Any) -> None:
    """Wrong unless batches are prefetched; what stands behind that prefetch makes no difference."""
    while dataset is not None:
        kind = type(dataset).__name__.lower()
        if "prefetch" in kind:
            return
        if "batch" in kind:
            break
        dataset = getattr(dataset, "_input_dataset", None)
    wrong("nothing is read ahead: the step waits for each batch.", "End with prefetch.")


# --- ex04.recipe ----------------------------------------------------------------------------------

CASES = ((240, 6, 2, 4), (22, 3, 1, 4), (96, 5, 2, 3))  # pictures, shards, ranks, batch


def recipe(answer: Callable[..., Any]) -> str:
    for count, shards, size, batch in CASES:
        images, labels = pictures(count)
        split = [len(part) for part in np.array_split(np.arange(count), shards)]
        epochs = read_epochs(answer, images, labels, shards, size, batch)
        # whole shards for each rank, or single records: what its share is makes the steps
        share = min(sum(split[rank::size]) for rank in range(size))
        for epoch in epochs:
            steps = min(len(part) for part in epoch)
            enough = steps >= share // batch
            epoch = [part[:steps] for part in epoch]  # as the script takes them
            _right_batches(epoch, count, size, batch, steps, labels)
            _whole_files(epoch, np.cumsum(split))
            if not enough:
                wrong(
                    f"a rank gives {steps} batches of {batch}: {count} records on {size} ranks make"
                    f" {share // batch} (from {shards} shards).",
                    "Every shard of the rank is read to its end: interleave opens them all.",
                )
        if count == CASES[0][0]:
            _shuffled([[part[: share // batch] for part in epoch] for epoch in epochs])
    return recipes.tfrecord(answer)


def _whole_files(epoch: list[list[Batch]], ends: np.ndarray) -> None:
    """Wrong if records of one file come on two ranks; `ends` has where each file ends."""
    files = [
        {*np.searchsorted(ends, [_which(batch) for batch in part], "right").ravel()}
        for part in epoch
    ]
    if any(a & b for a, b in itertools.combinations(files, 2)):
        wrong(
            "every rank opens every file and throws away what is not its own.",
            "Each rank reads whole files: shard their names, before any of them is opened.",
        )


@compare.beside
def read_epochs(
    answer: Callable[..., Any],
    images: np.ndarray, labels: np.ndarray, shards: int, size: int, batch: int,
) -> list[list[list[Batch]]]:  # fmt: skip
    """What two passes over the answer's datasets give: [epoch][rank][batch], pairs of arrays."""
    with tempfile.TemporaryDirectory(prefix="records-") as folder:
        turned = images.transpose(0, 3, 1, 2)
        paths = recipes.write(Path(folder) / "records", turned, labels, shards)
        with compare.time_limit():
            made = [compare.call(answer, list(paths), rank, size, batch, 5) for rank in range(size)]
            return _two_epochs(made, 2 * len(labels))

"""Checks of ex04: an index, a hurried script, recipe 2."""

from __future__ import annotations

import itertools
import struct
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workshop import paths
from workshop.checks import compare, recipes
from workshop.checks.compare import refuse, wrong

# --- ex04.index -----------------------------------------------------------------------------------

LENGTHS: tuple[list[int], ...] = ([5], [0, 3, 0], [300, 1, 70_000, 16], [])


def index(answer: Callable[[bytes], Sequence[tuple[int, int]]]) -> str:
    """Check the index of shards whose records have LENGTHS; their checksums are zeros."""
    shards = [(b"".join(struct.pack("<Q", n) + bytes(n + 8) for n in of),) for of in LENGTHS]

    def lengths(shard: bytes) -> str:
        data = [str(size - 16) for _, size in entries(shard)]
        return f"Data bytes per record: {', '.join(data) or 'no record'}."

    compare.examine(answer, shards, entries, INDEX_MISTAKES, one_case=True, why=lengths)
    return f"{len(LENGTHS)} shards, including an empty one and empty records."


def entries(shard: bytes) -> list[tuple[int, int]]:
    """Return (offset, size) of each record."""
    found, at = [], 0
    while at + 8 <= len(shard):
        (length,) = struct.unpack_from("<Q", shard, at)
        found.append((at, length + 16))
        at += length + 16
    return found


INDEX_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda shard: [(at + 12, size) for at, size in entries(shard)],
     "the offsets are where the data starts.", "A record starts with its length field."),
    (lambda shard: [(at, size - 16) for at, size in entries(shard)],
     "the sizes are those of the data alone.", "Add the 16 bytes around it."),
)  # fmt: skip


# --- ex04.hunt ------------------------------------------------------------------------------------

MISTAKES = {  # a text in one line of the script only: what is wrong with this line
    "gpus[hvd.rank()]": "on a second machine rank 8 has no GPU 8: take hvd.local_rank()",
    "Softmax()": "the model's softmax and the loss's (with_logits) are one too many",
    "LR * hvd.size()": "the rate is full from the first step on, without a warm-up",
    "from_seed(SEED)": "with the same seed, all ranks draw the same flips, so a batch varies less",
    "np.random.uniform": "drawn once, when the graph is built, so all images get one angle",
    "// BATCH": "every rank takes all the steps of one process: divide by hvd.size() too",
    "chosen = order[": "all ranks read the same images: each should take its own share",
    "checkpoint.save": "all ranks write the same file at once: only rank 0 should",
}
OTHER_HALF = {"with_logits": "Softmax()"}  # one mistake in two lines: either is accepted
RIGHT = {  # lines that look suspicious and are right
    "default_rng([SEED, epoch])": "all ranks need the same order, to take different parts of it",
    "hvd.broadcast": "all ranks call it, and all get rank 0's weights",
    "hvd.allreduce": "the average over all ranks is the gradient of the larger batch",
    "if hvd.rank() == 0": "it is enough if one rank prints",
    "float(loss)": "one rank's own loss is enough to watch",
    "flips.uniform": "it draws for each image, on each rank: look where its generator is made",
    "rotate(images": "the line before it chooses the angle",
    "set_memory_growth": "it keeps TensorFlow from taking all GPU memory at once",
    "optimizer.build": "it makes the optimizer's variables, so that they can be broadcast",
    "find_images(": "each rank may list all images, and takes its part when a batch is chosen",
    "EPOCHS, BATCH": "these are the settings for one process; a later line adapts the rate",
    "densenet(": "the slides use 223 pixels and two classes",
    "for place in": "its number of steps is computed in another line",
}


def script() -> list[str]:
    path = paths.need_checkout() / "exercises" / "hunt" / "train_parallel.py"
    return path.read_text(encoding="utf-8").splitlines()


def listing() -> str:
    return "\n".join(f"{number:3}  {line}".rstrip() for number, line in enumerate(script(), 1))


def line_of(text: str) -> int:
    """Return the number of the only line of the script that has `text`."""
    (found,) = [number for number, line in enumerate(script(), 1) if text in line]
    return found


def hunt(answer: Iterable[int]) -> str:
    """Check line numbers; each mistake that is found counts, and each wrong line costs one."""
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        wrong(f"the answer is {compare.kind_of(answer, 'a set')}.", "Write a set: {3, 14, 15}.")
    named = {compare.whole(number, "one of the line numbers") for number in answer}
    last = len(script())
    refuse(*((not 1 <= number <= last, f"there is no line {number}.",
              f"The script has the lines 1 to {last}.") for number in sorted(named)))  # fmt: skip
    for half, mistake in OTHER_HALF.items():
        named = {line_of(mistake) if number == line_of(half) else number for number in named}
    bugs = {line_of(text): what for text, what in MISTAKES.items()}
    fine = {line_of(text): f": {why}" for text, why in RIGHT.items()}
    found, mistaken = named & set(bugs), named - set(bugs)
    share = max(0, len(found) - len(mistaken)) / len(bugs)  # so that guessing earns nothing
    for number in sorted(mistaken):
        wrong(f"line {number} is right{fine.get(number, '')}.",
              f"Remove it. Lines of yours that have a bug: {len(found)} of {len(named)}.", share
              )  # fmt: skip
    if left := sorted(set(bugs) - named):
        third = ("first", "middle", "last")[min(2, 3 * left[0] // len(script()))]
        wrong(f"you found {len(found)} of {len(bugs)} bugs, and named no line without one.",
              f"Look for another one in the {third} third of the script.", share)  # fmt: skip
    either = {line_of(mistake): f" or {line_of(half)}" for half, mistake in OTHER_HALF.items()}
    lines = [f"  Line {n}{either.get(n, '')}: {what}." for n, what in sorted(bugs.items())]
    return "\n".join(["all eight.", *lines])


# --- tf.data pipelines, also of notebook 04 -------------------------------------------------------

SHARD_FILES = (
    "Use shard(size, rank) before you shuffle, on files in the same order on all ranks:"
    " list_files shuffles them unless you pass shuffle=False."
)


def batches_of(dataset: Any, most: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the images and labels of each batch in a pass; raise Wrong if it has over `most`."""
    if not hasattr(dataset, "as_numpy_iterator"):
        wrong(f"the answer returns a {type(dataset).__name__}.", "Return a tf.data.Dataset.")
    try:
        found = list(itertools.islice(dataset.as_numpy_iterator(), most + 1))
    except Exception as error:
        note = "The error occurs while the dataset is read, in `parse` or after it."
        error.__notes__ = [note]  # type: ignore[attr-defined]
        raise
    refuse(
        (not all(isinstance(batch, tuple) and len(batch) == 2 for batch in found),
         "an element is not a pair.", "Make each element (images, labels)."),
        (len(found) > most, "the dataset never ends.", "Remove repeat(): one pass is one epoch."),
    )  # fmt: skip
    return [(np.asarray(images), np.asarray(labels)) for images, labels in found]


def judge_epochs(epochs: list[list[np.ndarray]], ends: Sequence[int], steps: int) -> None:
    """Raise Wrong unless ranks share the files and read them in a new order in each of two epochs.

    An epoch has for each rank the numbers of its images, (steps, batch). File i has the images from
    `ends[i - 1]` to `ends[i] - 1`, in order.
    """
    for parts in epochs:
        numbers = np.concatenate(parts)
        files = [set(np.searchsorted(ends, part.ravel(), "right")) for part in parts]
        taken, opened = [len(part) for part in parts], [len(of) for of in files]
        unread = sorted({*range(len(ends))}.difference(*files))
        refuse(
            (len(np.unique(numbers)) < numbers.size, "an image is read twice in an epoch.",
             SHARD_FILES),
            (any(a & b for a, b in itertools.combinations(files, 2)),
             "every rank opens every file and throws away the records of the others.",
             "Shard the file names before any file is opened: shard(size, rank)."),
            (max(opened) - min(opened) > 1, f"the ranks return images of"
             f" {', '.join(map(str, opened))} files.",
             "Give each rank as many files as the others, or one more: shards[rank::size]."),
            (set(taken) != {steps}, f"the ranks return {', '.join(map(str, taken))} full batches"
             f" instead of {steps} each"
             f"{': a rank with more waits for the others forever' * (len(set(taken)) > 1)}.",
             "End the epoch after `batch`: take(steps)." if min(taken) >= steps
             else "Read each file of the rank to its end, once, and drop only the last images."),
            (unread, f"no rank returns an image of file {unread[0] + 1 if unread else 0} of"
             f" {len(ends)}.", "Share all files, shards[rank::size], and shuffle before `take`."),
        )  # fmt: skip
    size = np.diff(ends, prepend=0)  # of each file
    for first, second in zip(*epochs, strict=True):  # of one rank
        order = first.ravel()
        files = np.searchsorted(ends, order, "right")
        inside = [order[files == file] for file in set(files)]
        batches = [[*map(tuple, np.sort(part))] for part in (first, second)]
        stayed = sum(a == b for a, b in zip(*batches, strict=False))
        refuse(
            (all((np.diff(part) > 0).all() for part in inside),
             "the images of each file stay in their order.",
             "Shuffle the records, after interleave."),
            (np.array_equal(first, second), "both epochs have the same order.",
             "Shuffle the records, after any `cache`, and without reshuffle_each_iteration=False."),
            (2 * len({*batches[0]} & {*batches[1]}) > len(first) + 2 * stayed,
             "whole batches are shuffled: the same images are together in each epoch.",
             "Shuffle before `batch`."),
            (sum(size[file] for file in set(files)) > order.size + len(first[0])
             and {*order} == {*second.ravel()}, "the same images are left out in both epochs.",
             "Shuffle before `take`, which drops the rest."),
        )  # fmt: skip


def stages(dataset: Any) -> list[Any]:
    """Return the datasets of a pipeline, its source first; TensorFlow has no public way to them."""
    found: list[Any] = []
    while dataset is not None:
        dataset = getattr(dataset, "_impl", dataset)  # of a TFRecordDataset
        found.insert(0, dataset)
        dataset = getattr(dataset, "_input_dataset", None)
    return found


def what_is_slow(dataset: Any, draws: bool = False) -> str:
    """Return what makes a right pipeline slow or large, as sentences for the end of a text.

    With `draws`, its map draws random numbers: tf.data parallelises other maps by itself.
    """
    names = [type(stage).__name__ for stage in stages(dataset)]
    last = {kind: max((i for i, name in enumerate(names) if kind in name), default=-1)
            for kind in ("Prefetch", "Batch", "Shuffle", "Interleave")}  # fmt: skip
    maps = [i for i, name in enumerate(names) if name in ("_MapDataset", "_ParallelMapDataset")]
    found = ""
    if last["Prefetch"] < last["Batch"]:
        found += " Slow: without `prefetch` after `batch`, each step waits for its batch."
    if draws and last["Interleave"] < 0:
        found += " Slow over a network: without `interleave`, one shard is read at a time."
    if len(maps) == 1:
        if draws and names[maps[0]] == "_MapDataset":
            found += " Slow: without `num_parallel_calls`, `map` decodes one image at a time."
        if maps[0] < last["Shuffle"]:
            found += " Large: `map` comes before `shuffle`, so the buffer holds what `map` makes."
    return found


# --- ex04.recipe ----------------------------------------------------------------------------------

SHAPE = HEIGHT, WIDTH, _ = 4, 6, 3  # of an image
CASES = (  # images, shards, ranks, batch, steps: in the second, rank 0 has 10 full batches
    (240, 6, 2, 4, 30), (100, 10, 4, 3, 6), (22, 3, 1, 4, 4),
)  # fmt: skip


def recipe(answer: Callable[..., Any]) -> str:
    """Check two epochs of records that are read on several ranks."""
    for count, shards, size, batch, steps in CASES:
        labels = (np.arange(count) * 7 % 5).astype(np.int32)
        planes = np.zeros((count, 3, HEIGHT, WIDTH), np.uint8)
        planes += np.arange(count, dtype=np.uint8)[:, None, None, None]  # each pixel is the number
        with tempfile.TemporaryDirectory(prefix="records-") as folder:
            files = recipes.write(Path(folder) / "records", planes, labels, shards)
            made = [
                compare.call(answer, list(files), rank, size, batch, steps, 5)
                for rank in range(size)
            ]
            epochs = [[_read(dataset, labels, batch) for dataset in made] for _ in range(2)]
        ends = np.cumsum([len(part) for part in np.array_split(labels, shards)]).tolist()
        try:
            judge_epochs(epochs, ends, steps)
        except compare.Wrong as problem:
            case = f" (It has {count} images in {shards} shards, for {size} ranks, batch {batch}.)"
            wrong(problem.diagnosis + case, problem.remedy)
        if count == CASES[0][0]:
            if small := small_buffer(epochs[0], ends):
                wrong(small, "Make it as large as memory allows: files are sorted by class.")
    size, _, steps = CASES[0][2:]
    said = f"{steps} batches on each of {size} ranks, none of whose images is read twice."
    return said + what_is_slow(made[0])


def _read(dataset: Any, labels: np.ndarray, batch: int) -> np.ndarray:
    """Return the numbers of the images (steps, batch) in one pass over a rank's dataset.

    Raises Wrong unless all batches have the right form, pixels and labels.
    """
    found = []
    for pixels, given in batches_of(dataset, len(labels)):
        refuse(
            (pixels.shape == (batch, WIDTH, HEIGHT, 3), f"images of {HEIGHT} rows and {WIDTH}"
             f" columns come as {pixels.shape[1:]}: height and width are swapped.",
             "Reshape to (height, width, 3): the pixels of a row follow each other."),
            (pixels.shape != (batch, *SHAPE), f"a batch of images is {pixels.shape}.",
             f"It should be {(batch, *SHAPE)}: batch(batch, drop_remainder=True)."),
            (given.shape != (batch,) or given.dtype.kind not in "iu",
             f"the labels of a batch are {given.dtype}, {given.shape}.",
             f"They should be whole numbers, ({batch},): tf.cast(label, tf.int32)."),
        )  # fmt: skip
        levels = 255 * compare.numbers(pixels, "the images")
        numbers = np.rint(levels[:, 0, 0, 0]).astype(int)
        exact = np.allclose(levels, numbers[:, None, None, None], rtol=0, atol=0.01)
        inside = 0 <= numbers.min() < numbers.max() < len(labels)  # a batch has several images
        scale = "The network takes float32 from 0 to 1: tf.cast(image, tf.float32) / 255."
        refuse(
            (pixels.dtype != np.float32,
             f"the images are {pixels.dtype}, up to {pixels.max():g}, not float32.", scale),
            (not (exact and inside),
             f"the images, up to {pixels.max():g}, are not their bytes divided by 255.", scale),
        )  # fmt: skip
        if not np.array_equal(given, labels[numbers]):
            wrong(f"images with the labels {labels[numbers].tolist()} come with {given.tolist()}.",
                  "Pass each record's label on as it is: it counts from 0, and so does the loss.",
                  )  # fmt: skip
        found.append(numbers)
    return np.array(found, int).reshape(-1, batch)


def small_buffer(parts: list[np.ndarray], ends: Sequence[int]) -> str:
    """Return what shows that images come from a small part of their file, or of all files."""
    for order in (part.ravel() for part in parts):
        files = np.searchsorted(ends, order, "right")
        inside = [order[files == file] for file in set(files)]
        shares = [(1 + _ahead(part)) / len(part) for part in inside]
        if (1 + _ahead(order)) / len(order) < 0.5 or max(shares) < 0.5:
            early = max(map(_ahead, inside))
            return (
                f"no image comes more than {early} places earlier among those of its file: the"
                " shuffle buffer is small."
            )
    return ""


def _ahead(order: np.ndarray) -> int:
    """Return how many places an image moves forward at most; with a buffer of k images, k - 1."""
    return int((np.argsort(np.argsort(order)) - np.arange(len(order))).max())
